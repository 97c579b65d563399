package trace

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl/trace"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// Services returns where the switch sends packets to Services, an inspect.NodeServiceTraces as JSON. It is the switch's
// own trace until a group chooses by a hash that the datapath computes. From there on the endpoints are those of the
// pool's slots.
func (r *Tracer) Services(ctx context.Context, packets []policy.Packet) ([]byte, error) {
	if len(packets) > inspect.MostTraces {
		return nil, fmt.Errorf("%d packets to trace: no more than %d at once", len(packets), inspect.MostTraces)
	}
	out := inspect.NodeServiceTraces{Node: r.Node, TranslatedBy: inspect.TranslatedByKubeProxy}
	if !r.Translates {
		return json.Marshal(out)
	}
	out.TranslatedBy, out.ServiceCIDRs = inspect.TranslatedByOVS, r.ServiceCIDRs
	for _, p := range packets {
		t := inspect.ServiceTrace{Node: r.Node, Packet: p, Steps: []inspect.TraceStep{}}
		if err := r.traceService(ctx, &t); err != nil {
			t.Problem = err.Error()
		}
		if t.Problem != "" && ctx.Err() != nil && len(out.Traces) > 0 {
			break // its time is over; the others count
		}
		out.Traces = append(out.Traces, t)
	}
	return json.Marshal(out)
}

func (r *Tracer) traceService(ctx context.Context, t *inspect.ServiceTrace) error {
	var packet string
	var err error
	if doErr := r.Owner.Do(ctx, func() { packet, err = r.Compiler.ProbeService(t.Packet) }); doErr != nil || err != nil {
		if err != nil {
			return err
		}
		return doErr
	}
	read, err := r.traceText(ctx, packet, endServiceTrace...)
	if err != nil {
		return err
	}
	return r.Owner.Do(ctx, func() { r.readServiceTrace(read, t) })
}

// readServiceTrace sets the steps until policies, and their outcome. Call it on the owner goroutine.
func (r *Tracer) readServiceTrace(read *trace.Trace, t *inspect.ServiceTrace) {
	t.Outcome, t.Service = inspect.ServiceUntranslated, r.Compiler.ServiceAt(t.Packet)
	var pool uint32
	chosen := false
	for _, pass := range read.Passes[:min(len(read.Passes), 2)] {
		for i := range pass.Steps {
			s := &pass.Steps[i]
			kind, id, _ := pipeline.ParseCookie(s.Cookie)
			switch {
			case s.Missed && s.Table == pipeline.TableServiceLearned:
				continue // no client that is kept with an endpoint
			case s.Table == pipeline.TableServiceFrontend && kind == pipeline.KindFrontend && id == 0:
				t.Outcome = inspect.ServiceDropped
			case s.Table == pipeline.TableServiceFrontend && kind == pipeline.KindFrontend:
				t.Outcome, pool = inspect.ServiceTranslated, id
			case s.Table == pipeline.TableUnreachable:
				t.Outcome = inspect.ServiceRejected
			case s.Table == pipeline.TableServiceEndpoint && kind == pipeline.KindBackend:
				t.Endpoint, chosen = r.Compiler.EndpointWith(t.Packet.From.Is6(), id)
			}
			t.Steps = append(t.Steps, r.serviceStep(s, kind, t.Service))
		}
	}
	if pool == 0 {
		return
	}
	for _, share := range r.Compiler.Shares(t.Service, pool) {
		t.Endpoints = append(t.Endpoints, inspect.SlotShare{
			Endpoint: share.Endpoint,
			Pod:      r.Owner.PodWith(share.Endpoint.Addr()),
			Slots:    share.Slots,
		})
	}
	if !chosen && len(t.Endpoints) == 1 {
		t.Endpoint = t.Endpoints[0].Endpoint
	}
}

// serviceStep describes a step in the tables of Services. A trace does not have the match by which Describe finds the
// Service.
func (r *Tracer) serviceStep(s *trace.Step, kind pipeline.Kind, id string) inspect.TraceStep {
	out := r.describeStep(s)
	switch kind {
	case pipeline.KindFrontend, pipeline.KindSlot, pipeline.KindBackend:
		out.Note = kind.String() + " of Service " + id
	}
	return out
}
