package certificates

import (
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/api/identity"
	"github.com/flowkeep/flowkeep/internal/mtls"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
)

// master signs for whoever asks, unless a test has it do otherwise.
type master struct {
	identity.UnimplementedIdentityServer
	*testing.T
	addr string
	stop func()

	mu        sync.Mutex
	authority *mtls.Authority
	answer    func(*identity.SignRequest) (*identity.SignResponse, error)
	tokens    []string
}

const life = 7 * 24 * time.Hour

func newMaster(t *testing.T) *master {
	t.Helper()
	m := &master{T: t}
	m.turn()
	m.answer = m.sign("node1", nil)
	own, err := mtls.NewServer(m.authority, []string{"127.0.0.1"}, time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{own}})))
	identity.RegisterIdentityServer(g, m)
	m.addr, m.stop = l.Addr().String(), g.Stop
	go func() { _ = g.Serve(l) }()
	t.Cleanup(g.Stop)
	return m
}

// turn has another authority sign.
func (m *master) turn() {
	a, err := mtls.NewAuthority(time.Now(), 365*24*time.Hour)
	if err != nil {
		m.Fatal(err)
	}
	m.mu.Lock()
	m.authority = a
	m.mu.Unlock()
}

// sign answers with a certificate of node, for the key that is asked for or another one.
func (m *master) sign(node string, other *ecdsa.PublicKey) func(*identity.SignRequest) (*identity.SignResponse, error) {
	return func(r *identity.SignRequest) (*identity.SignResponse, error) {
		key, err := mtls.CheckRequest(r.Request, "node1")
		if err != nil {
			return nil, err
		}
		if other != nil {
			key = other
		}
		der, err := m.authority.SignNode(node, key, time.Now(), life)
		return &identity.SignResponse{Certificate: der, NowUnixMs: time.Now().UnixMilli()}, err
	}
}

func (m *master) Sign(_ context.Context, r *identity.SignRequest) (*identity.SignResponse, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.tokens = append(m.tokens, r.Token)
	return m.answer(r)
}

// node is a place with what the kubelet projects.
type node struct {
	Config
	*testing.T
	log strings.Builder
}

func newNode(t *testing.T, m *master) *node {
	dir := t.TempDir()
	n := &node{T: t}
	n.Config = Config{Node: "node1", Dir: dir, TokenFile: filepath.Join(dir, "token"), CAFile: filepath.Join(dir, "ca.crt"), Servers: []string{m.addr}}
	n.Logger = slog.New(slog.NewTextHandler(&n.log, nil))
	n.write(n.TokenFile, []byte("the token\n"))
	n.write(n.CAFile, mtls.Encode(m.authority.Cert))
	return n
}

func (n *node) write(path string, text []byte) {
	n.Helper()
	if err := os.WriteFile(path, text, 0o600); err != nil {
		n.Fatal(err)
	}
}

func (n *node) renew(k *Keeper) {
	n.Helper()
	if err := k.renew(n.Context(), "the test wants it"); err != nil {
		n.Fatal(err)
	}
}

// The certificate is kept, with its key, and a restart needs nobody; what is on disk of another node, or garbled, is of no use.
func TestKeptOverARestart(t *testing.T) {
	m := newMaster(t)
	n := newNode(t, m)
	k := New(n.Config)
	if _, err := k.Current(); err == nil || k.due() == "" {
		t.Error("there is a certificate before any was asked for")
	}
	n.renew(k)
	first, err := k.Current()
	if err != nil || k.due() != "" {
		t.Fatal(err, k.due())
	}
	if info, err := os.Stat(k.file()); err != nil || info.Mode().Perm() != 0o600 {
		t.Error(info.Mode(), err)
	}
	m.stop()
	again := New(n.Config)
	if got, err := again.Current(); err != nil || !got.Own.Leaf.Equal(first.Own.Leaf) || again.due() != "" {
		t.Errorf("after a restart: %v, due: %q", err, again.due())
	}
	other := n.Config
	other.Node = "node2"
	if _, err := New(other).Current(); err == nil {
		t.Error("another node uses it")
	}
	text, _ := os.ReadFile(k.file())
	n.write(k.file(), text[:len(text)/2])
	if _, err := New(n.Config).Current(); err == nil || !strings.Contains(n.log.String(), "is unusable") {
		t.Error("half a file is used")
	}
	if m.tokens[0] != "the token" {
		t.Errorf("tokens %q", m.tokens)
	}
}

// It is renewed around two thirds of its life, at the same time after a restart, and not all nodes at once.
func TestRenewedInTime(t *testing.T) {
	m := newMaster(t)
	n := newNode(t, m)
	now := time.Now()
	n.Now = func() time.Time { return now }
	k := New(n.Config)
	var least, most time.Duration = 1 << 62, 0
	for range 20 {
		n.renew(k)
		leaf := k.own.Leaf
		at := renewal(leaf).Sub(leaf.NotBefore)
		least, most = min(least, at), max(most, at)
		if renewal(New(n.Config).own.Leaf) != renewal(leaf) {
			t.Error("a restart changes the time")
		}
	}
	whole := life + mtls.Backdate
	if least < whole*7/12 || most > whole*9/12 || most-least < whole/48 {
		t.Errorf("renewed after %s to %s of %s", least, most, whole)
	}
	old := k.own
	now = renewal(old.Leaf).Add(-time.Second)
	if why := k.due(); why != "" {
		t.Error("too early:", why)
	}
	now = now.Add(time.Second)
	if k.due() == "" {
		t.Error("too late")
	}
	m.stop()
	if err := k.renew(t.Context(), ""); err == nil {
		t.Error("renewed by nobody")
	}
	if got, err := k.Current(); err != nil || !got.Own.Leaf.Equal(old.Leaf) {
		t.Errorf("while netmaster is away: %v", err)
	}
	now = old.Leaf.NotAfter
	if _, err := k.Current(); err == nil || !strings.Contains(err.Error(), "has expired") {
		t.Error(err)
	}
}

// When the authority of its certificate is trusted no longer, the node asks for another; while that is one of several, it does not.
func TestAuthorityThatGoes(t *testing.T) {
	m := newMaster(t)
	n := newNode(t, m)
	k := New(n.Config)
	n.renew(k)
	former := m.authority.Cert
	m.turn()
	n.write(n.CAFile, mtls.Encode(m.authority.Cert, former))
	if why := k.due(); why != "" {
		t.Error(why)
	}
	n.write(n.CAFile, mtls.Encode(m.authority.Cert))
	if why := k.due(); !strings.Contains(why, "no longer trusted") {
		t.Error(why)
	}
	n.write(n.CAFile, nil)
	if why := k.due(); why != "" {
		t.Error("asks though it can trust nobody:", why)
	}
}

// What netmaster answers is looked at, and the token is shown to nobody of another authority.
func TestAnswersAreChecked(t *testing.T) {
	m := newMaster(t)
	n := newNode(t, m)
	k := New(n.Config)
	key, _ := mtls.NewKey()
	for want, answer := range map[string]func(*identity.SignRequest) (*identity.SignResponse, error){
		"not of node node1": m.sign("node2", nil),
		"another key":       m.sign("node1", &key.PublicKey),
		"no certificate": func(*identity.SignRequest) (*identity.SignResponse, error) {
			return &identity.SignResponse{Certificate: []byte("x")}, nil
		},
		"says no": func(*identity.SignRequest) (*identity.SignResponse, error) {
			return nil, status.Error(codes.PermissionDenied, "says no")
		},
		"of no use": func(r *identity.SignRequest) (*identity.SignResponse, error) {
			stranger, _ := mtls.NewAuthority(time.Now(), time.Hour)
			asked, _ := mtls.CheckRequest(r.Request, "node1")
			der, err := stranger.SignNode("node1", asked, time.Now(), time.Hour)
			return &identity.SignResponse{Certificate: der}, err
		},
	} {
		m.answer = answer
		if err := k.renew(t.Context(), ""); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
		if _, err := k.Current(); err == nil {
			t.Fatal("it is used")
		}
	}
	m.answer, m.tokens = m.sign("node1", nil), nil
	stranger, _ := mtls.NewAuthority(time.Now(), time.Hour)
	n.write(n.CAFile, mtls.Encode(stranger.Cert))
	if err := k.renew(t.Context(), ""); err == nil || len(m.tokens) > 0 {
		t.Errorf("a netmaster that is not trusted was shown %q: %v", m.tokens, err)
	}
	n.write(n.CAFile, mtls.Encode(m.authority.Cert))
	k.cfg.ServerName = "netmaster.other.svc"
	if err := k.renew(t.Context(), ""); err == nil || len(m.tokens) > 0 {
		t.Errorf("a netmaster of another name was shown %q: %v", m.tokens, err)
	}
}

// A clock that is behind is told, with both times.
func TestClockBehind(t *testing.T) {
	m := newMaster(t)
	n := newNode(t, m)
	key, _ := mtls.NewKey()
	der, _ := m.authority.SignNode("node1", &key.PublicKey, time.Now(), time.Hour)
	leaf, _ := x509.ParseCertificate(der)
	own := tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
	pool := mtls.Pool([]*x509.Certificate{m.authority.Cert})
	if err := check(&own, "node1", pool, time.Now().Add(-time.Hour)); err == nil || !strings.Contains(err.Error(), "set it right") {
		t.Error(err)
	}
	if err := check(&own, "node1", pool, time.Now().Add(-4*time.Minute)); err != nil {
		t.Error("four minutes are too much:", err)
	}
	n.Now = func() time.Time { return time.Now().Add(-3 * time.Minute) }
	k := New(n.Config)
	n.renew(k)
	if !strings.Contains(n.log.String(), "clock differs") {
		t.Error(n.log.String())
	}
}

// Run asks at once where there is none, tells why there is none, and that there is one again.
func TestRun(t *testing.T) {
	m := newMaster(t)
	n := newNode(t, m)
	told := make(chan string, 16)
	n.Tell = func(reason string) { told <- reason }
	signs := m.answer
	m.answer = func(r *identity.SignRequest) (out *identity.SignResponse, err error) {
		err = status.Error(codes.Unavailable, "not yet")
		if len(m.tokens) > 1 {
			out, err = signs(r)
		}
		return out, err
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	k := New(n.Config)
	go func() { defer close(done); k.Run(ctx) }()
	if why := <-told; !strings.Contains(why, "not yet") {
		t.Error(why)
	}
	if why := <-told; why != "" {
		t.Error(why)
	}
	if _, err := k.Current(); err != nil {
		t.Error(err)
	}
	cancel()
	<-done
}
