package agent

import (
	"context"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/netplugin/responder"
	"github.com/flowkeep/flowkeep/ofctl"
)

// answers is the way from the switch to the responder and back.
type answers struct {
	*responder.Responder
	config atomic.Pointer[pipeline.Config] // as it was compiled last; nil: never
}

func newAnswers(r prometheus.Registerer) *answers {
	a := &answers{}
	a.Responder = responder.New(responder.Config{Route: a.route, Registerer: r})
	return a
}

func (a *answers) route(p *ofctl.PacketIn, to netip.Addr) ([]ofctl.Action, bool) {
	cfg := a.config.Load()
	if cfg == nil || p.Table != pipeline.TableUnreachable {
		return nil, false
	}
	return cfg.WayBack(&p.Match, to)
}

// keepAnswering answers packets to addresses without a pod. Its connection to the switch is its own: neither the owner
// nor the drop log waits for it.
func (r *runner) keepAnswering(ctx context.Context) {
	for ctx.Err() == nil {
		if err := r.answerPackets(ctx); err != nil && ctx.Err() == nil {
			r.log.Debug("packets to addresses without a pod are not answered", "error", err, "retry", retryEvery)
		}
		select {
		case <-time.After(retryEvery):
		case <-ctx.Done():
		}
	}
}

func (r *runner) answerPackets(ctx context.Context) error {
	connectCtx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	s, err := ofctl.ConnectController(
		connectCtx, r.cfg.managementSocket(), pipeline.AnswerController, pipeline.AnswerBytes, r.answers.Packet)
	if err != nil {
		return err
	}
	defer s.Close()
	if err := r.readAnswerMeters(ctx, s); err != nil { // what was before counts for nothing
		return err
	}
	answering, end := context.WithCancel(ctx)
	defer end()
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		r.answers.Run(answering, s.SendPacket)
	}()
	defer func() {
		end()
		_ = s.Close() // ends a write that waits
		<-answered
	}()
	again := time.NewTicker(metersEvery)
	defer again.Stop()
	for {
		select {
		case <-again.C:
			if err := r.readAnswerMeters(ctx, s); err != nil {
				return err
			}
		case <-s.Done():
			return s.Err()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// readAnswerMeters adds up what the switch's meters drop.
func (r *runner) readAnswerMeters(ctx context.Context, s *ofctl.Session) error {
	counts, err := s.MeterCounts(ctx)
	if err != nil {
		return err
	}
	others := func(c ofctl.MeterCount) bool { return !pipeline.IsAnswerMeter(c.ID) }
	r.answers.Metered(slices.DeleteFunc(counts, others))
	return nil
}
