// Package certificates keeps this node's certificate: it asks netmaster for one with the token that the kubelet projects into the pod, keeps it
// with its key on disk, so that a restart needs nobody, and asks again in good time. docs/certificates.md tells how it is used.
package certificates

import (
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/internal/mtls"
	"github.com/prometheus/client_golang/prometheus"
)

// Config configures a Keeper.
type Config struct {
	Node string
	// Dir keeps the certificate.
	Dir string
	// TokenFile and CAFile are the kubelet's, which replaces them.
	TokenFile, CAFile string
	// Servers are netmaster's addresses for requests, HOST:PORT, of which the first that signs will do. ServerName is what its certificate
	// is of; empty: of the host.
	Servers    []string
	ServerName string
	Logger     *slog.Logger
	// Tell is told why there is no certificate; empty: there is one.
	Tell       func(reason string)
	Registerer prometheus.Registerer // nil: nobody counts
	Now        func() time.Time      // nil: the clock
}

const (
	fileName = "certificate.pem"
	// look is how often it is looked whether the certificate will still do.
	look       = time.Minute
	firstRetry = time.Second
	// lastRetry without a certificate, and patient with one that is good for a while.
	lastRetry = 30 * time.Second
	patient   = 5 * time.Minute
)

// Keeper has the node's certificate. Current is safe for concurrent use.
type Keeper struct {
	cfg      Config
	log      *slog.Logger
	requests *prometheus.CounterVec
	write    func(path string, text []byte) error

	mu      sync.Mutex
	own     *tls.Certificate
	problem string
	unsaved *tls.Certificate // own, while the disk does not have it; nil: it has
	saving  bool             // a write is under way
}

// New makes a keeper that has what is on disk, if that is of this node.
func New(cfg Config) *Keeper {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Tell == nil {
		cfg.Tell = func(string) {}
	}
	k := &Keeper{
		cfg:   cfg,
		log:   cfg.Logger,
		write: mtls.WriteFile,
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "flowkeep_netplugin_certificate_requests_total",
			Help: "Requests to netmaster for this node's certificate, by result: signed or failed.",
		}, []string{"result"}),
	}
	k.requests.WithLabelValues("signed")
	k.requests.WithLabelValues("failed")
	if cfg.Registerer != nil {
		cfg.Registerer.MustRegister(k.requests, k.collector())
	}
	own, err := load(k.file(), cfg.Node)
	switch {
	case err == nil:
		k.own = own
	case !errors.Is(err, os.ErrNotExist):
		k.log.Warn("the certificate on disk is unusable; requesting another from netmaster", "file", k.file(), "error", err)
	}
	return k
}

// collector returns a gauge of a certificate that is in memory only.
func (k *Keeper) collector() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "flowkeep_netplugin_certificate_unsaved",
		Help: "1 while the disk does not have this node's certificate; it is used all the same.",
	}, func() float64 {
		if k.isUnsaved() {
			return 1
		}
		return 0
	})
}

func (k *Keeper) isUnsaved() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.unsaved != nil
}

func (k *Keeper) file() string { return filepath.Join(k.cfg.Dir, fileName) }

func load(path, node string) (*tls.Certificate, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	own, err := tls.X509KeyPair(text, text)
	if err != nil {
		return nil, err
	}
	if of, ok := mtls.Node(own.Leaf); !ok || of != node {
		return nil, fmt.Errorf("it is of %q, not of node %s", own.Leaf.Subject.CommonName, node)
	}
	return &own, nil
}

// Current returns the node's certificate and the certificate authorities to trust.
func (k *Keeper) Current() (mtls.Material, error) {
	pool, _, err := mtls.ReadBundle(k.cfg.CAFile)
	if err != nil {
		return mtls.Material{}, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.own == nil:
		return mtls.Material{}, fmt.Errorf("this node has no certificate yet: %s", k.problem)
	case !k.cfg.Now().Before(k.own.Leaf.NotAfter):
		return mtls.Material{}, fmt.Errorf("this node's certificate has expired (%s): %s", k.own.Leaf.NotAfter.UTC().Format(time.RFC3339), k.problem)
	}
	return mtls.Material{Own: *k.own, Trusted: pool}, nil
}

// Run keeps the certificate until ctx ends.
func (k *Keeper) Run(ctx context.Context) {
	retry := firstRetry
	for {
		k.save()
		wait := look
		if why := k.due(); why == "" {
			retry = firstRetry
		} else if err := k.renew(ctx, why); err != nil && ctx.Err() == nil {
			most := patient
			if k.lacking() {
				most = lastRetry
			}
			k.failed(err, retry)
			wait, retry = retry/2+rand.N(retry), min(2*retry, most)
		} else {
			retry = firstRetry
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return
		}
	}
}

// due returns the reason to request another certificate, "" if there is none.
func (k *Keeper) due() string {
	k.mu.Lock()
	own := k.own
	k.mu.Unlock()
	if own == nil {
		return "there is none"
	}
	now := k.cfg.Now()
	if !now.Before(renewal(own.Leaf)) {
		return "it is about to expire"
	}
	pool, _, err := mtls.ReadBundle(k.cfg.CAFile)
	if err != nil {
		return "" // without it nobody can be asked either
	}
	if _, err := own.Leaf.Verify(x509.VerifyOptions{Roots: pool, CurrentTime: own.Leaf.NotBefore.Add(mtls.Backdate), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		return "its authority is no longer trusted"
	}
	return ""
}

// renewal is at two thirds of a certificate's life, and up to a twelfth earlier or later: the nodes of a cluster that was made at once do
// not come at once, and one that is restarted does not choose again.
func renewal(c *x509.Certificate) time.Time {
	life := c.NotAfter.Sub(c.NotBefore)
	var share time.Duration
	for _, b := range c.SerialNumber.Bytes() {
		share = (share*31 + time.Duration(b)) % 1024
	}
	return c.NotBefore.Add(life*2/3 - life/12 + life/6/1024*share)
}

// lacking reports whether the node has no valid certificate.
func (k *Keeper) lacking() bool {
	_, err := k.Current()
	return err != nil
}

func (k *Keeper) failed(err error, retry time.Duration) {
	k.requests.WithLabelValues("failed").Inc()
	k.mu.Lock()
	k.problem = err.Error()
	k.mu.Unlock()
	if k.lacking() {
		k.log.Error("no certificate for this node; it enforces what it knows", "error", err, "retry", retry)
		k.cfg.Tell(err.Error())
		return
	}
	k.log.Warn("the node's certificate was not renewed; it is still good", "error", err, "retry", retry)
}

// renew asks each netmaster in turn.
func (k *Keeper) renew(ctx context.Context, why string) error {
	if k.cfg.Node == "" || len(k.cfg.Servers) == 0 {
		return errors.New("it is not said which node this is, or whom to ask")
	}
	var all []error
	for _, server := range k.cfg.Servers {
		own, err := k.ask(ctx, server)
		if err == nil {
			k.took(own, why)
			k.save()
			return nil
		}
		all = append(all, fmt.Errorf("%s: %w", server, err))
	}
	return errors.Join(all...)
}

func (k *Keeper) took(own *tls.Certificate, why string) {
	k.requests.WithLabelValues("signed").Inc()
	k.mu.Lock()
	k.own, k.unsaved, k.problem = own, own, ""
	k.mu.Unlock()
	k.cfg.Tell("")
	k.log.Info("this node has a new certificate", "because", why, "expires", own.Leaf.NotAfter.UTC().Format(time.RFC3339))
}

// saveTimeout is how long a certificate that is used already waits for the disk before the node goes on without it.
const saveTimeout = 5 * time.Second

// save writes the certificate where the disk does not have it. Run calls it again until it has.
func (k *Keeper) save() {
	k.mu.Lock()
	own := k.unsaved
	if own == nil || k.saving {
		k.mu.Unlock()
		return
	}
	k.saving = true
	k.mu.Unlock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		err := k.saveOne(own)
		k.mu.Lock()
		defer k.mu.Unlock()
		k.saving = false
		if err != nil {
			k.log.Error("the node's new certificate is used, but cannot be kept over a restart", "error", err)
		} else if k.unsaved == own {
			k.unsaved = nil
		}
	}()
	late := time.NewTimer(saveTimeout)
	defer late.Stop()
	select {
	case <-done:
	case <-late.C:
		k.log.Error("the node's new certificate is used, but the disk has not taken it", "after", saveTimeout)
	}
}

// saveOne writes certificate and key to one file: there are never those of two.
func (k *Keeper) saveOne(own *tls.Certificate) error {
	der, err := x509.MarshalPKCS8PrivateKey(own.PrivateKey.(*ecdsa.PrivateKey))
	if err != nil {
		return err
	}
	text := append(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), mtls.Encode(own.Leaf)...)
	if err := k.write(k.file(), text); err != nil {
		return fmt.Errorf("keep the certificate: %w", err)
	}
	return nil
}
