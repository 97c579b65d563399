package ca_test

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/internal/mtls"
	"github.com/flowkeep/flowkeep/netmaster/ca"
	"github.com/flowkeep/flowkeep/netmaster/ca/catest"
)

var lives = ca.Lives{Leaf: 7 * 24 * time.Hour, Authority: 365 * 24 * time.Hour, Overlap: 24 * time.Hour}

// place is a cluster at a time of its own.
type place struct {
	*testing.T
	*catest.Store
	now time.Time
}

func newPlace(t *testing.T) *place {
	return &place{T: t, Store: &catest.Store{}, now: time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)}
}

func (p *place) keeper(change ...func(*ca.Config)) *ca.Keeper {
	cfg := ca.Config{Store: p.Store, Lives: lives, Logger: slog.New(slog.DiscardHandler), Now: func() time.Time { return p.now }}
	for _, f := range change {
		f(&cfg)
	}
	return ca.New(cfg)
}

func (p *place) pass(k *ca.Keeper) error { return ca.Pass(p.Context(), k) }

func (p *place) mustPass(k *ca.Keeper) {
	p.Helper()
	if err := p.pass(k); err != nil {
		p.Fatal(err)
	}
}

func (p *place) bundle() []*x509.Certificate {
	p.Helper()
	_, published, _ := p.Contents()
	list, err := mtls.ParseBundle(published)
	if err != nil {
		p.Fatal(err)
	}
	return list
}

// leaf is a node's certificate.
func (p *place) leaf(k *ca.Keeper) (*x509.Certificate, error) {
	key, err := mtls.NewKey()
	if err != nil {
		p.Fatal(err)
	}
	der, err := k.SignNode("node1", &key.PublicKey)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

func (p *place) trusts(list []*x509.Certificate, leaf *x509.Certificate, usage x509.ExtKeyUsage) error {
	_, err := leaf.Verify(x509.VerifyOptions{Roots: mtls.Pool(list), CurrentTime: p.now, KeyUsages: []x509.ExtKeyUsage{usage}})
	return err
}

// What is made once stays: a restart writes nothing.
func TestRestartWritesNothing(t *testing.T) {
	p := newPlace(t)
	k := p.keeper()
	p.mustPass(k)
	_, _, writes := p.Contents()
	if writes != 2 {
		t.Errorf("%d writes", writes)
	}
	first, err := p.leaf(k)
	if err != nil {
		t.Fatal(err)
	}
	again := p.keeper()
	p.mustPass(again)
	p.mustPass(k)
	if _, _, now := p.Contents(); now != writes {
		t.Errorf("%d more writes", now-writes)
	}
	if err := p.trusts(p.bundle(), first, x509.ExtKeyUsageClientAuth); err != nil {
		t.Error(err)
	}
	if d := first.NotAfter.Sub(p.now); d != lives.Leaf || !first.NotBefore.Equal(p.now.Add(-mtls.Backdate)) {
		t.Errorf("valid from %s for %s", first.NotBefore, d)
	}
}

// A Secret that is gone, unreadable or of strangers is told, and never replaced by a new authority: a netmaster that runs goes on with what
// it knows, and one that starts waits.
func TestKeeper_ManualChanges(t *testing.T) {
	stranger := newPlace(t)
	stranger.mustPass(stranger.keeper())
	foreign, foreignBundle, _ := stranger.Contents()
	change := func(f func(map[string]any)) func(*place) {
		return func(p *place) {
			text, _, _ := p.Contents()
			var d map[string]any
			if err := json.Unmarshal(text, &d); err != nil {
				p.Fatal(err)
			}
			f(d)
			text, _ = json.Marshal(d)
			p.SetSecret(text)
		}
	}
	var strange map[string]any
	_ = json.Unmarshal(foreign, &strange)
	for name, c := range map[string]struct {
		hand          func(*place)
		fresh, run    string // what one that starts, and one that runs, say; nothing: all is well
		healed, there bool   // the Secret is as before; the bundle is
	}{
		"Secret emptied":     {func(p *place) { p.SetSecret(nil) }, "is gone", "", true, true},
		"Secret of another":  {func(p *place) { p.SetSecret(foreign) }, "not in the published bundle", "not in the published bundle", false, true},
		"Secret truncated":   {func(p *place) { t, _, _ := p.Contents(); p.SetSecret(t[:len(t)/2]) }, "changed by hand", "changed by hand", false, true},
		"something after it": {func(p *place) { t, _, _ := p.Contents(); p.SetSecret(append(t, "{}"...)) }, "changed by hand", "changed by hand", false, true},
		"a key of another": {change(func(d map[string]any) {
			d["signing"].(map[string]any)["key"] = strange["signing"].(map[string]any)["key"]
		}), "changed by hand", "changed by hand", false, true},
		"a newer version":       {change(func(d map[string]any) { d["version"] = 2 }), "version 2", "version 2", false, true},
		"a field of the future": {change(func(d map[string]any) { d["revoked"] = true }), "unknown field", "unknown field", false, true},
		"no life":               {change(func(d map[string]any) { d["longest"] = "-1h" }), "no time", "no time", false, true},
		"bundle removed":        {func(p *place) { p.SetPublished(nil) }, "", "", true, true},
		"bundle garbled": {func(p *place) {
			p.SetPublished([]byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"))
		}, "", "", true, true},
		"bundle of another": {func(p *place) { p.SetPublished(foreignBundle) }, "not in the published bundle", "", true, true},
		"bundle with a stranger": {func(p *place) {
			_, b, _ := p.Contents()
			p.SetPublished(append(b, foreignBundle...))
		}, "", "", true, true},
		"Secret gone, bundle garbled": {func(p *place) { p.SetSecret(nil); p.SetPublished([]byte("x")) }, "is gone", "", true, true},
	} {
		t.Run(name, func(t *testing.T) {
			says := func(who string, err error, want string) {
				t.Helper()
				if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
					t.Errorf("one that %s says %v, want %q", who, err, want)
				}
			}
			p := newPlace(t)
			running := p.keeper()
			p.mustPass(running)
			secret, published, _ := p.Contents()
			c.hand(p)
			broken, brokenBundle, _ := p.Contents()
			fresh := p.keeper()
			says("starts", p.pass(fresh), c.fresh)
			if _, err := fresh.Current(); (err == nil) != (c.fresh == "") {
				t.Errorf("one that starts has a certificate: %v", err)
			}
			if s, b, _ := p.Contents(); c.fresh != "" && (!bytes.Equal(s, broken) || !bytes.Equal(b, brokenBundle)) {
				t.Error("one that starts changed something")
			}
			says("runs", p.pass(running), c.run)
			if _, err := running.Current(); err != nil {
				t.Error(err)
			}
			s, b, _ := p.Contents()
			if c.healed != bytes.Equal(s, secret) || c.there != bytes.Equal(b, published) {
				t.Errorf("afterwards: Secret as before %v, bundle as before %v", bytes.Equal(s, secret), bytes.Equal(b, published))
			}
			if c.run != "" {
				p.now = p.now.Add(11 * time.Minute)
				if _, err := p.leaf(running); err == nil {
					t.Error("a certificate is signed by what was last read long ago")
				}
			}
		})
	}
}

// A way out of each: what nodes have stays valid where the key was lost, and nothing does where it was stolen.
func TestLostAndStolen(t *testing.T) {
	for _, why := range []ca.Reason{ca.Lost, ca.Stolen} {
		p := newPlace(t)
		running := p.keeper()
		p.mustPass(running)
		before, err := p.leaf(running)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ca.Rotate(t.Context(), p.Store, ca.Lost, lives, p.now); err == nil {
			t.Error("what is there was called lost")
		}
		if why == ca.Lost {
			p.SetSecret(nil)
			if _, err := ca.Rotate(t.Context(), p.Store, ca.Planned, lives, p.now); err == nil || !strings.Contains(err.Error(), "is gone") {
				t.Error(err)
			}
		}
		if _, err := ca.Rotate(t.Context(), p.Store, why, lives, p.now); err != nil {
			t.Fatal(err)
		}
		for _, k := range []*ca.Keeper{running, p.keeper()} {
			p.mustPass(k)
			m, err := k.Current()
			if err != nil {
				t.Fatal(err)
			}
			if err := p.trusts(p.bundle(), m.Own.Leaf, x509.ExtKeyUsageServerAuth); err != nil {
				t.Errorf("%s: nodes do not trust netmaster: %v", why, err)
			}
			_, err = before.Verify(x509.VerifyOptions{Roots: m.Trusted, CurrentTime: p.now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
			if (err == nil) != (why == ca.Lost) {
				t.Errorf("%s: a certificate of before: %v", why, err)
			}
		}
		if n := len(p.bundle()); n != map[ca.Reason]int{ca.Lost: 2, ca.Stolen: 1}[why] {
			t.Errorf("%s: %d are published", why, n)
		}
	}
}

// Years of rotations, by replicas that are restarted, fail halfway and look at different times, with nodes that hear late: everybody trusts
// everybody at any time, and no authority is trusted for longer than needed.
func TestYearsOfRotation(t *testing.T) {
	for seed := range uint64(1) {
		years(t, rand.New(rand.NewPCG(seed, 8)))
	}
}

func years(t *testing.T, r *rand.Rand) {
	p := newPlace(t)
	failing := false
	p.Fail = func(string) error {
		if failing && r.IntN(6) == 0 {
			return errors.New("the test fails it")
		}
		return nil
	}
	replicas := []*ca.Keeper{p.keeper(), p.keeper()}
	p.mustPass(replicas[0])
	p.mustPass(replicas[1])
	type node struct {
		bundle []*x509.Certificate
		leaf   *x509.Certificate
		heard  time.Time
	}
	nodes := make([]node, 3)
	seen := map[string]bool{}
	for end := p.now.Add(3 * 365 * 24 * time.Hour); p.now.Before(end); p.now = p.now.Add(time.Duration(1+r.IntN(16*60)) * time.Minute) {
		failing = r.IntN(3) == 0
		for i := range replicas {
			if r.IntN(20) == 0 {
				if next := p.keeper(); p.pass(next) == nil {
					replicas[i] = next
				}
			}
			if r.IntN(8) > 0 {
				_ = p.pass(replicas[i])
			}
		}
		failing = false
		if r.IntN(400) == 0 {
			_, _ = ca.Rotate(t.Context(), p.Store, ca.Planned, lives, p.now)
		}
		for _, k := range replicas { // as in the half minutes before
			p.mustPass(k)
		}
		for i := range nodes {
			n := &nodes[i]
			if p.now.Sub(n.heard) > 11*time.Hour || r.IntN(3) == 0 {
				n.bundle, n.heard = p.bundle(), p.now
			}
			if n.leaf == nil || p.now.After(n.leaf.NotBefore.Add(lives.Leaf*2/3)) && r.IntN(4) == 0 || p.now.Add(9*time.Hour).After(n.leaf.NotAfter) {
				var err error
				if n.leaf, err = p.leaf(replicas[r.IntN(2)]); err != nil {
					t.Fatal(err)
				}
			}
			for _, k := range replicas {
				m, err := k.Current()
				if err != nil {
					t.Fatal(err)
				}
				if err := p.trusts(n.bundle, m.Own.Leaf, x509.ExtKeyUsageServerAuth); err != nil {
					t.Fatalf("%s: a node does not trust netmaster: %v", p.now, err)
				}
				if _, err := n.leaf.Verify(x509.VerifyOptions{Roots: m.Trusted, CurrentTime: p.now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
					t.Fatalf("%s: netmaster does not trust a node: %v", p.now, err)
				}
			}
		}
		for _, c := range p.bundle() {
			seen[string(c.Raw)] = true
		}
		if n := len(p.bundle()); n > 3 {
			t.Fatalf("%d authorities are trusted", n)
		}
	}
	if len(seen) < 4 {
		t.Errorf("there were %d authorities in three years", len(seen))
	}
}

// A netmaster that stops between any two of a rotation's requests leaves what the next one goes on from.
func TestRotate_InterruptedAtEachStep(t *testing.T) {
	for after := range 45 {
		p := newPlace(t)
		count := 0
		p.Fail = func(string) error {
			if count++; count > after {
				return errors.New("netmaster was stopped")
			}
			return nil
		}
		stopped := p.keeper()
		for range 6 {
			if p.pass(stopped) != nil {
				break
			}
			p.now = p.now.Add(90 * 24 * time.Hour)
		}
		p.Fail = nil
		next := p.keeper()
		for range 8 {
			p.mustPass(next)
			m, err := next.Current()
			if err != nil {
				t.Fatal(err)
			}
			if err := p.trusts(p.bundle(), m.Own.Leaf, x509.ExtKeyUsageServerAuth); err != nil {
				t.Fatalf("stopped after %d requests: %v", after, err)
			}
			p.now = p.now.Add(25 * time.Hour)
		}
	}
}

// With the API server away netmaster starts with its certificate of before, which holds no key of the authority, and signs nothing.
func TestStartWhileTheAPIServerIsAway(t *testing.T) {
	p := newPlace(t)
	file := filepath.Join(t.TempDir(), "netmaster-certificate.pem")
	cached := func(c *ca.Config) { c.CacheFile = file }
	k := p.keeper(cached)
	p.mustPass(k)
	m, _ := k.Current()
	p.Fail = func(string) error { return errors.New("the API server is away") }
	again := p.keeper(cached)
	if err := again.Open(t.Context(), func(string) {}); err != nil {
		t.Fatal(err)
	}
	got, err := again.Current()
	if err != nil || !got.Own.Leaf.Equal(m.Own.Leaf) || !got.Trusted.Equal(m.Trusted) {
		t.Errorf("it has another certificate: %v", err)
	}
	if _, err := p.leaf(again); err == nil || !strings.Contains(err.Error(), "the API server is away") {
		t.Error(err)
	}
	p.Fail = nil
	p.mustPass(again)
	if _, err := p.leaf(again); err != nil {
		t.Error(err)
	}
	p.Fail = func(string) error { return errors.New("the API server is away") }
	p.now = p.now.Add(8 * 24 * time.Hour)
	ctx, cancel := context.WithCancel(t.Context())
	if err := p.keeper(cached).Open(ctx, func(reason string) { cancel() }); !errors.Is(err, context.Canceled) {
		t.Errorf("what has expired was used: %v", err)
	}
}

// While clocks differ nothing moves on.
func TestClockSkew(t *testing.T) {
	p := newPlace(t)
	k := p.keeper()
	p.mustPass(k)
	_, _, writes := p.Contents()
	p.now, p.Ahead = p.now.Add(300*24*time.Hour), -300*24*time.Hour
	if err := p.pass(k); err == nil || !strings.Contains(err.Error(), "differ by 7200h") {
		t.Error(err)
	}
	if _, err := p.leaf(k); err == nil {
		t.Error("a certificate was signed")
	}
	if _, _, now := p.Contents(); now != writes {
		t.Error("something was written")
	}
}
