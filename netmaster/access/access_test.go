package access

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/internal/mtls"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
)

// authority signs certificates.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	a := &authority{t: t}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "front proxies"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	a.key = newKey(t)
	a.cert = sign(t, template, template, &a.key.PublicKey, a.key)
	return a
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func sign(t *testing.T, template, parent *x509.Certificate, key *ecdsa.PublicKey, by *ecdsa.PrivateKey) *x509.Certificate {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key, by)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func (a *authority) pem() string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw}))
}

// client is a certificate that ends so long from now, for this use.
func (a *authority) client(name string, ends time.Duration, usage x509.ExtKeyUsage) *tls.Certificate {
	key := newKey(a.t)
	template := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(ends), ExtKeyUsage: []x509.ExtKeyUsage{usage}}
	return &tls.Certificate{Certificate: [][]byte{sign(a.t, template, a.cert, &key.PublicKey, a.key).Raw}, PrivateKey: key}
}

func (a *authority) configMap() map[string]string {
	return map[string]string{"requestheader-client-ca-file": a.pem(), "requestheader-allowed-names": `["front-proxy-client"]`, "requestheader-username-headers": `["X-Remote-User"]`,
		"requestheader-uid-headers": `["X-Remote-Uid"]`, "requestheader-group-headers": `["X-Remote-Group"]`, "requestheader-extra-headers-prefix": `["X-Remote-Extra-"]`}
}

// questions answers what it is told.
type questions struct {
	answer func(ctx context.Context, q *inspect.Question) (any, error)
	stream func(ctx context.Context, q *inspect.Question, send func(*inspect.Answer) error) error
}

func (x *questions) Kinds() []string { return []string{"drops", "frontends", "status", "wait"} }

func (x *questions) Lasts(kind string) bool { return kind != "status" }

func (x *questions) Answer(ctx context.Context, q *inspect.Question) (*inspect.Answer, error) {
	v, err := x.answer(ctx, q)
	if err != nil {
		return nil, err
	}
	body, err := json.Marshal(v)
	return &inspect.Answer{Body: body}, err
}

func (x *questions) Watch(ctx context.Context, q *inspect.Question, send func(*inspect.Answer) error) error {
	if x.stream != nil {
		return x.stream(ctx, q, send)
	}
	a, err := x.Answer(ctx, q)
	if err != nil {
		return err
	}
	return send(a)
}

// roles says who may, as the API server would.
type roles struct {
	mu     sync.Mutex
	may    map[string]bool   // user
	only   map[string]string // of such a user, the resource
	err    error
	asked  []Request
	counts atomic.Int64
}

func (r *roles) Review(_ context.Context, q *Request) (bool, string, error) {
	r.counts.Add(1)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = append(r.asked, *q)
	only, narrow := r.only[q.User.Name]
	return r.may[q.User.Name] || narrow && only == q.Resource, "", r.err
}

// place is a server and the front proxy that it trusts.
type place struct {
	t         *testing.T
	authority *authority
	server    *Server
	questions *questions
	roles     *roles
	address   string
	pool      *x509.CertPool
	front     *tls.Certificate
}

func newPlace(t *testing.T) *place { return newPlaceWith(t, func(*Server) {}) }

func newPlaceWith(t *testing.T, change func(*Server)) *place {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return newPlaceOn(t, l, change)
}

func newPlaceOn(t *testing.T, l net.Listener, change func(*Server)) *place {
	t.Helper()
	others := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, others, goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait")) })
	dir := t.TempDir()
	if err := errors.Join(mtls.Init(dir), mtls.IssueServer(dir, nil)); err != nil {
		t.Fatal(err)
	}
	p := &place{t: t, authority: newAuthority(t), roles: &roles{may: map[string]bool{"jane": true}}, pool: x509.NewCertPool()}
	p.questions = &questions{answer: func(_ context.Context, q *inspect.Question) (any, error) { return q, nil }}
	p.front = p.authority.client("front-proxy-client", time.Hour, x509.ExtKeyUsageClientAuth)
	p.server = New(Config{Questions: p.questions, Reviewer: p.roles, TLS: mtls.Files{CA: filepath.Join(dir, "ca.crt"), Cert: filepath.Join(dir, "server.crt"), Key: filepath.Join(dir, "server.key")},
		Version: "v1", Logger: slog.New(slog.DiscardHandler)})
	p.server.SetTrust(p.authority.configMap())
	change(p.server)
	own, err := mtls.Own(p.server.cfg.TLS)
	if err != nil {
		t.Fatal(err)
	}
	cert, _ := own(nil)
	p.pool.AddCert(cert.Leaf) // as good as its authority
	p.address = l.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- p.server.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return p
}

// client comes with a certificate, or none, over HTTP/1.1 or 2.
func (p *place) client(cert *tls.Certificate, two bool) *http.Client {
	conf := &tls.Config{RootCAs: p.pool, ServerName: mtls.ServiceName, MinVersion: tls.VersionTLS13}
	if cert != nil {
		conf.Certificates = []tls.Certificate{*cert}
	}
	tr := &http.Transport{TLSClientConfig: conf, ForceAttemptHTTP2: two, MaxResponseHeaderBytes: 1 << 20}
	p.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: time.Minute}
}

func (p *place) request(method, path string, body io.Reader, user string, more ...string) *http.Request {
	p.t.Helper()
	r, err := http.NewRequestWithContext(p.t.Context(), method, "https://"+p.address+path, body)
	if err != nil {
		p.t.Fatal(err)
	}
	if user != "" {
		r.Header.Set("X-Remote-User", user)
	}
	for i := 0; i < len(more); i += 2 {
		r.Header.Add(more[i], more[i+1])
	}
	return r
}

// do gives the status and what was said; 0: nothing was.
func (p *place) do(c *http.Client, r *http.Request) (int, string) {
	p.t.Helper()
	resp, err := c.Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		p.t.Error(err)
	}
	return resp.StatusCode, string(body)
}

func (p *place) get(user, path string, more ...string) (int, string) {
	p.t.Helper()
	return p.do(p.client(p.front, true), p.request(http.MethodGet, path, nil, user, more...))
}

const statusPath = inspect.Prefix + "/status/answer"

func TestReview_SubjectAccessReview(t *testing.T) {
	p := newPlace(t)
	question := url.QueryEscape(`{"kind":"status","namespace":"shop"}`)
	for _, two := range []bool{false, true} {
		c := p.client(p.front, two)
		for range 3 { // the connection is used again
			code, text := p.do(c, p.request(http.MethodGet, statusPath+"?question="+question, nil, "jane"))
			if code != http.StatusOK || text != `{"kind":"status","namespace":"shop"}` {
				t.Fatalf("%d: %s", code, text)
			}
		}
		code, text := p.do(c, p.request(http.MethodPost, inspect.Prefix+"/status", strings.NewReader(`{"namespace":"`+strings.Repeat("x", 1<<20)+`"}`), "jane"))
		if code != http.StatusOK || len(text) < 1<<20 {
			t.Fatalf("%d: %.200s", code, text)
		}
	}
	code, text := p.get("jane", inspect.Prefix)
	if code != http.StatusOK || !strings.Contains(text, `"name":"wait","singularName":"wait","namespaced":true`) || strings.Contains(text, `"list"`) || strings.Contains(text, `"delete"`) {
		t.Errorf("%d: %s", code, text)
	}
}

// What is asked of the API server is what is asked of netmaster, for whom the front proxy says.
func TestReview_Attributes(t *testing.T) {
	p := newPlace(t)
	p.roles.may["x"] = true
	p.get("x", inspect.Prefix+"/namespaces/shop/wait/answer?question="+url.QueryEscape(`{"kind":"wait","id":"shop/db"}`),
		"X-Remote-Group", "a", "X-Remote-Group", "b", "X-Remote-Uid", "u1", "X-Remote-Extra-Example.org%2fscopes", "s1", "X-Remote-Extra-Example.org%2fscopes", "s2")
	p.get("x", inspect.Prefix+"/drops?watch=1")
	p.do(p.client(p.front, false), p.request(http.MethodPost, inspect.Prefix+"/status", strings.NewReader("{}"), "x"))
	want := []Request{
		{User: User{Name: "x", UID: "u1", Groups: []string{"a", "b"}, Extra: map[string][]string{"example.org/scopes": {"s1", "s2"}}}, Verb: "get", Resource: "wait", Name: "answer", Namespace: "shop"},
		{User: User{Name: "x", Extra: map[string][]string{}}, Verb: "watch", Resource: "drops"},
		{User: User{Name: "x", Extra: map[string][]string{}}, Verb: "create", Resource: "status"},
	}
	got, _ := json.Marshal(p.roles.asked)
	if wanted, _ := json.Marshal(want); !bytes.Equal(got, wanted) {
		t.Errorf("reviewed:\n%s\nwant:\n%s", got, wanted)
	}
}

func TestUnauthorisedUserIsRejected(t *testing.T) {
	p := newPlace(t)
	asked := false
	p.questions.answer = func(context.Context, *inspect.Question) (any, error) { asked = true; return 1, nil }
	other := newAuthority(t)
	allow := p.authority
	usage := x509.ExtKeyUsageClientAuth
	for name, c := range map[string]struct {
		cert *tls.Certificate
		says string
	}{
		"nobody's certificate":      {nil, ""},
		"another authority":         {other.client("front-proxy-client", time.Hour, usage), ""},
		"expired":                   {allow.client("front-proxy-client", -time.Minute, usage), ""},
		"another name":              {allow.client("front-proxy-clients", time.Hour, usage), ""},
		"a server's":                {allow.client("front-proxy-client", time.Hour, x509.ExtKeyUsageServerAuth), ""},
		"of netmaster's administer": {admin(t), ""},
	} {
		for _, two := range []bool{false, true} {
			if code, text := p.do(p.client(c.cert, two), p.request(http.MethodGet, statusPath, nil, "jane", "X-Remote-Group", "system:masters")); code != 0 && code != http.StatusUnauthorized {
				t.Errorf("%s: %d: %s", name, code, text)
			}
		}
	}
	for name, c := range map[string]struct {
		code int
		user string
		says string
	}{
		"no user": {http.StatusUnauthorized, "", "does not say for whom"},
		"no role": {http.StatusForbidden, "joe", `user \"joe\" may not get status.inspect.flowkeep.io in the cluster: an administrator can bind the ClusterRole flowkeep-view`},
	} {
		if code, text := p.get(c.user, statusPath); code != c.code || !strings.Contains(text, c.says) {
			t.Errorf("%s: %d: %s", name, code, text)
		}
	}
	if asked {
		t.Error("one of them had an answer")
	}
}

func admin(t *testing.T) *tls.Certificate {
	dir := t.TempDir()
	if err := errors.Join(mtls.Init(dir), mtls.IssueAdmin(dir)); err != nil {
		t.Fatal(err)
	}
	cert, err := tls.LoadX509KeyPair(filepath.Join(dir, "admin.crt"), filepath.Join(dir, "admin.key"))
	if err != nil {
		t.Fatal(err)
	}
	return &cert
}

// Trust may be taken away from whoever is connected already, and what cannot be read changes nothing.
func TestTrustChanges(t *testing.T) {
	p := newPlace(t)
	c := p.client(p.front, true)
	ask := func() int {
		code, _ := p.do(c, p.request(http.MethodGet, statusPath, nil, "jane"))
		return code
	}
	if code := ask(); code != http.StatusOK {
		t.Fatal(code)
	}
	for _, broken := range []map[string]string{{}, {"requestheader-client-ca-file": "x"}, {"requestheader-client-ca-file": p.authority.pem()},
		{"requestheader-client-ca-file": p.authority.pem(), "requestheader-allowed-names": "{"}} {
		if p.server.SetTrust(broken); ask() != http.StatusOK {
			t.Errorf("after %v the front proxy is refused", broken)
		}
	}
	p.server.SetTrust(newAuthority(t).configMap())
	if code := ask(); code != http.StatusUnauthorized {
		t.Errorf("the connection of before is answered: %d", code)
	}
	p.server.SetTrust(p.authority.configMap())
	if code := ask(); code != http.StatusOK {
		t.Error(code)
	}
	p.server.SetTrust(nil)
	if code := ask(); code != http.StatusUnauthorized {
		t.Errorf("nobody is trusted, and is answered: %d", code)
	}
	if code, _ := p.get("jane", statusPath); code != 0 {
		t.Errorf("a new connection is made: %d", code)
	}
}

// Without the API server's word nobody is answered.
func TestReviewsFail(t *testing.T) {
	p := newPlace(t)
	p.roles.err = errors.New("connection refused")
	for range 2 {
		if code, text := p.get("jane", statusPath); code != http.StatusServiceUnavailable || !strings.Contains(text, "connection refused") {
			t.Errorf("%d: %s", code, text)
		}
	}
	p.roles.mu.Lock()
	p.roles.err = nil
	p.roles.mu.Unlock()
	if code, text := p.get("jane", statusPath); code != http.StatusOK {
		t.Errorf("a failure is remembered: %d: %s", code, text)
	}
}

func TestVerdictsAreRememberedForAShortTime(t *testing.T) {
	r := &roles{may: map[string]bool{"jane": true}}
	j := newJudge(r)
	now := time.Unix(0, 0)
	j.now = func() time.Time { return now }
	ask := func(q Request, want bool, reviews int64) {
		t.Helper()
		before := r.counts.Load()
		if allowed, _, err := j.review(t.Context(), &q); err != nil || allowed != want || r.counts.Load()-before != reviews {
			t.Errorf("%+v: %v, %v after %d reviews", q, allowed, err, r.counts.Load()-before)
		}
	}
	jane := Request{User: User{Name: "jane"}, Verb: "get", Resource: "status"}
	joe := Request{User: User{Name: "joe"}, Verb: "get", Resource: "status"}
	ask(jane, true, 1)
	ask(joe, false, 1)
	ask(jane, true, 0)
	ask(joe, false, 0)
	delete(r.may, "jane")
	r.may["joe"] = true
	for _, other := range []Request{{User: jane.User, Verb: "watch", Resource: "status"}, {User: jane.User, Verb: "get", Resource: "flows"}, {User: jane.User, Verb: "get", Resource: "status", Namespace: "x"},
		{User: User{Name: "jane", Groups: []string{"g"}}, Verb: "get", Resource: "status"}, {User: User{Name: "jane", UID: "2"}, Verb: "get", Resource: "status"}} {
		ask(other, false, 1)
	}
	now = now.Add(verdictTTL)
	ask(jane, false, 1)
	ask(joe, true, 1)
	for i := range 3 * maxVerdicts {
		ask(Request{User: User{Name: fmt.Sprint("user", i)}}, false, 1)
	}
	if len(j.known) > maxVerdicts {
		t.Errorf("%d are remembered", len(j.known))
	}
}

func TestQueriesThatAreInvalid(t *testing.T) {
	p := newPlace(t)
	ask := func(q string) string { return "?question=" + url.QueryEscape(q) }
	for path, want := range map[string]int{
		"/":                                         http.StatusNotFound,
		"/apis/inspect.flowkeep.io/v2":              http.StatusNotFound,
		inspect.Prefix + "/":                        http.StatusNotImplemented,
		inspect.Prefix + "/secrets/answer":          http.StatusNotImplemented,
		inspect.Prefix + "/status":                  http.StatusNotFound, // nobody lists
		inspect.Prefix + "/status/other":            http.StatusNotFound,
		inspect.Prefix + "/status/answer/x":         http.StatusNotFound,
		inspect.Prefix + "/namespaces/shop":         http.StatusNotImplemented,
		inspect.Prefix + "/namespaces//wait/answer": http.StatusNotFound,
		statusPath + ask(`{`):                       http.StatusBadRequest,
		statusPath + ask(`{"kind":"wait"}`):         http.StatusBadRequest, // authorised for one, asks another
		statusPath + "?within=soon":                 http.StatusBadRequest,
		statusPath + "?within=-1s":                  http.StatusBadRequest,
		statusPath + "?watch=true":                  http.StatusNotFound,
		inspect.Prefix + "/namespaces/shop/wait/answer" + ask(`{"kind":"wait","id":"other/db"}`): http.StatusForbidden,
		inspect.Prefix + "/namespaces/shop/status/answer":                                        http.StatusForbidden,
		inspect.Prefix + "/namespaces/shop/wait/answer" + ask(`{"kind":"wait","id":"shop/db"}`):  http.StatusOK,
	} {
		if code, text := p.get("jane", path); code != want {
			t.Errorf("%s: %d, want %d: %s", path, code, want, text)
		}
	}
	c := p.client(p.front, true)
	if code, text := p.do(c, p.request(http.MethodPost, inspect.Prefix+"/status", bytes.NewReader(make([]byte, maxBody+1)), "jane")); code != http.StatusBadRequest {
		t.Errorf("a huge question: %d: %s", code, text)
	}
	if code, text := p.do(c, p.request(http.MethodDelete, inspect.Prefix+"/status", nil, "jane")); code != http.StatusNotFound {
		t.Errorf("DELETE: %d: %s", code, text)
	}
}

func TestErrorsKeepTheirCodes(t *testing.T) {
	p := newPlace(t)
	for code, want := range map[codes.Code]int{codes.NotFound: 404, codes.Unavailable: 503, codes.FailedPrecondition: 409, codes.Internal: 500, codes.DeadlineExceeded: 504, codes.Unimplemented: 501} {
		p.questions.answer = func(context.Context, *inspect.Question) (any, error) { return nil, status.Error(code, "it is so") }
		got, text := p.get("jane", statusPath)
		var f inspect.Failure
		if err := json.Unmarshal([]byte(text), &f); err != nil || got != want || f.GRPC != code || f.Message != "it is so" || f.Kind != "Status" {
			t.Errorf("%v: %d: %s (%v)", code, got, text, err)
		}
	}
	p.questions.answer = func(ctx context.Context, _ *inspect.Question) (any, error) {
		<-ctx.Done()
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	if code, text := p.get("jane", statusPath+"?within=50ms"); code != http.StatusGatewayTimeout {
		t.Errorf("%d: %s", code, text)
	}
}

// A watch is heard at once, says that it lives, ends with its reason, and with its client.
func TestWatch(t *testing.T) {
	p := newPlaceWith(t, func(s *Server) { s.heartbeat = 5 * time.Millisecond })
	more, gone := make(chan error), make(chan struct{}, 2)
	p.questions.stream = func(ctx context.Context, q *inspect.Question, send func(*inspect.Answer) error) error {
		defer func() { gone <- struct{}{} }()
		for {
			select {
			case err := <-more:
				if err != nil {
					return err
				}
				if err := send(&inspect.Answer{Body: json.RawMessage(`{"n":1}`)}); err != nil {
					return err
				}
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	for _, two := range []bool{false, true} {
		resp, err := p.client(p.front, two).Do(p.request(http.MethodGet, inspect.Prefix+"/drops?watch=true", nil, "jane"))
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(resp.Body)
		next := func(want string) {
			t.Helper()
			empty := 0
			for lines.Scan() && lines.Text() == "" {
				empty++
			}
			if lines.Text() != want {
				t.Errorf("%q, want %q: %v", lines.Text(), want, lines.Err())
			}
		}
		for range 3 { // somebody waits, and hears that netmaster lives
			if !lines.Scan() || lines.Text() != "" {
				t.Errorf("%q: %v", lines.Text(), lines.Err())
			}
		}
		more <- nil
		next(`{"type":"ANSWER","object":{"n":1}}`)
		more <- status.Error(codes.NotFound, "it is over")
		next(`{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","status":"Failure","message":"it is over","reason":"NotFound","code":404,"grpc":5}}`)
		<-gone
		if lines.Scan() {
			t.Errorf("%q after the end", lines.Text())
		}
		resp.Body.Close()

		ctx, cancel := context.WithCancel(t.Context())
		resp, err = p.client(p.front, two).Do(p.request(http.MethodGet, inspect.Prefix+"/drops?watch=true", nil, "jane").WithContext(ctx))
		if err != nil {
			t.Fatal(err)
		}
		if !bufio.NewScanner(resp.Body).Scan() { // before its first line, a watch whose client goes asks nobody
			t.Error("no heartbeat")
		}
		cancel()
		resp.Body.Close()
		<-gone
	}
}

func TestHugeHeaders(t *testing.T) {
	p := newPlace(t)
	for _, two := range []bool{false, true} {
		var groups []string
		for i := range 500 {
			groups = append(groups, "X-Remote-Group", fmt.Sprintf("a-group-of-people-number-%06d", i))
		}
		c := p.client(p.front, two)
		if code, text := p.do(c, p.request(http.MethodGet, statusPath, nil, "jane", groups...)); code != http.StatusOK {
			t.Errorf("500 groups: %d: %s", code, text)
		}
		if code, text := p.do(c, p.request(http.MethodGet, statusPath, nil, "jane", "X-Remote-Group", strings.Repeat("x", 2*maxHeader))); code == http.StatusOK {
			t.Errorf("huge headers are taken: %d: %.100s", code, text)
		}
		if code, _ := p.do(p.client(p.front, two), p.request(http.MethodGet, statusPath, nil, "jane")); code != http.StatusOK {
			t.Errorf("afterwards: %d", code)
		}
	}
}

// Who says nothing, or slowly, is left, before and after the handshake.
func TestSlowPeers(t *testing.T) { synctest.Test(t, testSlowPeers) }

func testSlowPeers(t *testing.T) {
	l := bufconn.Listen(1 << 10)
	p := newPlaceOn(t, l, func(*Server) {})
	secure := func() (net.Conn, error) {
		c, err := l.Dial()
		if err != nil {
			return nil, err
		}
		s := tls.Client(c, &tls.Config{RootCAs: p.pool, ServerName: mtls.ServiceName, Certificates: []tls.Certificate{*p.front}})
		return s, s.Handshake()
	}
	var all sync.WaitGroup
	check := func(name string, dial func() (net.Conn, error), words string) {
		all.Go(func() {
			began := time.Now()
			c, err := dial()
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			_, _ = io.WriteString(c, words)
			_, _ = io.Copy(io.Discard, c)
			if took := time.Since(began); took != headerTimeout {
				t.Errorf("%s: kept for %v", name, took)
			}
		})
	}
	check("no handshake", l.Dial, "")
	check("half a handshake", l.Dial, "\x16\x03\x01\x02\x00")
	check("half a header", secure, "GET / HTTP/1.1\r\nX-Remote-User: jane\r\n")
	all.Wait()
}

func TestTrustIsParsed(t *testing.T) {
	a := newAuthority(t)
	data := a.configMap()
	data["requestheader-allowed-names"] = `[]`
	tr, err := parseTrust(data)
	if err != nil || len(tr.names) != 0 {
		t.Fatal(tr, err)
	}
	for _, name := range []string{"anybody", "front-proxy-client"} {
		leaf, _ := x509.ParseCertificate(a.client(name, time.Hour, x509.ExtKeyUsageClientAuth).Certificate[0])
		if err := tr.verify([]*x509.Certificate{leaf}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	u, err := tr.userOf(http.Header{"X-Remote-User": {"a", "b"}, "X-Remote-Extra-": {"x"}, "X-Remote-Extra-%zz": {"y"}})
	if err != nil || u.Name != "a" || len(u.Extra) != 1 || !slices.Equal(u.Extra["%zz"], []string{"y"}) {
		t.Errorf("%+v, %v", u, err)
	}
}

// TestAccess_ServicesOfANamespace: who may query Services of a namespace gets no others, nor what a node says of all.
func TestAccess_ServicesOfANamespace(t *testing.T) {
	p := newPlace(t)
	p.roles.may["jane"] = true
	for question, want := range map[string]int{
		`{"kind":"frontends","namespace":"shop"}`:                                http.StatusOK,
		`{"kind":"frontends","id":"shop/web"}`:                                   http.StatusOK,
		`{"kind":"frontends","id":"shop/web","namespace":"bank"}`:                http.StatusOK, // the ID counts
		`{"kind":"frontends"}`:                                                   http.StatusForbidden,
		`{"kind":"frontends","namespace":"bank"}`:                                http.StatusForbidden,
		`{"kind":"frontends","id":"bank/web","namespace":"shop"}`:                http.StatusForbidden,
		`{"kind":"frontends","id":"shop/web","node":"node1","fromNode":true}`:    http.StatusForbidden,
		`{"kind":"frontends","id":"shop/web","node":"node1","namespace":"shop"}`: http.StatusOK,
	} {
		path := inspect.Prefix + "/namespaces/shop/frontends/answer?question=" + url.QueryEscape(question)
		if code, text := p.get("jane", path); code != want {
			t.Errorf("%s: %d, want %d: %s", question, code, want, text)
		}
	}
}
