package feed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/api/feed"
	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// session is one stream.
type session struct {
	client          *Client
	stream          grpc.BidiStreamingClient[feed.NodeMessage, feed.MasterMessage]
	posts           chan *feed.NodeMessage
	nodes, services arrival
	queries         chan struct{} // a place for each that is being answered
	streams         *streams
	arrived         chan *feed.MasterMessage // but promises, which wait for nothing
	obeyed          uint64
	said            time.Duration // when the hello was said

	mu      sync.Mutex
	trust   trust
	held    time.Duration // until then a leader that is fenced has the stream kept
	changed chan struct{} // has an element when trust was prolonged
}

// mostArrived is how many messages may wait for one that is being taken over.
const mostArrived = 256

// maxQueries is how many questions are answered at a time.
const maxQueries = 8

func (s *session) hello(ctx context.Context) error {
	cfg := &s.client.cfg
	have, err := cfg.Handler.State(ctx, func() { s.client.setOpen(true) })
	if err != nil {
		return err
	}
	s.obeyed = have.Epoch
	h := wire.Hello{Node: cfg.Node, Program: cfg.Version, TrafficMode: cfg.TrafficMode, Versions: cfg.Versions,
		Revision: have.Revision, Epoch: have.Epoch, Held: have.Held, Announced: have.Announced}
	h.Nodes = s.client.nodes.Sums()
	h.Links = s.client.linksNow()
	if cfg.Services != nil {
		h.Services = cfg.Services.Sums()
	}
	for part := range wire.HelloParts(&h) {
		s.said = cfg.clock()
		if err := s.stream.Send(part); err != nil {
			return s.reason(err)
		}
	}
	return nil
}

// welcome waits for netmaster to accept the node.
func (s *session) welcome(ctx context.Context, server string) error {
	m, err := s.stream.Recv()
	if err != nil {
		return err
	}
	w := m.GetWelcome()
	if w == nil {
		return errors.New("netmaster's first message is no welcome: it is of another version")
	}
	cfg := &s.client.cfg
	if err := wire.CheckWelcome(w, cfg.Versions); err != nil {
		return err
	}
	if err := mayObey(s.obeyed, w.Epoch, cfg.ObeyUnelected); err != nil {
		return status.Error(codes.FailedPrecondition, err.Error())
	}
	s.trust = welcomed(w.Epoch, s.said, time.Duration(w.ValidMs)*time.Millisecond)
	if err := s.led(); err != nil {
		return err
	}
	if err := cfg.Handler.Obey(ctx, w.Epoch); err != nil {
		return err
	}
	s.client.setConnected()
	cfg.Logger.Info("connected to netmaster", "server", server, "version", w.ProgramVersion, "protocol", w.Version, "epoch", w.Epoch)
	return nil
}

// led says why what came is not to be obeyed any more; nil while it is.
func (s *session) led() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.trust.holds(s.client.cfg.clock()) {
		return nil
	}
	return errSilent
}

var errSilent = errors.New("netmaster has not said in time that it still leads: another may")

// left returns how long the leader's term is still valid; bounded is false if it has no end.
func (s *session) left() (d time.Duration, bounded bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return max(0, max(s.trust.until, s.held)-s.client.cfg.clock()), s.trust.bounded
}

// maxHold is for how long at most a stream is kept whose leader is not certain to lead.
const maxHold = 12 * time.Second

// hold keeps the stream while its leader is fenced. Nothing that comes is taken over before the leader is certain
// again.
func (s *session) hold(in *feed.Fenced) {
	s.mu.Lock()
	defer s.mu.Unlock()
	until := s.client.cfg.clock() + time.Duration(in.HoldMs)*time.Millisecond
	s.held = max(s.held, min(until, s.trust.until+maxHold))
	s.rouse()
}

// rouse wakes what waits for the leader. The lock is held.
func (s *session) rouse() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// awaitLed returns when the leader is certain to lead; it fails when the stream is not kept any longer.
func (s *session) awaitLed(ctx context.Context) error {
	for {
		err := s.led()
		left, _ := s.left()
		if err == nil || left == 0 {
			return err
		}
		timer := time.NewTimer(left)
		select {
		case <-s.changed:
		case <-timer.C:
		case <-ctx.Done():
			err = ctx.Err()
		}
		if timer.Stop(); ctx.Err() != nil {
			return err
		}
	}
}

// ask returns the next beat.
func (s *session) ask() *feed.NodeMessage {
	s.mu.Lock()
	defer s.mu.Unlock()
	return wire.FromBeat(s.trust.ask(s.client.cfg.clock()))
}

func (s *session) promised(in *feed.Trust) error {
	number, valid, err := wire.ToTrust(in)
	if err != nil {
		return refused(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.trust.answered(number, valid); err != nil {
		return refused(err)
	}
	s.rouse()
	return nil
}

// reason asks the stream why sending failed: Send itself only tells io.EOF.
func (s *session) reason(err error) error {
	for errors.Is(err, io.EOF) {
		if _, why := s.stream.Recv(); why != nil {
			return why
		}
	}
	return err
}

func (s *session) send(ctx context.Context) error {
	var beats <-chan time.Time
	if _, bounded := s.left(); bounded {
		every := time.NewTicker(beatEvery)
		defer every.Stop()
		beats = every.C
	}
	for {
		var messages []*feed.NodeMessage
		select {
		case <-ctx.Done():
			return nil
		case why := <-s.client.again:
			return fmt.Errorf("starting a new session: %s", why)
		case <-beats:
			messages = append(messages, s.ask())
		case <-s.client.wake:
			messages = s.client.takeOutbox()
		case m := <-s.posts:
			messages = append(messages, m)
		}
		for _, m := range messages {
			err := s.stream.Send(m)
			if errors.Is(err, io.EOF) { // the receiver is told why
				<-ctx.Done()
				return nil
			}
			if err != nil {
				return fmt.Errorf("send: %w", err)
			}
		}
	}
}

// read takes promises over as they come, and leaves all else to receive.
func (s *session) read(ctx context.Context) error {
	for {
		m, err := s.stream.Recv()
		if err != nil {
			return err
		}
		if t := m.GetTrust(); t != nil {
			if err := s.promised(t); err != nil {
				return err
			}
			continue
		}
		if f := m.GetFenced(); f != nil {
			s.hold(f)
			continue
		}
		select {
		case s.arrived <- m:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// next returns the next message, or an error when the leader's term ends before.
func (s *session) next(ctx context.Context) (*feed.MasterMessage, error) {
	var end <-chan time.Time
	left, bounded := s.left()
	timer := time.NewTimer(left)
	defer timer.Stop()
	for {
		if bounded {
			left, _ = s.left()
			timer.Reset(left)
			end = timer.C
		}
		select {
		case m := <-s.arrived:
			return m, s.awaitLed(ctx)
		case <-s.changed:
		case <-end:
			if left, _ = s.left(); left == 0 {
				return nil, errSilent
			}
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (s *session) receive(ctx context.Context) error {
	var updates wire.UpdateAssembler
	for {
		m, err := s.next(ctx)
		if err != nil {
			return err
		}
		switch said := m.Message.(type) {
		case *feed.MasterMessage_Update:
			update, whole, err := updates.Add(said.Update)
			if err != nil {
				return refused(err)
			}
			if whole {
				err = s.realise(ctx, update)
			}
			if err != nil {
				return err
			}
		case *feed.MasterMessage_Nodes:
			infos, err := wire.ToNodes(said.Nodes)
			if err != nil {
				return refused(err)
			}
			if err := s.client.cfg.Handler.Nodes(ctx, infos); err != nil {
				return err
			}
		case *feed.MasterMessage_Keyed:
			if err := s.keyed(ctx, said.Keyed); err != nil {
				return err
			}
		case *feed.MasterMessage_Query:
			if said.Query.Window > 0 {
				s.follow(ctx, said.Query)
			} else {
				s.query(ctx, said.Query)
			}
		case *feed.MasterMessage_Grant:
			s.streams.grant(said.Grant)
		}
	}
}

// refused ends the session: the node goes on with what it had.
func refused(err error) error {
	return fmt.Errorf("netmaster sent what makes no sense and is not taken over: %w", err)
}

func (s *session) realise(ctx context.Context, u policy.NodeUpdate) error {
	for {
		err := s.client.cfg.Handler.Update(ctx, u, s.led, func(errs []wire.RuleError) {
			if ctx.Err() == nil { // else it would be a message of the next stream
				s.client.Report(wire.Ack{Revision: u.Revision, Errors: errs})
			}
		})
		if !errors.Is(err, errSilent) { // else it changed nothing, and is in force when the leader is certain again
			return err
		}
		if err := s.awaitLed(ctx); err != nil {
			return err
		}
	}
}

func (s *session) post(ctx context.Context, m *feed.NodeMessage) error {
	select {
	case s.posts <- m:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// query answers without holding updates up.
func (s *session) query(ctx context.Context, q *feed.Query) {
	select {
	case s.queries <- struct{}{}:
	default:
		_ = s.post(ctx, wire.FromReplyError(q.Id, fmt.Errorf("node %s is answering %d other questions: ask again", s.client.cfg.Node, maxQueries)))
		return
	}
	go func() {
		defer func() { <-s.queries }()
		body, err := s.client.cfg.Handler.Query(ctx, q.Body)
		if err != nil {
			_ = s.post(ctx, wire.FromReplyError(q.Id, err))
			return
		}
		for part := range wire.ReplyParts(q.Id, body) {
			if s.post(ctx, part) != nil {
				return
			}
		}
	}()
}
