package authority

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/flowkeep/flowkeep/internal/mtls"
	"github.com/prometheus/client_golang/prometheus"
)

// Stored is an object as it was read; what is written in its place is refused if that has changed since.
type Stored struct {
	Text    []byte // empty: there is nothing
	Version any
}

// Store is where the authority and what is published of it lie.
type Store interface {
	Authority(context.Context) (Stored, error)
	PutAuthority(ctx context.Context, old Stored, text []byte) error
	Published(context.Context) (Stored, error)
	Publish(ctx context.Context, old Stored, text []byte) error
	// Trust has the API server trust netmaster by this bundle.
	Trust(ctx context.Context, bundle []byte) error
	// Skew is by how much the API server's clock was ahead when it last answered.
	Skew() time.Duration
}

// ErrChanged is that somebody else has written in between.
var ErrChanged = errors.New("it was changed by somebody else in between")

// Config is what a keeper needs.
type Config struct {
	Store Store
	Lives Lives
	// Hosts are names and addresses under which netmaster is reached, besides mtls.ServiceName.
	Hosts []string
	// CacheFile keeps netmaster's own certificate, for a start while the API server is away; empty: nothing does.
	CacheFile  string
	Logger     *slog.Logger
	Registerer prometheus.Registerer // nil: nobody counts
	Now        func() time.Time      // nil: the clock
}

const (
	// lookAgain is how often the authority is read, and retryEvery how often while it cannot be.
	lookAgain  = 30 * time.Second
	retryEvery = 3 * time.Second
	// stale is how long certificates are signed by what was last read.
	stale = 10 * time.Minute
	// mostSkew is how far clocks may be apart.
	mostSkew = 5 * time.Minute
	// mostSteps bounds what is done at a time.
	mostSteps = 8
	passTime  = 20 * time.Second
)

// Keeper keeps the authority, and has netmaster's certificate of it. Current, Sign and Problem are safe for concurrent use.
type Keeper struct {
	cfg     Config
	log     *slog.Logger
	metrics metrics
	now     atomic.Pointer[view] // nil: nothing is known yet
	problem atomic.Pointer[string]
	untold  string // why the API server does not trust netmaster, as last told
}

// view is what is known at a time; it is not changed.
type view struct {
	state *State    // nil: only what was cached is known
	read  time.Time // when it was last what the API server has
	mtls.Material
	signer *x509.Certificate // of Own
}

// New makes a keeper that knows nothing yet.
func New(cfg Config) *Keeper {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	k := &Keeper{cfg: cfg, log: cfg.Logger}
	k.metrics = newMetrics(cfg.Registerer, k)
	return k
}

// Current is netmaster's certificate, and whom to trust.
func (k *Keeper) Current() (mtls.Material, error) {
	v := k.now.Load()
	if v == nil {
		return mtls.Material{}, errors.New("netmaster has no certificate yet: " + k.Problem())
	}
	return v.Material, nil
}

// Problem is why the authority is not as it should be; empty while it is.
func (k *Keeper) Problem() string {
	if p := k.problem.Load(); p != nil {
		return *p
	}
	return ""
}

// Open waits until there is a certificate to serve with; that of before a restart will do. Waiting tells why.
func (k *Keeper) Open(ctx context.Context, waiting func(reason string)) error {
	for first := true; ; first = false {
		err := k.pass(ctx)
		if err == nil {
			waiting("")
			return nil
		}
		if first && k.restore() {
			waiting("")
			return nil
		}
		waiting(err.Error())
		if !pause(ctx, retryEvery) {
			return ctx.Err()
		}
	}
}

// Run keeps the authority until ctx ends.
func (k *Keeper) Run(ctx context.Context) {
	for {
		wait := lookAgain
		if k.Problem() != "" {
			wait = retryEvery
		}
		if !pause(ctx, wait/2+rand.N(wait)) {
			return
		}
		_ = k.pass(ctx) // told by itself
	}
}

func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// pass looks at everything once, does what is to be done, and tells what is wrong where that is news.
func (k *Keeper) pass(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, passTime)
	defer cancel()
	err := ErrChanged
	for n := 0; n < mostSteps && errors.Is(err, ErrChanged); n++ {
		err = k.once(ctx)
	}
	before, text := k.Problem(), ""
	if err != nil {
		text = err.Error()
	}
	k.problem.Store(&text)
	switch {
	case text != "" && text != before && ctx.Err() != context.Canceled:
		k.log.Error("the certificate authority is not as it should be", "error", err)
	case text == "" && before != "":
		k.log.Info("the certificate authority is as it should be again")
	}
	return err
}

// once reads what is published before what is to be: a bundle is never written over one that was made of a later state.
func (k *Keeper) once(ctx context.Context) error {
	published, err := k.cfg.Store.Published(ctx)
	if err != nil {
		return fmt.Errorf("read what is published of the authority: %w", err)
	}
	stored, err := k.cfg.Store.Authority(ctx)
	if err != nil {
		return fmt.Errorf("read the authority: %w", err)
	}
	if skew := k.cfg.Store.Skew().Abs(); skew > mostSkew {
		return fmt.Errorf("netmaster's clock and the API server's differ by %s: set them right; until then nothing is signed or rotated", skew.Round(time.Second))
	}
	state, err := k.known(stored, published)
	if err != nil {
		return err
	}
	next := state
	if len(stored.Text) > 0 {
		list, _ := mtls.ParseBundle(published.Text)
		var what string
		if next, what, err = state.step(k.cfg.Now(), k.cfg.Lives, list); err != nil {
			return err
		}
		if next != state {
			k.log.Info("the certificate authority moves on", "what", what)
		}
	}
	if next != state || len(stored.Text) == 0 {
		text, err := next.encode()
		if err == nil {
			err = k.cfg.Store.PutAuthority(ctx, stored, text)
		}
		if err != nil {
			return fmt.Errorf("write the authority: %w", err)
		}
	}
	bundle := mtls.Encode(next.Bundle()...)
	if !bytes.Equal(bundle, published.Text) {
		if err := k.cfg.Store.Publish(ctx, published, bundle); err != nil {
			return fmt.Errorf("publish the authority: %w", err)
		}
	}
	if err := k.adopt(next); err != nil {
		return err
	}
	k.trust(ctx, bundle)
	return nil
}

// known is the authority, which there is, is put back, or is made: the last only where none was ever published.
func (k *Keeper) known(stored, published Stored) (*State, error) {
	var memory *State
	if v := k.now.Load(); v != nil {
		memory = v.state
	}
	if len(stored.Text) == 0 {
		switch {
		case memory != nil:
			k.log.Error("the Secret of the authority was emptied; netmaster puts back what it knows")
			return memory, nil
		case len(bytes.TrimSpace(published.Text)) > 0:
			return nil, errLost
		}
		a, err := mtls.NewAuthority(k.cfg.Now(), k.cfg.Lives.Authority)
		if err != nil {
			return nil, err
		}
		k.log.Info("a certificate authority is made")
		return &State{Signing: a, Longest: k.cfg.Lives.Leaf}, nil
	}
	state, err := parse(stored.Text)
	if err != nil {
		return nil, fmt.Errorf("the Secret of the authority was changed by hand: %w; put it back as it was, or make nodes trust another with: netmaster pki rotate --lost", err)
	}
	list, err := mtls.ParseBundle(published.Text)
	if err == nil && len(list) > 0 && !mtls.Among(list, state.Signing.Cert) && (memory == nil || !mtls.Among(memory.Bundle(), state.Signing.Cert)) {
		return nil, errForeign
	}
	return state, nil
}

var (
	errLost    = errors.New("the Secret of the authority is gone, and nodes trust the one that it held: put the Secret back from a backup, or make nodes trust another with: netmaster pki rotate --lost")
	errForeign = errors.New("the Secret of the authority holds one that nodes were never told to trust: put it back as it was, or make nodes trust another with: netmaster pki rotate --lost")
)

// adopt uses a state that is published.
func (k *Keeper) adopt(s *State) error {
	now := k.cfg.Now()
	v := &view{state: s, read: now}
	if old := k.now.Load(); old != nil {
		v.Material, v.signer = old.Material, old.signer
	}
	v.Trusted = mtls.Pool(s.Bundle())
	if v.signer == nil || !v.signer.Equal(s.Signing.Cert) || !now.Before(renewal(v.Own.Leaf)) {
		own, err := mtls.NewServer(s.Signing, k.cfg.Hosts, now, min(k.cfg.Lives.Leaf, s.Longest))
		if err != nil {
			return fmt.Errorf("make netmaster's certificate: %w", err)
		}
		v.Own, v.signer = own, s.Signing.Cert
		k.now.Store(v)
		k.log.Info("netmaster has a new certificate", "expires", own.Leaf.NotAfter.UTC().Format(time.RFC3339))
		k.save(v)
		return nil
	}
	old := k.now.Swap(v)
	if old.state == nil || !bytes.Equal(mtls.Encode(old.state.Bundle()...), mtls.Encode(s.Bundle()...)) {
		k.save(v)
	}
	return nil
}

// trust is not worth more than a warning: netctl comes with --server, and dry runs warn of nothing.
func (k *Keeper) trust(ctx context.Context, bundle []byte) {
	text := ""
	if err := k.cfg.Store.Trust(ctx, bundle); err != nil {
		text = err.Error()
	}
	if text != "" && text != k.untold {
		k.log.Warn("the API server was not told by which authority to know netmaster", "error", text)
	}
	k.untold = text
}

// errNotNow is why nothing can be signed for a while.
var errNotNow = errors.New("netmaster has no authority to sign with")

// SignNode makes the certificate of a node.
func (k *Keeper) SignNode(node string, key *ecdsa.PublicKey) (der []byte, err error) {
	v, now := k.now.Load(), k.cfg.Now()
	if v == nil || v.state == nil {
		return nil, fmt.Errorf("%w yet: %s", errNotNow, k.Problem())
	}
	if age := now.Sub(v.read); age > stale {
		return nil, fmt.Errorf("%w: it could not look at it for %s: %s", errNotNow, age.Round(time.Second), k.Problem())
	}
	return v.state.Signing.SignNode(node, key, now, min(k.cfg.Lives.Leaf, v.state.Longest))
}
