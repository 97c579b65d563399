package feed

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flowkeep/flowkeep/api/feed"
	"github.com/flowkeep/flowkeep/internal/lease"
	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// oneTerm is of a Lease that is renewed as soon as somebody asks.
type oneTerm struct {
	epoch uint64
	over  atomic.Bool
}

func (t *oneTerm) Epoch() uint64 { return t.epoch }
func (t *oneTerm) Valid() bool   { return !t.over.Load() }
func (t *oneTerm) Confirm(context.Context, bool) (uint64, time.Duration, error) {
	if t.over.Load() {
		return 0, 0, errors.New("over")
	}
	return t.epoch, 3 * time.Second, nil
}
func (t *oneTerm) Above(context.Context, uint64) error { return nil }
func (t *oneTerm) Changed() <-chan struct{}            { return nil }

// terms is a netmaster that leads, or not.
type terms struct{ now atomic.Pointer[oneTerm] }

func (l *terms) Term() (lease.Term, string) {
	if t := l.now.Load(); t != nil {
		return t, ""
	}
	return nil, "standby"
}

func (*terms) Await(context.Context) {}

// line is a stream of a node that takes so many messages and then none.
type line struct {
	grpc.ServerStream
	ctx  context.Context
	in   chan *feed.NodeMessage
	done chan error

	mu    sync.Mutex
	takes int
	took  []*feed.MasterMessage
}

func (l *line) Context() context.Context { return l.ctx }

func (l *line) Recv() (*feed.NodeMessage, error) {
	select {
	case m, open := <-l.in:
		if !open {
			return nil, io.EOF
		}
		return m, nil
	case <-l.ctx.Done():
		return nil, l.ctx.Err()
	}
}

func (l *line) Send(m *feed.MasterMessage) error {
	l.mu.Lock()
	full := len(l.took) == l.takes
	if !full {
		l.took = append(l.took, m)
	}
	l.mu.Unlock()
	if full {
		<-l.ctx.Done()
		return l.ctx.Err()
	}
	return nil
}

func (l *line) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.took)
}

// dial opens a stream. As gRPC does, its context ends when the handler has returned.
func dial(s *Server, node string, takes int) *line {
	cert := &x509.Certificate{Subject: pkix.Name{CommonName: "flowkeep:node:" + node}}
	ctx := peer.NewContext(context.Background(), &peer.Peer{AuthInfo: credentials.TLSInfo{State: tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{cert}}}}})
	ctx, cancel := context.WithCancel(ctx)
	l := &line{ctx: ctx, in: make(chan *feed.NodeMessage, 8), done: make(chan error, 1), takes: takes}
	go func() {
		defer cancel()
		l.done <- s.Stream(l)
	}()
	return l
}

func (l *line) hello(node string) {
	for part := range wire.HelloParts(&wire.Hello{Node: node, Program: "test", Versions: wire.Own()}) {
		l.in <- part
	}
}

// TestDismiss_EndsAllStreams: whatever a stream does when the term ends, it is over when Dismiss returns, and hears nothing of the next term.
func TestDismiss_EndsAllStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var heard atomic.Int64
		leads := &terms{}
		s := NewServer(Config{Logger: slog.New(slog.DiscardHandler), Leader: leads, Events: func(ctx context.Context, ev Event) error {
			if heard.Add(1); ev.Node == "waits" && !ev.Gone { // as for other nodes
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}})
		s.Ready()
		if err := <-dial(s, "early", 9).done; status.Code(err) != codes.Unavailable {
			t.Errorf("a standby says %v", err)
		}
		for epoch := range uint64(20) {
			term := &oneTerm{epoch: epoch + 1}
			leads.now.Store(term)
			all := map[string]*line{"silent": dial(s, "silent", 9)}
			for node, takes := range map[string]int{"unwelcome": 0, "stuck": 1, "waits": 9, "well": 9, "twice": 9} {
				all[node] = dial(s, node, takes)
				all[node].hello(node)
			}
			again := dial(s, "twice", 9)
			again.hello("twice")
			all["again"] = again
			all["half"] = dial(s, "half", 9)
			all["half"].in <- part("half")
			synctest.Wait()
			all["half again"] = dial(s, "half", 9)
			synctest.Wait()
			if w := all["well"]; w.count() < 2 || w.took[0].GetWelcome().GetEpoch() != epoch+1 {
				t.Fatalf("epoch %d: the node was sent %v", epoch+1, w.took)
			}
			welcome := all["well"].count()
			term.over.Store(true) // it stood still, and nobody has told it yet
			s.SetNodes([]policy.NodeInfo{{Name: fmt.Sprint("new", epoch)}})
			all["well"].in <- wire.FromBeat(1)
			synctest.Wait()
			if all["well"].count() != welcome {
				t.Error("the node was sent something by who does not lead")
			}
			leads.now.Store(nil)
			began := time.Now()
			if s.Dismiss(); time.Since(began) > lingerTime/2 {
				t.Errorf("it took %s", time.Since(began))
			}
			counts, told := map[string]int{}, heard.Load()
			for node, l := range all {
				counts[node] = l.count()
				select {
				case err := <-l.done:
					if code := status.Code(err); code != codes.Unavailable && code != codes.Aborted {
						t.Errorf("%s was told %v", node, err)
					}
				default:
					t.Errorf("%s: the stream has not ended", node)
				}
			}
			leads.now.Store(&oneTerm{epoch: epoch + 2})
			synctest.Wait()
			for node, l := range all {
				if l.count() != counts[node] {
					t.Errorf("%s was sent something after its term", node)
				}
			}
			if heard.Load() != told || len(s.conns)+len(s.claims)+len(s.sessions) > 0 {
				t.Errorf("%d events after the end, %d connections, %d claims, %d guests", heard.Load()-told, len(s.conns), len(s.claims), len(s.sessions))
			}
		}
	})
}
