package authority

import (
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/flowkeep/flowkeep/api/identity"
	"github.com/flowkeep/flowkeep/internal/mtls"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// Reviewer knows whose tokens are.
type Reviewer interface {
	Review(ctx context.Context, token string) (*Verdict, error)
}

// Signer signs.
type Signer interface {
	SignNode(node string, key *ecdsa.PublicKey) (der []byte, err error)
}

// DoorConfig is what a door needs.
type DoorConfig struct {
	Reviewer Reviewer
	Signer   Signer
	// ServiceAccount is NAMESPACE:NAME of those who may ask.
	ServiceAccount string
	Logger         *slog.Logger
	Now            func() time.Time    // nil: the clock
	Count          func(result string) // nil: nobody counts
}

// Bounds of what strangers may have of netmaster. Nodes ask every few days; all of them at once where a cluster is new.
const (
	mostConnections = 1024
	mostOfAddress   = 8
	mostReviews     = 16
	mostWaiting     = 5 * time.Second // for one of these
	mostTime        = 15 * time.Second
	addressEvery    = 2 * time.Second
	addressBurst    = 10
	nodeEvery       = 20 * time.Second
	nodeBurst       = 5
	mostRemembered  = 1 << 14
)

// Door gives nodes their certificates. It is safe for concurrent use.
type Door struct {
	identity.UnimplementedIdentityServer
	cfg       DoorConfig
	user      string
	reviews   chan struct{}
	addresses *limiter
	nodes     *limiter
	words     *limiter // of the log
}

// NewDoor makes one.
func NewDoor(cfg DoorConfig) *Door {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Count == nil {
		cfg.Count = func(string) {}
	}
	return &Door{cfg: cfg, user: userPrefix + cfg.ServiceAccount, reviews: make(chan struct{}, mostReviews),
		addresses: newLimiter(addressEvery, addressBurst, mostRemembered), nodes: newLimiter(nodeEvery, nodeBurst, mostRemembered), words: newLimiter(time.Second, 20, 1)}
}

// Counted is the door that counts what becomes of requests, in this keeper's metrics.
func (k *Keeper) Counted(result string) { k.metrics.signed.WithLabelValues(result).Inc() }

// Serve opens the door until ctx ends. Who comes is known by the token, and shows no certificate.
func (d *Door) Serve(ctx context.Context, l net.Listener, own mtls.Source) error {
	cert, err := mtls.Own(own)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	conf := &tls.Config{MinVersion: tls.VersionTLS13, GetCertificate: cert, NextProtos: []string{"h2"}, SessionTicketsDisabled: true}
	g := grpc.NewServer(grpc.Creds(credentials.NewTLS(conf)), grpc.MaxRecvMsgSize(identity.MaxMessage), grpc.MaxConcurrentStreams(2), grpc.MaxHeaderListSize(8<<10),
		grpc.ConnectionTimeout(5*time.Second), grpc.ReadBufferSize(4<<10), grpc.WriteBufferSize(4<<10),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: 5 * time.Second, MaxConnectionAge: mostTime, MaxConnectionAgeGrace: mostTime}))
	identity.RegisterIdentityServer(g, d)
	defer context.AfterFunc(ctx, g.Stop)()
	if err := g.Serve(share(l, mostOfAddress, mostConnections)); ctx.Err() == nil {
		return fmt.Errorf("serve nodes that want certificates: %w", err)
	}
	return nil
}

// Sign gives a node a certificate.
func (d *Door) Sign(ctx context.Context, r *identity.SignRequest) (*identity.SignResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, mostTime)
	defer cancel()
	from := "unknown"
	if p, ok := peer.FromContext(ctx); ok {
		from = addressOf(p.Addr).String()
	}
	node, out, err := d.sign(ctx, from, r)
	d.cfg.Count(resultOf(err))
	switch {
	case err == nil:
		d.cfg.Logger.Info("signed a node's certificate", "node", node, "from", from)
	case d.words.allow("", d.cfg.Now()):
		d.cfg.Logger.Warn("refused a certificate", "from", from, "claimed", node, "code", status.Code(err).String(), "reason", status.Convert(err).Message())
	}
	return out, err
}

func resultOf(err error) string {
	switch status.Code(err) {
	case codes.OK:
		return resultSigned
	case codes.InvalidArgument:
		return resultInvalid
	case codes.Unauthenticated, codes.PermissionDenied:
		return resultRefused
	case codes.ResourceExhausted:
		return resultBusy
	}
	return resultFailed
}

// sign looks at what is cheap to look at first. Node is what the token claims until the API server has vouched for it.
func (d *Door) sign(ctx context.Context, from string, r *identity.SignRequest) (node string, out *identity.SignResponse, err error) {
	now := d.cfg.Now()
	if !d.addresses.allow(from, now) {
		return "", nil, status.Error(codes.ResourceExhausted, "too many ask from this address: ask again later")
	}
	if node, err = claim(r.Token, d.user, now); err != nil {
		return "", nil, status.Error(codes.Unauthenticated, err.Error())
	}
	key, err := mtls.CheckRequest(r.Request, node)
	if err != nil {
		return node, nil, status.Error(codes.InvalidArgument, err.Error())
	}
	verdict, err := d.review(ctx, r.Token)
	if err != nil {
		return node, nil, err
	}
	of, err := vouched(verdict, d.user)
	switch {
	case err != nil && !verdict.Authenticated:
		return node, nil, status.Error(codes.Unauthenticated, err.Error())
	case err != nil:
		return node, nil, status.Error(codes.PermissionDenied, err.Error())
	case of != node:
		return node, nil, status.Errorf(codes.PermissionDenied, "the API server says that the token is of node %s", of)
	case !d.nodes.allow(node, now):
		return node, nil, status.Errorf(codes.ResourceExhausted, "node %s has had several certificates just now: ask again later", node)
	}
	der, err := d.cfg.Signer.SignNode(node, key)
	if err != nil {
		return node, nil, status.Error(codes.Unavailable, err.Error())
	}
	return node, &identity.SignResponse{Certificate: der, NowUnixMs: now.UnixMilli()}, nil
}

// review asks the API server, some at a time.
func (d *Door) review(ctx context.Context, token string) (*Verdict, error) {
	wait := time.NewTimer(mostWaiting)
	defer wait.Stop()
	select {
	case d.reviews <- struct{}{}:
		defer func() { <-d.reviews }()
	case <-wait.C:
		return nil, status.Error(codes.ResourceExhausted, "too many ask at once: ask again")
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	v, err := d.cfg.Reviewer.Review(ctx, token)
	if err != nil {
		d.cfg.Logger.Warn("a token could not be reviewed", "error", err)
		return nil, status.Error(codes.Unavailable, "the API server could not be asked about the token: ask again")
	}
	return v, nil
}
