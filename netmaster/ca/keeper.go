package ca

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

// Stored is an object as read. Replacing it fails if the object has changed since.
type Stored struct {
	Text    []byte // empty: does not exist
	Version any
}

// Store stores the CA and what is published of it.
type Store interface {
	Authority(context.Context) (Stored, error)
	PutAuthority(ctx context.Context, old Stored, text []byte) error
	Published(context.Context) (Stored, error)
	Publish(ctx context.Context, old Stored, text []byte) error
	// Trust sets the CA bundle by which the API server verifies netmaster.
	Trust(ctx context.Context, bundle []byte) error
	// Skew returns how far the API server's clock was ahead at its last response.
	Skew() time.Duration
}

// ErrChanged is the error of a write that conflicts with another.
var ErrChanged = errors.New("another process changed it meanwhile")

// Config configures a Keeper.
type Config struct {
	Store Store
	Lives Lives
	// Hosts are netmaster's names and addresses, in addition to mtls.ServiceName.
	Hosts []string
	// CacheFile stores netmaster's own certificate for a restart while the API server is unavailable; empty:
	// disabled.
	CacheFile  string
	Logger     *slog.Logger
	Registerer prometheus.Registerer // nil: no metrics
	Now        func() time.Time      // nil: time.Now
}

const (
	// readInterval is the interval of reading the CA, and retryInterval the interval while that fails.
	readInterval  = 30 * time.Second
	retryInterval = 3 * time.Second
	// maxStateAge is the maximum age of the CA's state for signing certificates.
	maxStateAge = 10 * time.Minute
	// maxSkew is the maximum difference of clocks.
	maxSkew = 5 * time.Minute
	// maxSteps limits the retries in one pass.
	maxSteps    = 8
	passTimeout = 20 * time.Second
)

// Keeper maintains the CA and netmaster's certificate. Current, Sign and Problem are safe for concurrent use.
type Keeper struct {
	cfg          Config
	log          *slog.Logger
	metrics      metrics
	now          atomic.Pointer[view] // nil: nothing read yet
	problem      atomic.Pointer[string]
	trustProblem string // last logged error of updating the API server's CA bundle
}

// view is an immutable copy of what is known.
type view struct { // nil: only the cached certificate is known
	state *State    // when state last equalled the API server's
	read  time.Time // when it was last what the API server has
	mtls.Material
	signer   *x509.Certificate // of Own
	cacheKey []byte            // derived from state
}

// New returns a keeper. Call Open before other methods.
func New(cfg Config) *Keeper {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	k := &Keeper{cfg: cfg, log: cfg.Logger}
	k.metrics = newMetrics(cfg.Registerer, k)
	return k
}

// Current returns netmaster's certificate and the CA bundle.
func (k *Keeper) Current() (mtls.Material, error) {
	v := k.now.Load()
	if v == nil {
		return mtls.Material{}, errors.New("netmaster has no certificate yet: " + k.Problem())
	}
	return v.Material, nil
}

// CacheKey returns the key that encrypts values in memcached, or nil if there is none yet. All netmasters derive it
// from the key of the signing CA.
func (k *Keeper) CacheKey() []byte {
	v := k.now.Load()
	if v == nil || v.state == nil {
		return nil
	}
	return v.cacheKey
}

// Problem returns why the CA is not healthy; empty if it is.
func (k *Keeper) Problem() string {
	if p := k.problem.Load(); p != nil {
		return *p
	}
	return ""
}

// Open waits until there is a certificate to serve with, possibly one saved before a restart. It calls waiting with
// the reason for waiting, and with "" at the end.
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
		if !pause(ctx, retryInterval) {
			return ctx.Err()
		}
	}
}

// Run maintains the CA until ctx ends.
func (k *Keeper) Run(ctx context.Context) {
	for {
		wait := readInterval
		if k.Problem() != "" {
			wait = retryInterval
		}
		if !pause(ctx, wait/2+rand.N(wait)) {
			return
		}
		_ = k.pass(ctx) // the keeper logs its errors
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

// pass reads everything once, performs the required steps, and logs a changed error.
func (k *Keeper) pass(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, passTimeout)
	defer cancel()
	err := ErrChanged
	for n := 0; n < maxSteps && errors.Is(err, ErrChanged); n++ {
		err = k.once(ctx)
	}
	before, text := k.Problem(), ""
	if err != nil {
		text = err.Error()
	}
	k.problem.Store(&text)
	switch {
	case text != "" && text != before && ctx.Err() != context.Canceled:
		k.log.Error("the CA is not healthy", "error", err)
	case text == "" && before != "":
		k.log.Info("the CA is healthy again")
	}
	return err
}

// once reads the published bundle before the CA, so that it never overwrites a bundle of a newer state.
func (k *Keeper) once(ctx context.Context) error {
	published, err := k.cfg.Store.Published(ctx)
	if err != nil {
		return fmt.Errorf("read the published CA bundle: %w", err)
	}
	stored, err := k.cfg.Store.Authority(ctx)
	if err != nil {
		return fmt.Errorf("read the CA Secret: %w", err)
	}
	if skew := k.cfg.Store.Skew().Abs(); skew > maxSkew {
		return fmt.Errorf(
			"netmaster's clock and the API server's differ by %s: set them right; until then nothing is signed or "+
				"rotated",
			skew.Round(time.Second),
		)
	}
	state, err := k.currentState(stored, published)
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
			k.log.Info("CA rotation step", "what", what)
		}
	}
	if next != state || len(stored.Text) == 0 {
		text, err := next.encode()
		if err == nil {
			err = k.cfg.Store.PutAuthority(ctx, stored, text)
		}
		if err != nil {
			return fmt.Errorf("write the CA Secret: %w", err)
		}
	}
	bundle := mtls.Encode(next.Bundle()...)
	if !bytes.Equal(bundle, published.Text) {
		if err := k.cfg.Store.Publish(ctx, published, bundle); err != nil {
			return fmt.Errorf("publish the CA bundle: %w", err)
		}
	}
	if err := k.adopt(next); err != nil {
		return err
	}
	k.trust(ctx, bundle)
	return nil
}

// currentState returns the CA: the stored one, the one in memory if the Secret was emptied, or a new one if none was
// ever published.
func (k *Keeper) currentState(stored, published Stored) (*State, error) {
	var memory *State
	if v := k.now.Load(); v != nil {
		memory = v.state
	}
	if len(stored.Text) == 0 {
		switch {
		case memory != nil:
			k.log.Error("the CA Secret was emptied; restoring it from memory")
			return memory, nil
		case len(bytes.TrimSpace(published.Text)) > 0:
			return nil, errLost
		}
		a, err := mtls.NewAuthority(k.cfg.Now(), k.cfg.Lives.Authority)
		if err != nil {
			return nil, err
		}
		k.log.Info("created a CA")
		return &State{Signing: a, Longest: k.cfg.Lives.Leaf}, nil
	}
	state, err := parse(stored.Text)
	if err != nil {
		return nil, fmt.Errorf(
			"the Secret of the authority was changed by hand: %w; put it back as it was, or make nodes trust "+
				"another with: netmaster pki rotate --lost",
			err,
		)
	}
	list, err := mtls.ParseBundle(published.Text)
	if err == nil && len(list) > 0 && !mtls.Among(list, state.Signing.Cert) &&
		(memory == nil || !mtls.Among(memory.Bundle(), state.Signing.Cert)) {
		return nil, errForeign
	}
	return state, nil
}

var (
	errLost = errors.New(
		"the Secret of the authority is gone, and nodes trust the one that it held: put the Secret back from a " +
			"backup, or make nodes trust another with: netmaster pki rotate --lost",
	)
	errForeign = errors.New(
		"the Secret of the authority holds an authority that is not in the published bundle, so nodes do not trust " +
			"it: put the Secret back as it was, or make nodes trust another authority with: netmaster pki rotate --lost",
	)
)

// adopt starts using a published state.
func (k *Keeper) adopt(s *State) error {
	now := k.cfg.Now()
	v := &view{state: s, read: now}
	var err error
	if v.cacheKey, err = s.Signing.Derive("flowkeep label cache"); err != nil {
		return err
	}
	if old := k.now.Load(); old != nil {
		v.Material, v.signer = old.Material, old.signer
	}
	v.Trusted = mtls.Pool(s.Bundle())
	if v.signer == nil || !v.signer.Equal(s.Signing.Cert) || !now.Before(renewal(v.Own.Leaf)) {
		own, err := mtls.NewServer(s.Signing, k.cfg.Hosts, now, min(k.cfg.Lives.Leaf, s.Longest))
		if err != nil {
			return fmt.Errorf("create netmaster's certificate: %w", err)
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

// trust updates the API server's CA bundle. An error is only logged, since netctl --server works without it.
func (k *Keeper) trust(ctx context.Context, bundle []byte) {
	text := ""
	if err := k.cfg.Store.Trust(ctx, bundle); err != nil {
		text = err.Error()
	}
	if text != "" && text != k.trustProblem {
		k.log.Warn("could not write the CA bundle to the APIService", "error", text)
	}
	k.trustProblem = text
}

// errNotNow is the error while nothing can be signed.
var errNotNow = errors.New("netmaster has no authority to sign with")

// SignNode issues a node's certificate.
func (k *Keeper) SignNode(node string, key *ecdsa.PublicKey) (der []byte, err error) {
	v, now := k.now.Load(), k.cfg.Now()
	if v == nil || v.state == nil {
		return nil, fmt.Errorf("%w yet: %s", errNotNow, k.Problem())
	}
	if age := now.Sub(v.read); age > maxStateAge {
		return nil, fmt.Errorf("%w: it could not look at it for %s: %s", errNotNow, age.Round(time.Second), k.Problem())
	}
	return v.state.Signing.SignNode(node, key, now, min(k.cfg.Lives.Leaf, v.state.Longest))
}
