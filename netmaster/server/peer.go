package server

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/internal/mtls"
	answers "github.com/flowkeep/flowkeep/netmaster/query"
	"github.com/flowkeep/flowkeep/policydb/labelcache"
	"golang.org/x/sync/singleflight"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
)

const (
	// stateTTL is how long the leader's state is used after it was queried.
	stateTTL     = time.Second
	stateTimeout = time.Second
)

// peer connects a standby to the leader, at the address that the leader publishes (watch.Roster). Safe for
// concurrent use.
type peer struct {
	s     *server
	calls singleflight.Group // concurrent callers share one, and its error

	mu       sync.Mutex // not held during a call
	isClosed bool
	identity string // of the leader that conn is connected to
	conn     *grpc.ClientConn
	state    labelcache.Stamp
	queried  time.Time // time of state
}

// peerOf returns nil without an election, or if leaders publish no address.
func (s *server) peerOf() *peer {
	if s.cfg.Election == nil || s.cfg.Roster == nil {
		return nil
	}
	return &peer{s: s}
}

// shared runs a call that concurrent callers of one key share, and returns its result, or an error when ctx ends first.
func shared[T any](ctx context.Context, p *peer, key string, call func(context.Context) (T, error)) (out T, err error) {
	result := p.calls.DoChan(key, func() (any, error) { return call(context.WithoutCancel(ctx)) })
	select {
	case r := <-result:
		out, _ = r.Val.(T)
		return out, r.Err
	case <-ctx.Done():
		return out, status.FromContextError(ctx.Err()).Err()
	}
}

// connection returns a connection to the present leader.
func (p *peer) connection(ctx context.Context) (*grpc.ClientConn, error) {
	leader := p.s.cfg.Election.Leader()
	if p.s.now.Load() != nil || leader == "" {
		return nil, status.Error(codes.Unavailable, "this netmaster does not respond: "+p.s.standby())
	}
	if conn := p.connectedTo(leader); conn != nil {
		return conn, nil
	}
	return shared(ctx, p, "connect "+leader, func(ctx context.Context) (*grpc.ClientConn, error) {
		if conn := p.connectedTo(leader); conn != nil {
			return conn, nil
		}
		return p.connect(ctx, leader)
	})
}

// connectedTo returns the connection if it is one to a leader, else nil.
func (p *peer) connectedTo(leader string) *grpc.ClientConn {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.identity != leader {
		return nil
	}
	return p.conn
}

// connect connects to a leader in place of the former one.
func (p *peer) connect(ctx context.Context, leader string) (*grpc.ClientConn, error) {
	address, err := p.s.cfg.Roster.AddressOf(ctx, leader)
	if err != nil {
		return nil, status.Errorf(codes.Unavailable, "standby; the leader %s is not reached: %v", leader, err)
	}
	config, err := mtls.ClientConfig(p.s.cfg.TLS, mtls.ServiceName)
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	alive := grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second})
	tls := grpc.WithTransportCredentials(credentials.NewTLS(config))
	conn, err := grpc.NewClient("passthrough:///"+address, tls, alive)
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.isClosed || p.s.cfg.Election.Leader() != leader { // there may be a connection to the new one
		_ = conn.Close()
		return nil, status.Error(codes.Unavailable, "standby; the leader has changed, or this netmaster ends")
	}
	p.drop()
	p.identity, p.conn = leader, conn
	return conn, nil
}

// drop closes the connection. It is called with p.mu held.
func (p *peer) drop() {
	if p.conn != nil {
		_ = p.conn.Close()
	}
	p.identity, p.conn, p.queried = "", nil, time.Time{}
}

// leader returns the peer as an interface; nil if there is none.
func (p *peer) leader() answers.Leader {
	if p == nil {
		return nil
	}
	return p
}

// identity returns this netmaster's name in the election.
func (s *server) identity() string {
	if s.cfg.Roster == nil {
		return ""
	}
	return s.cfg.Roster.Identity
}

func (p *peer) close() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.isClosed = true
	p.drop()
}

// State implements query.Leader. Concurrent callers share one query, and its error.
func (p *peer) State(ctx context.Context) (labelcache.Stamp, error) {
	conn, err := p.connection(ctx)
	if err != nil {
		return labelcache.Stamp{}, err
	}
	if state, ok := p.recent(conn); ok {
		return state, nil
	}
	key := fmt.Sprintf("state of %p", conn)
	return shared(ctx, p, key, func(ctx context.Context) (labelcache.Stamp, error) { return p.queryState(ctx, conn) })
}

// recent returns the state that was queried by a connection less than stateTTL ago.
func (p *peer) recent(conn *grpc.ClientConn) (state labelcache.Stamp, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state, p.conn == conn && !p.queried.IsZero() && time.Since(p.queried) < stateTTL
}

func (p *peer) queryState(ctx context.Context, conn *grpc.ClientConn) (labelcache.Stamp, error) {
	if state, ok := p.recent(conn); ok {
		return state, nil
	}
	ctx, cancel := context.WithTimeout(ctx, stateTimeout)
	defer cancel()
	began := time.Now()
	st, err := inspect.Ask[inspect.State](ctx, conn, inspect.Question{Kind: inspect.AskState})
	if err != nil {
		return labelcache.Stamp{}, p.unreached(err)
	}
	state := labelcache.Stamp{Epoch: st.Epoch, Term: st.Term, Revision: st.Revision, Standing: st.Standing}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conn == conn {
		p.state, p.queried = state, began
	}
	return state, nil
}

// unreached adds the leader's identity to an error of the connection.
func (p *peer) unreached(err error) error {
	if status.Code(err) == codes.Unavailable {
		return status.Errorf(codes.Unavailable, "standby; the leader %s: %s", p.s.cfg.Election.Leader(),
			status.Convert(err).Message())
	}
	return err
}

// Ask implements query.Leader.
func (p *peer) Ask(ctx context.Context, q *inspect.Question) (*inspect.Answer, error) {
	conn, err := p.connection(ctx)
	if err != nil {
		return nil, err
	}
	a, err := inspect.AskRaw(ctx, conn, q)
	if err != nil {
		return nil, p.unreached(err)
	}
	return a, nil
}

// Follow implements query.Leader.
func (p *peer) Follow(ctx context.Context, q *inspect.Question, send func(*inspect.Answer) error) error {
	conn, err := p.connection(ctx)
	if err != nil {
		return err
	}
	return p.unreached(inspect.FollowRaw(ctx, conn, q, send))
}
