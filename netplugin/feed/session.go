package feed

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/flowkeep/flowkeep/api/feed"
	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"google.golang.org/grpc"
)

// session is one stream.
type session struct {
	client  *Client
	stream  grpc.BidiStreamingClient[feed.NodeMessage, feed.MasterMessage]
	posts   chan *feed.NodeMessage
	queries chan struct{} // a place for each that is being answered
	streams *streams
}

// maxQueries is how many questions are answered at a time.
const maxQueries = 8

func (s *session) hello(ctx context.Context) error {
	cfg := &s.client.cfg
	revision, held, announced, err := cfg.Handler.State(ctx)
	if err != nil {
		return err
	}
	h := wire.Hello{Node: cfg.Node, Program: cfg.Version, TrafficMode: cfg.TrafficMode, MinVersion: feed.MinVersion, MaxVersion: feed.MaxVersion,
		Revision: revision, Held: held, Announced: announced}
	for part := range wire.HelloParts(&h) {
		if err := s.stream.Send(part); err != nil {
			return s.reason(err)
		}
	}
	return nil
}

// welcome waits for netmaster to accept the node.
func (s *session) welcome(server string) error {
	m, err := s.stream.Recv()
	if err != nil {
		return err
	}
	w := m.GetWelcome()
	if w == nil {
		return errors.New("netmaster's first message is no welcome: it is of another version")
	}
	if err := wire.CheckWelcome(w); err != nil {
		return err
	}
	s.client.setConnected()
	s.client.cfg.Logger.Info("connected to netmaster", "server", server, "version", w.ProgramVersion, "protocol", w.Version)
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
	for {
		var messages []*feed.NodeMessage
		select {
		case <-ctx.Done():
			return nil
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

func (s *session) receive(ctx context.Context) error {
	var updates wire.UpdateAssembler
	for {
		m, err := s.stream.Recv()
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
	errs, err := s.client.cfg.Handler.Update(ctx, u)
	if err != nil {
		return err
	}
	return s.post(ctx, wire.FromAck(&wire.Ack{Revision: u.Revision, Errors: errs}))
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
