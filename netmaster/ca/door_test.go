package ca

import (
	"context"
	"crypto/ecdsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/api/identity"
	"github.com/flowkeep/flowkeep/internal/mtls"
	authenticationv1 "k8s.io/api/authentication/v1"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const netpluginUser = "system:serviceaccount:flowkeep-system:netplugin"

// tokenOf is one that says these things of itself.
func tokenOf(claims map[string]any) string {
	text, _ := json.Marshal(claims)
	return "e30." + base64.RawURLEncoding.EncodeToString(text) + ".c2ln"
}

func claimsOf(node string) map[string]any {
	return map[string]any{"sub": netpluginUser, "aud": []string{"flowkeep"}, "exp": time.Now().Add(time.Hour).Unix(), "kubernetes.io": map[string]any{"node": map[string]any{"name": node}}}
}

func verdictOf(node string) *Verdict {
	return &Verdict{Authenticated: true, Audiences: []string{"flowkeep"}, User: authenticationv1.UserInfo{Username: netpluginUser,
		Extra: map[string]authenticationv1.ExtraValue{extraNode: {node}, extraPod: {"netplugin-x"}}}}
}

// judge says the same of every token.
type judge struct {
	verdict *Verdict
	err     error
	hold    chan struct{} // if set, waits for it

	mu         sync.Mutex
	asked, now int
	most       int
}

func (j *judge) Review(ctx context.Context, _ string) (*Verdict, error) {
	j.mu.Lock()
	j.asked++
	j.now++
	j.most = max(j.most, j.now)
	j.mu.Unlock()
	defer func() { j.mu.Lock(); j.now--; j.mu.Unlock() }()
	if j.hold != nil {
		select {
		case <-j.hold:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return j.verdict, j.err
}

// pen signs, and remembers for whom.
type pen struct {
	mu     sync.Mutex
	signed []string
}

func (p *pen) SignNode(node string, _ *ecdsa.PublicKey) ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.signed = append(p.signed, node)
	return []byte("certificate"), nil
}

func requestFor(t testing.TB, node string) []byte {
	t.Helper()
	key, err := mtls.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	der, err := mtls.NewRequest(node, key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

func testDoor(j Reviewer, s Signer) *Door {
	return NewDoor(DoorConfig{Reviewer: j, Signer: s, ServiceAccount: "flowkeep-system:netplugin", Logger: quiet})
}

// Nothing is signed unless everything the API server says of the token is as it should be.
func TestDoor_RequiresTokenReview(t *testing.T) {
	for name, change := range map[string]func(*Verdict){
		"":                       func(*Verdict) {},
		"not authenticated":      func(v *Verdict) { v.Authenticated = false },
		"an error":               func(v *Verdict) { v.Authenticated, v.Error = false, "bad" },
		"no audience":            func(v *Verdict) { v.Audiences = nil },
		"another audience":       func(v *Verdict) { v.Audiences = []string{"https://kubernetes.default.svc"} },
		"another ServiceAccount": func(v *Verdict) { v.User.Username = "system:serviceaccount:flowkeep-system:other" },
		"another namespace":      func(v *Verdict) { v.User.Username = "system:serviceaccount:default:netplugin" },
		"a user of that name":    func(v *Verdict) { v.User.Username = "flowkeep-system:netplugin" },
		"another node":           func(v *Verdict) { v.User.Extra[extraNode] = []string{"node2"} },
		"two nodes":              func(v *Verdict) { v.User.Extra[extraNode] = []string{"node1", "node2"} },
		"no node":                func(v *Verdict) { delete(v.User.Extra, extraNode) },
		"an empty node":          func(v *Verdict) { v.User.Extra[extraNode] = []string{""} },
		"no pod":                 func(v *Verdict) { delete(v.User.Extra, extraPod) },
		"an empty pod":           func(v *Verdict) { v.User.Extra[extraPod] = []string{""} },
		"no extra":               func(v *Verdict) { v.User.Extra = nil },
	} {
		j, p := &judge{verdict: verdictOf("node1")}, &pen{}
		change(j.verdict)
		_, err := testDoor(j, p).Sign(t.Context(), &identity.SignRequest{Token: tokenOf(claimsOf("node1")), Request: requestFor(t, "node1")})
		if (err == nil) != (name == "") || (len(p.signed) == 1) != (name == "") {
			t.Errorf("%q: %v, signed %v", name, err, p.signed)
		}
	}
}

// What cannot be right is refused before the API server hears of it.
func TestDoor_InvalidTokenNeedsNoReview(t *testing.T) {
	with := func(key string, value any) string {
		c := claimsOf("node1")
		c[key] = value
		return tokenOf(c)
	}
	good := tokenOf(claimsOf("node1"))
	for name, c := range map[string]struct {
		token   string
		request []byte
		code    codes.Code
	}{
		"no token":            {"", requestFor(t, "node1"), codes.Unauthenticated},
		"a long token":        {good + strings.Repeat("x", maxToken), requestFor(t, "node1"), codes.Unauthenticated},
		"no JWT":              {"a.b", requestFor(t, "node1"), codes.Unauthenticated},
		"no JSON":             {"a." + base64.RawURLEncoding.EncodeToString([]byte("[")) + ".c", requestFor(t, "node1"), codes.Unauthenticated},
		"audience of another": {with("aud", "vault"), requestFor(t, "node1"), codes.Unauthenticated},
		"subject of another":  {with("sub", "system:serviceaccount:kube-system:admin"), requestFor(t, "node1"), codes.Unauthenticated},
		"expired":             {with("exp", time.Now().Add(-time.Hour).Unix()), requestFor(t, "node1"), codes.Unauthenticated},
		"no expiry":           {with("exp", nil), requestFor(t, "node1"), codes.Unauthenticated},
		"of no node":          {with("kubernetes.io", map[string]any{}), requestFor(t, "node1"), codes.Unauthenticated},
		"no request":          {good, nil, codes.InvalidArgument},
		"for another node":    {good, requestFor(t, "node2"), codes.InvalidArgument},
	} {
		j, p := &judge{verdict: verdictOf("node1")}, &pen{}
		_, err := testDoor(j, p).Sign(t.Context(), &identity.SignRequest{Token: c.token, Request: c.request})
		if status.Code(err) != c.code || j.asked != 0 || len(p.signed) != 0 {
			t.Errorf("%s: %v, asked %d, signed %v", name, err, j.asked, p.signed)
		}
	}
}

// The API server that does not answer is told apart from one that says no: the node asks again.
func TestDoor_APIServerUnavailable(t *testing.T) {
	p := &pen{}
	_, err := testDoor(&judge{err: errors.New("token abc refused")}, p).Sign(t.Context(), &identity.SignRequest{Token: tokenOf(claimsOf("node1")), Request: requestFor(t, "node1")})
	if status.Code(err) != codes.Unavailable || strings.Contains(err.Error(), "abc") || len(p.signed) > 0 {
		t.Error(err)
	}
}

// A flood from one address, or for one node, ends there; one from everywhere reaches the API server only so many at a time.
func TestFloods(t *testing.T) {
	now := time.Now()
	at := func(d *Door) { d.cfg.Now = func() time.Time { return now } }
	request := &identity.SignRequest{Token: tokenOf(claimsOf("node1")), Request: requestFor(t, "node1")}
	j := &judge{verdict: &Verdict{}}
	d := testDoor(j, &pen{})
	at(d)
	for range 1000 {
		_, _, _ = d.sign(t.Context(), "10.0.0.1", request)
	}
	if j.asked != addressBurst {
		t.Errorf("from one address the API server is asked %d times", j.asked)
	}
	if _, _, err := d.sign(t.Context(), "10.0.0.2", request); status.Code(err) != codes.Unauthenticated {
		t.Errorf("another address waits for it: %v", err)
	}
	now = now.Add(addressInterval)
	if _, _, err := d.sign(t.Context(), "10.0.0.1", request); status.Code(err) != codes.Unauthenticated {
		t.Errorf("it is never let in again: %v", err)
	}

	p := &pen{}
	d = testDoor(&judge{verdict: verdictOf("node1")}, p)
	at(d)
	for i := range 100 {
		_, _, _ = d.sign(t.Context(), fmt.Sprint("10.0.1.", i), request)
	}
	if len(p.signed) != nodeBurst {
		t.Errorf("one node was given %d certificates at once", len(p.signed))
	}

	j = &judge{verdict: &Verdict{}, hold: make(chan struct{})}
	d = testDoor(j, &pen{})
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for i := range 200 {
		all.Go(func() { _, _, _ = d.sign(ctx, fmt.Sprint("10.0.2.", i), request) })
	}
	for {
		j.mu.Lock()
		full := j.now == maxReviews
		j.mu.Unlock()
		if full {
			break
		}
		time.Sleep(time.Millisecond)
	}
	close(j.hold)
	cancel()
	all.Wait()
	if j.most != maxReviews {
		t.Errorf("%d reviews at a time", j.most)
	}
}

// Over a real connection: what is too large, and who comes too often, is refused, and others are served.
func TestDoor_Limits(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	k := New(Config{Logger: quiet, Lives: testLives})
	a, err := mtls.NewAuthority(time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if err := k.adopt(&State{Signing: a, Longest: time.Hour}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	d := testDoor(&judge{verdict: verdictOf("node1")}, k)
	go func() { done <- d.Serve(ctx, l, k) }()
	defer func() { cancel(); <-done }()
	_, err = askDoor(t, k, l.Addr().String(), &identity.SignRequest{Token: strings.Repeat("x", identity.MaxMessage)})
	if status.Code(err) != codes.ResourceExhausted {
		t.Error(err)
	}
	var idle []net.Conn
	defer func() {
		for _, c := range idle {
			c.Close()
		}
	}()
	for range 3 * maxOfAddress {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		idle = append(idle, c)
	}
	shut := 0
	for _, c := range idle {
		_ = c.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
		if _, err := c.Read(make([]byte, 1)); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			var slow net.Error
			if !errors.As(err, &slow) || !slow.Timeout() {
				shut++
			}
		}
	}
	if shut < 2*maxOfAddress {
		t.Errorf("%d of %d connections from one address were closed", shut, len(idle))
	}
}

func FuzzClaim(f *testing.F) {
	for _, node := range []string{"node1", "", "a/b", strings.Repeat("x", 300)} {
		f.Add(tokenOf(claimsOf(node)))
	}
	f.Add("..")
	f.Add("a.b.c")
	now := time.Now()
	f.Fuzz(func(t *testing.T, token string) {
		node, err := claim(token, netpluginUser, now)
		if (err == nil) != (mtls.CheckNode(node) == nil) {
			t.Errorf("node %q, %v", node, err)
		}
	})
}

// FuzzDoor: whatever is asked, only the node that the API server vouches for is signed for.
func FuzzDoor(f *testing.F) {
	f.Add(tokenOf(claimsOf("node1")), requestFor(f, "node1"), "node1")
	f.Add(tokenOf(claimsOf("node2")), requestFor(f, "node2"), "node1")
	f.Add("", []byte{}, "")
	f.Fuzz(func(t *testing.T, token string, request []byte, vouchedFor string) {
		p := &pen{}
		_, err := testDoor(&judge{verdict: verdictOf(vouchedFor)}, p).Sign(t.Context(), &identity.SignRequest{Token: token, Request: request})
		if (err == nil) != (len(p.signed) == 1) || err == nil && (p.signed[0] != vouchedFor || !strings.Contains(string(request), "flowkeep:node:"+vouchedFor)) {
			t.Errorf("signed %v of %q: %v", p.signed, vouchedFor, err)
		}
	})
}

// FuzzParse: what is read is written the same, and whom it trusts can sign.
func FuzzParse(f *testing.F) {
	a, err := mtls.NewAuthority(time.Now(), time.Hour)
	if err != nil {
		f.Fatal(err)
	}
	s := &State{Signing: a, Next: a, Longest: time.Hour, Since: time.Now(), Retired: []Retired{{a.Cert, time.Now()}}}
	text, err := s.encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`{"version":1}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := parse(text)
		if err != nil {
			return
		}
		again, err := s.encode()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parse(again); err != nil || !s.Signing.Cert.IsCA {
			t.Errorf("%v: %s", err, again)
		}
	})
}
