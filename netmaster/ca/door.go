package ca

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
	"github.com/flowkeep/flowkeep/internal/limit"
	"github.com/flowkeep/flowkeep/internal/mtls"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// Reviewer reviews tokens.
type Reviewer interface {
	Review(ctx context.Context, token string) (*Verdict, error)
}

// Signer signs certificates of nodes.
type Signer interface {
	SignNode(node string, key *ecdsa.PublicKey) (der []byte, err error)
}

// DoorConfig configures a Door.
type DoorConfig struct {
	Reviewer Reviewer
	Signer   Signer
	// ServiceAccount is the NAMESPACE:NAME that may request certificates.
	ServiceAccount string
	Logger         *slog.Logger
	Now            func() time.Time    // nil: time.Now
	Count          func(result string) // nil: not counted
}

// Limits of unauthenticated clients. Nodes request certificates every few days, in a new cluster all at once.
const (
	maxConnections    = 1024
	maxOfAddress      = 8
	maxReviews        = 16
	reviewWaitTimeout = 5 * time.Second // for a review
	signTimeout       = 15 * time.Second
	addressInterval   = 2 * time.Second
	addressBurst      = 10
	nodeInterval      = 20 * time.Second
	nodeBurst         = 5
	maxRemembered     = 1 << 14
)

// Door issues certificates to nodes. Safe for concurrent use.
type Door struct {
	identity.UnimplementedIdentityServer
	cfg       DoorConfig
	user      string
	reviews   chan struct{}
	addresses *limit.Rate
	nodes     *limit.Rate
	logRate   *limit.Rate // limits log lines
}

// NewDoor returns a Door.
func NewDoor(cfg DoorConfig) *Door {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Count == nil {
		cfg.Count = func(string) {}
	}
	return &Door{cfg: cfg, user: userPrefix + cfg.ServiceAccount, reviews: make(chan struct{}, maxReviews),
		addresses: limit.NewRate(addressInterval, addressBurst, maxRemembered),
		nodes:     limit.NewRate(nodeInterval, nodeBurst, maxRemembered), logRate: limit.NewRate(time.Second, 20, 1)}
}

// Counted counts results of certificate requests in the keeper's metrics.
func (k *Keeper) Counted(result string) { k.metrics.signed.WithLabelValues(result).Inc() }

// Serve serves certificate requests until ctx ends. Clients authenticate by token, without a certificate.
func (d *Door) Serve(ctx context.Context, l net.Listener, own mtls.Source) error {
	cert, err := mtls.Own(own)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	conf := &tls.Config{
		MinVersion:             tls.VersionTLS13,
		GetCertificate:         cert,
		NextProtos:             []string{"h2"},
		SessionTicketsDisabled: true,
	}
	g := grpc.NewServer(
		grpc.Creds(credentials.NewTLS(conf)),
		grpc.MaxRecvMsgSize(identity.MaxMessage),
		grpc.MaxConcurrentStreams(2),
		grpc.MaxHeaderListSize(8<<10),
		grpc.ConnectionTimeout(5*time.Second),
		grpc.ReadBufferSize(4<<10),
		grpc.WriteBufferSize(4<<10),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionIdle:     5 * time.Second,
			MaxConnectionAge:      signTimeout,
			MaxConnectionAgeGrace: signTimeout,
		}),
	)
	identity.RegisterIdentityServer(g, d)
	defer context.AfterFunc(ctx, g.Stop)()
	if err := g.Serve(limit.Listen(l, limit.Bounds{Each: maxOfAddress, Unknown: maxConnections})); ctx.Err() == nil {
		return fmt.Errorf("serve certificate requests: %w", err)
	}
	return nil
}

// Sign issues a certificate to a node.
func (d *Door) Sign(ctx context.Context, r *identity.SignRequest) (*identity.SignResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, signTimeout)
	defer cancel()
	from := "unknown"
	if p, ok := peer.FromContext(ctx); ok {
		from = limit.AddressOf(p.Addr).String()
	}
	node, out, err := d.sign(ctx, from, r)
	d.cfg.Count(resultOf(err))
	switch {
	case err == nil:
		d.cfg.Logger.Info("signed a node's certificate", "node", node, "from", from)
	case d.logRate.Allow("", d.cfg.Now()):
		d.cfg.Logger.Warn("refused a certificate", "from", from, "claimed", node, "code", status.Code(err).String(),
			"reason", status.Convert(err).Message())
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

// sign performs cheap checks first. On an error, node is the unverified claim of the token.
func (d *Door) sign(ctx context.Context, from string,
	r *identity.SignRequest) (node string, out *identity.SignResponse, err error) {
	now := d.cfg.Now()
	if !d.addresses.Allow(from, now) {
		return "", nil, status.Error(codes.ResourceExhausted, "too many requests from this address: retry later")
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
	case !d.nodes.Allow(node, now):
		return node, nil, status.Errorf(codes.ResourceExhausted,
			"node %s has received several certificates recently: retry later", node)
	}
	der, err := d.cfg.Signer.SignNode(node, key)
	if err != nil {
		return node, nil, status.Error(codes.Unavailable, err.Error())
	}
	return node, &identity.SignResponse{Certificate: der, NowUnixMs: now.UnixMilli()}, nil
}

// review sends a token review to the API server, with limited concurrency.
func (d *Door) review(ctx context.Context, token string) (*Verdict, error) {
	wait := time.NewTimer(reviewWaitTimeout)
	defer wait.Stop()
	select {
	case d.reviews <- struct{}{}:
		defer func() { <-d.reviews }()
	case <-wait.C:
		return nil, status.Error(codes.ResourceExhausted, "too many concurrent requests: retry")
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	v, err := d.cfg.Reviewer.Review(ctx, token)
	if err != nil {
		d.cfg.Logger.Warn("a token could not be reviewed", "error", err)
		return nil, status.Error(codes.Unavailable, "the API server could not review the token: retry")
	}
	return v, nil
}
