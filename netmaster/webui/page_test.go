package webui

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/internal/mtls"
	"github.com/flowkeep/flowkeep/internal/process"
	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/netmaster/webui/webuitest"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// ask sends a request as given and decodes an answer of success.
func ask(t *testing.T, r *http.Request, out any) (code int, text string, header http.Header) {
	t.Helper()
	answer, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	if out != nil && answer.StatusCode == http.StatusOK {
		if err := json.Unmarshal(body, out); err != nil {
			t.Fatalf("%v: %s", err, body)
		}
	}
	return answer.StatusCode, string(body), answer.Header
}

func request(t *testing.T, method, url, body string, headers ...string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			r.Host = headers[i+1]
		}
		r.Header.Set(headers[i], headers[i+1])
	}
	return r
}

// serve serves the web UI at a loopback address until the test ends.
func serve(t *testing.T, i Inspector, tokenFile string) (*Server, *httptest.Server) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s, err := serverOn(listener, Config{TokenFile: tokenFile, Inspector: i, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	h := &httptest.Server{Listener: listener, Config: &http.Server{Handler: s.Handler()}}
	h.Start()
	t.Cleanup(h.Close)
	return s, h
}

// What browsers are told to forbid, on every answer, the refused ones too.
func TestHeaders(t *testing.T) {
	_, h := serve(t, webuitest.Shop(), "")
	for _, path := range []string{"/", "/main.js", "/docs/", "/docs/search.html", "/api/overview", "/nothing", "/api/nothing"} {
		_, _, header := ask(t, request(t, "GET", h.URL+path, ""), nil)
		for name, want := range map[string]string{"Content-Security-Policy": "frame-ancestors 'none'", "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer",
			"Cross-Origin-Resource-Policy": "same-origin"} {
			if !strings.Contains(header.Get(name), want) {
				t.Errorf("%s: %s is %q, wanted %q in it", path, name, header.Get(name), want)
			}
		}
		csp := header.Get("Content-Security-Policy")
		if !strings.Contains(csp, "default-src 'none'") || strings.Contains(csp, "unsafe") || strings.Contains(csp, "*") || header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s: the content security policy %q lets more in than our own files", path, csp)
		}
	}
}

// Only what is ours is served, under its name, and nothing of it runs or styles inline, or makes markup of text.
func TestFiles(t *testing.T) {
	_, h := serve(t, webuitest.Shop(), "")
	for _, path := range []string{"/../page.go", "/..%2fpage.go", "/%2e%2e/page.go", "/static/main.js", "/.", "/main.js/", "//main.js", "/index.html%00.js", "/main.JS"} {
		if code, text, _ := ask(t, request(t, "GET", h.URL+path, ""), nil); code == http.StatusOK && !strings.HasPrefix(text, "<!doctype") || strings.Contains(text, "package page") {
			t.Errorf("%s is answered with %d: %.60q", path, code, text)
		}
	}
	for _, method := range []string{"POST", "PUT", "DELETE", "OPTIONS"} {
		for _, path := range []string{"/", "/api/overview", "/api/matrix"} {
			if code, _, _ := ask(t, request(t, method, h.URL+path, ""), nil); code < 400 {
				t.Errorf("%s %s is answered with %d", method, path, code)
			}
		}
	}
	_, _, header := ask(t, request(t, "GET", h.URL+"/main.js", ""), nil)
	if code, _, _ := ask(t, request(t, "GET", h.URL+"/main.js", "", "If-None-Match", header.Get("ETag")), nil); code != http.StatusNotModified || header.Get("ETag") == "" {
		t.Errorf("a file that the browser has is sent again: %d", code)
	}
	forbidden := regexp.MustCompile(`innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|style="|https?://[^w]|\son[a-z]+="`)
	err := fs.WalkDir(static, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := fs.ReadFile(static, name)
		if found := forbidden.Find(text); found != nil {
			t.Errorf("%s has %q", name, found)
		}
		if inline := regexp.MustCompile(`<script[^>]*>[^<]`).Find(text); inline != nil {
			t.Errorf("%s has a script inline", name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A name that a stranger's DNS server points to this machine, and pages of other sites, get nothing.
func TestGuard_ForeignHostsAndOrigins(t *testing.T) {
	_, h := serve(t, webuitest.Shop(), "")
	port := h.URL[strings.LastIndexByte(h.URL, ':'):]
	for _, c := range []struct {
		name    string
		headers []string
		fine    bool
	}{
		{"as it is", nil, true},
		{"localhost", []string{"Host", "localhost" + port}, true},
		{"a forwarded port", []string{"Host", "LOCALHOST:1"}, true},
		{"IPv6", []string{"Host", "[::1]" + port}, true},
		{"127.0.0.2", []string{"Host", "127.0.0.2"}, true},
		{"rebinding", []string{"Host", "evil.example" + port}, false},
		{"rebinding with a number in front", []string{"Host", "127.0.0.1.evil.example" + port}, false},
		{"a subdomain of localhost", []string{"Host", "x.localhost" + port}, false},
		{"another address", []string{"Host", "192.0.2.1" + port}, false},
		{"no host", []string{"Host", " "}, false},
		{"our own page", []string{"Origin", h.URL, "Sec-Fetch-Site", "same-origin"}, true},
		{"another site", []string{"Origin", "https://evil.example"}, false},
		{"another port of this machine", []string{"Origin", "http://127.0.0.1:1"}, false},
		{"a sandboxed frame", []string{"Origin", "null"}, false},
		{"an image of another site", []string{"Sec-Fetch-Site", "cross-site"}, false},
		{"another port, by fetch metadata", []string{"Sec-Fetch-Site", "same-site"}, false},
		{"typed by a person", []string{"Sec-Fetch-Site", "none"}, true},
	} {
		code, text, _ := ask(t, request(t, "GET", h.URL+"/api/overview", "", c.headers...), nil)
		if (code == http.StatusOK) != c.fine {
			t.Errorf("%s: %d %s", c.name, code, text)
		}
	}
	if code, _, _ := ask(t, request(t, "GET", h.URL+"/", "", "Sec-Fetch-Site", "cross-site"), nil); code != http.StatusOK {
		t.Errorf("a link to the page from elsewhere is refused: %d", code)
	}
}

// Where a token is needed there is no data without it; the files hold no secrets.
func TestToken(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	s, h := serve(t, webuitest.Shop(), file)
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 || s.TokenFile() != file {
		t.Fatalf("the token's file: %v, %v", info, err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	token := strings.TrimSpace(string(text))
	try := func(headers ...string) int {
		code, _, _ := ask(t, request(t, "GET", h.URL+"/api/overview", "", headers...), nil)
		return code
	}
	for _, wrong := range []string{"", "Bearer", "Bearer ", "Bearer " + token[:len(token)-1], "Bearer " + token + "x", "Basic " + token, token} {
		if code := try("Authorization", wrong); code != http.StatusUnauthorized {
			t.Errorf("%q: %d", wrong, code)
		}
	}
	if code, _, _ := ask(t, request(t, "POST", h.URL+"/api/whatif", `{}`, "Content-Type", "application/json"), nil); code != http.StatusUnauthorized {
		t.Errorf("what-if without a token: %d", code)
	}
	if code, _, _ := ask(t, request(t, "GET", h.URL+"/", ""), nil); code != http.StatusOK {
		t.Errorf("the page itself, which asks for the token: %d", code)
	}
	if code := try("Authorization", "Bearer "+token); code != http.StatusOK {
		t.Errorf("with the token: %d", code)
	}
	other := "another token of some length"
	if err := os.WriteFile(file, []byte(other+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code := try("Authorization", "Bearer "+token); code != http.StatusUnauthorized {
		t.Errorf("the old token after a change: %d", code)
	}
	if code := try("Authorization", "Bearer "+other); code != http.StatusOK {
		t.Errorf("the new token: %d", code)
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if code := try("Authorization", "Bearer "); code == http.StatusOK {
		t.Error("an empty file lets everybody in")
	}
	if err := ensureToken(file); err == nil {
		t.Error("an empty file is taken for a token at the start")
	}
}

// On an address that is not loopback: TLS with netmaster's certificate, and a token without being asked for one.
func TestOtherAddresses(t *testing.T) {
	dir := t.TempDir()
	if err := mtls.Init(dir); err != nil {
		t.Fatal(err)
	}
	if err := mtls.IssueServer(dir, []string{"127.0.0.1"}); err != nil {
		t.Fatal(err)
	}
	files := mtls.Files{CA: filepath.Join(dir, "ca.crt"), Cert: filepath.Join(dir, "server.crt"), Key: filepath.Join(dir, "server.key")}
	s, err := Listen(Config{
		Address:          "0.0.0.0:0",
		DefaultTokenFile: filepath.Join(dir, "page.token"),
		TLS:              files,
		Inspector:        webuitest.Shop(),
		Logger:           slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	authority, err := os.ReadFile(files.CA)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(authority)
	client := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}}
	defer client.CloseIdleConnections()
	url := strings.Replace(s.URL(), "0.0.0.0", "127.0.0.1", 1)
	url = strings.Replace(url, "[::]", "127.0.0.1", 1)
	token, err := os.ReadFile(s.TokenFile())
	if err != nil || s.TokenFile() != filepath.Join(dir, "page.token") {
		t.Fatal(err, s.TokenFile())
	}
	for authorization, want := range map[string]int{"": http.StatusUnauthorized, "Bearer " + strings.TrimSpace(string(token)): http.StatusOK} {
		answer, err := client.Do(request(t, "GET", url+"api/overview", "", "Authorization", authorization))
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if answer.StatusCode != want {
			t.Errorf("%q: %d", authorization, answer.StatusCode)
		}
	}
}

// The answers are netmaster's, in the words of netctl.
func TestAnswers(t *testing.T) {
	w := webuitest.Shop()
	_, h := serve(t, w, "")
	get := func(path string, out any) {
		t.Helper()
		if code, text, _ := ask(t, request(t, "GET", h.URL+"/api/"+path, ""), out); code != http.StatusOK {
			t.Fatalf("%s: %d %s", path, code, text)
		}
	}
	var o overview
	if get("overview", &o); o.Line != "degraded: 2 problems" || len(o.Status.Nodes) != 3 || o.Status.Policies != 3 {
		t.Errorf("overview: %+v", o)
	}
	var m matrix
	get("matrix?port=5432", &m)
	api, db := m.Find("shop/api"), m.Find("shop/db")
	if !slices.Contains(m.Labels[db], "note="+webuitest.Markup) ||
		m.Cell(api, db).String() != "TCP 5432" || !m.Cell(db, api).IsNone() {
		t.Errorf("matrix: %+v", m)
	}
	var x explained
	get("explain?from=outside/intruder&to=shop/db:5432", &x)
	side := x.Ways[0].Sides[1]
	if x.Ways[0].Allowed || !x.Ways[1].AsBefore || len(x.Ways[0].Traces) != 0 || side.Policies[0].Rules[0].Entries[0].Why == "" || len(side.Remedies) == 0 {
		t.Errorf("explanation: %+v", x)
	}
	if get("explain?from=outside/intruder&to=shop/db:5432&proof=1", &x); len(x.Ways[0].Traces) != 1 || len(x.Ways[0].Disagreements) != 1 {
		t.Errorf("proof: %+v", x)
	}
	if c := x.Ways[0].Caveat; c != "the switch of node1 disagrees" {
		t.Errorf("the caveat is %q", c)
	}
	var list []inspect.Policy
	if get("policies", &list); len(list) != 3 || list[0].Pods != 1 || list[0].Nodes[1].State != "pending" {
		t.Errorf("policies: %+v", list)
	}
	var p shown
	if get("policy?id=shop/db", &p); !strings.Contains(p.YAML, "5432") || len(p.Rules) == 0 {
		t.Errorf("policy: %+v", p)
	}
	if get("policy?id=shop/web", &p); !strings.Contains(p.YAMLProblem, "API server is away") || len(p.Rules) == 0 {
		t.Errorf("policy without an API server: %+v", p)
	}
}

func TestAnswers_PodNotAttached(t *testing.T) {
	w := webuitest.Shop()
	w.SetUnattached(webuitest.Pod("shop", "db", 4, "app", "db"))
	_, h := serve(t, w, "")
	get := func(path string, out any) {
		t.Helper()
		if code, text, _ := ask(t, request(t, "GET", h.URL+"/api/"+path, ""), out); code != http.StatusOK {
			t.Fatalf("%s: %d %s", path, code, text)
		}
	}
	var o overview
	if get("overview", &o); o.Status.NotEnforced != 1 {
		t.Errorf("overview: %+v", o.Status)
	}
	another := webuitest.Shop()
	another.SetUnattached(webuitest.Pod("shop", "api", 3, "app", "api"))
	_, other := serve(t, another, "")
	var p overview
	ask(t, request(t, "GET", other.URL+"/api/overview", ""), &p)
	if p.Status.NotEnforced != 1 || p.Status.Unattached == o.Status.Unattached {
		t.Errorf("digest %d of two different pods: no view would reload", p.Status.Unattached)
	}
	var m matrix
	if get("matrix", &m); !slices.Equal(m.NotEnforced, []string{"shop/db"}) {
		t.Errorf("matrix: %v", m.NotEnforced)
	}
	var x explained
	get("explain?from=outside/intruder&to=shop/db:5432", &x)
	first := &x.Ways[0]
	if first.Caveat != "shop/db is not wired by Flowkeep, its side is not enforced" || !first.Unproved ||
		!strings.HasPrefix(first.Sides[1].Summary, "not enforced, denied: shop/db is isolated") {
		t.Errorf("explanation: %+v", x)
	}
	if get("explain?from=shop/db&to=outside/intruder:80", &x); x.Ways[0].Sides[1].Summary[:4] != "open" {
		t.Errorf("explanation: %+v", x)
	}
}

// standby is a netmaster whose answers are of a state, but for its status.
type standby struct{ *webuitest.Netmaster }

func (s standby) Answer(ctx context.Context, q *inspect.Question) (*inspect.Answer, error) {
	a, err := s.Netmaster.Answer(ctx, q)
	if err == nil && q.Kind != inspect.AskStatus {
		a.Cached = &inspect.Cached{Source: q.Kind, Epoch: 5, Revision: 71, Standby: "b"}
	}
	return a, err
}

// TestCachedHeader: a response shows the state that its first answer is of.
func TestCachedHeader(t *testing.T) {
	_, h := serve(t, standby{webuitest.Shop()}, "")
	for path, source := range map[string]string{
		"overview":                              "",
		"matrix":                                inspect.AskMatrix,
		"policies":                              inspect.AskPolicies,
		"policy?id=shop/db":                     inspect.AskPolicies,
		"explain?from=shop/api&to=shop/db:5432": inspect.AskExplain,
	} {
		want := ""
		if source != "" {
			want = "source=" + source + "; epoch=5; revision=71; standby=b"
		}
		_, _, header := ask(t, request(t, "GET", h.URL+"/api/"+path, ""), nil)
		if got := header.Get(inspect.CachedHeader); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
}

// A policy of a thousand peers, about as many as its budget allows, is shown in a screenful, the peer that matches first.
func TestHugeExplanation(t *testing.T) {
	w := webuitest.Shop()
	rule := policy.PolicyRule{AnyPort: true}
	for i := range 1000 {
		rule.Peers = append(rule.Peers, webuitest.Peer("app", fmt.Sprintf("client-%d", i)))
	}
	rule.Peers = append(rule.Peers, webuitest.Peer("app", "web"))
	w.Apply(resolve.Batch{Policies: []*policy.Policy{{
		Namespace:       "shop",
		Name:            "huge",
		AppliedTo:       webuitest.Labelled("app", "db"),
		IsolatesIngress: true,
		Ingress:         []policy.PolicyRule{rule},
	}}})
	_, h := serve(t, w, "")
	var x explained
	_, text, _ := ask(t, request(t, "GET", h.URL+"/api/explain?from=shop/web&to=shop/db:5432", ""), &x)
	if len(text) > 100_000 {
		t.Errorf("%d bytes", len(text))
	}
	huge := x.Ways[0].Sides[1].Policies[1]
	entries := huge.Rules[0].Entries
	if huge.Policy != "shop/huge" || !x.Ways[0].Allowed || entries[0].Text != "pods app=web" || !slices.ContainsFunc(entries, func(e entry) bool { return e.Text == "and 951 more peers" }) {
		t.Errorf("%+v", huge)
	}
}

// What a dry run would say stands beside what is in force.
func TestExplanationOfADryRun(t *testing.T) {
	w := webuitest.Shop()
	staged := &policy.Policy{
		Namespace:       "outside",
		Name:            "staged",
		DryRun:          true,
		AppliedTo:       webuitest.Labelled("app", "intruder"),
		IsolatesIngress: true,
		IsolatesEgress:  true,
		Ingress:         []policy.PolicyRule{{AnyPeer: true, AnyPort: true}},
	}
	w.Apply(resolve.Batch{Policies: []*policy.Policy{staged}})
	_, h := serve(t, w, "")
	for path, want := range map[string]string{
		"from=outside/intruder&to=203.0.113.5:1": "0 open: no policy isolates outside/intruder; in a dry run it would be denied: outside/intruder would be isolated by outside/staged, and no rule would allow it",
		"from=203.0.113.5&to=outside/intruder:1": "1 open: no policy isolates outside/intruder; in a dry run allowed by outside/staged ingress[0]",
	} {
		var x explained
		if code, text, _ := ask(t, request(t, "GET", h.URL+"/api/explain?"+path, ""), &x); code != http.StatusOK || !x.Ways[0].Allowed {
			t.Fatalf("%s: %d %s", path, code, text)
		}
		if side := x.Ways[0].Sides[want[0]-'0']; side.Summary != want[2:] {
			t.Errorf("%s: %s", path, side.Summary)
		}
	}
}

// The documentation is served without a token, under the names of its files and of its documents.
func TestManual(t *testing.T) {
	_, h := serve(t, webuitest.Shop(), filepath.Join(t.TempDir(), "token"))
	for path, want := range map[string]struct {
		code           int
		kind, location string
	}{
		"/docs":                       {http.StatusTemporaryRedirect, "", "/docs/"},
		"/docs/":                      {http.StatusOK, "text/html; charset=utf-8", ""},
		"/docs/index.html":            {http.StatusOK, "text/html; charset=utf-8", ""},
		"/docs/netctl/":               {http.StatusOK, "text/html; charset=utf-8", ""},
		"/docs/install.html":          {http.StatusOK, "text/html; charset=utf-8", ""},
		"/docs/site.css":              {http.StatusOK, "text/css; charset=utf-8", ""},
		"/docs/search-data.js":        {http.StatusOK, "text/javascript; charset=utf-8", ""},
		"/docs/images/page-graph.png": {http.StatusOK, "image/png", ""},
		"/docs/install.md":            {http.StatusFound, "", "./install.html"},
		"/docs/netctl/README.md":      {http.StatusFound, "", "../netctl/index.html"},
		"/docs/none.html":             {http.StatusNotFound, "application/json", ""},
		"/docs/none.md":               {http.StatusNotFound, "application/json", ""},
		"/docs/images/":               {http.StatusNotFound, "application/json", ""},
	} {
		code, text, header := ask(t, request(t, "GET", h.URL+path, ""), nil)
		if code != want.code || want.kind != "" && header.Get("Content-Type") != want.kind ||
			header.Get("Location") != want.location {
			t.Errorf("%s: %d %q %q", path, code, header.Get("Content-Type"), header.Get("Location"))
		}
		if path == "/docs/" && (!strings.Contains(text, `href="../">Web UI<`) || !strings.Contains(text, process.BuildVersion())) {
			t.Errorf("the front page has no version or way back: %.900s", text)
		}
	}
}

// Paths to the documentation in the files of the web UI lead to its pages and anchors.
func TestManual_LinksOfTheWebUILeadSomewhere(t *testing.T) {
	page, seen := regexp.MustCompile(`['"]docs/([a-z/-]*)(?:\.html(?:#([a-z0-9-]+))?)?['"]`), 0
	err := fs.WalkDir(static, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := static.ReadFile(name)
		for _, m := range page.FindAllSubmatch(text, -1) {
			seen++
			document := "docs/" + string(m[1]) + ".md"
			if len(m[1]) == 0 {
				document = "README.md"
			}
			if !manual().HasPage(document, string(m[2])) {
				t.Errorf("%s: %s leads nowhere", name, m[0])
			}
		}
		return err
	})
	if err != nil || seen < 2 {
		t.Errorf("%d links: %v", seen, err)
	}
}

// Problems and errors come with the section of the documentation about them.
func TestHelp(t *testing.T) {
	w := webuitest.Shop()
	_, h := serve(t, w, filepath.Join(t.TempDir(), "token"))
	var refused struct{ Error, Help string }
	_, text, _ := ask(t, request(t, "GET", h.URL+"/api/overview", ""), nil)
	if err := json.Unmarshal([]byte(text), &refused); err != nil || refused.Help != "docs/web-ui.html#access" {
		t.Errorf("without a token: %s %v", text, err)
	}
	_, h = serve(t, w, "")
	var o overview
	ask(t, request(t, "GET", h.URL+"/api/overview", ""), &o)
	if len(o.Help) != len(o.Status.Problems) || len(o.Help) == 0 {
		t.Fatalf("%d problems, %d sections", len(o.Status.Problems), len(o.Help))
	}
	want := map[string]string{"memcached says": "docs/troubleshooting.html", "is refused and enforces": "docs/troubleshooting.html#a-node-has-no-netmaster"}
	for i, problem := range o.Status.Problems {
		for part, section := range want {
			if strings.Contains(problem, part) && o.Help[i] == section {
				delete(want, part)
			}
		}
	}
	if len(want) > 0 {
		t.Errorf("%q: %q lack %v", o.Status.Problems, o.Help, want)
	}
}

// What cannot be asked is refused with a sentence, and nothing is asked of netmaster.
func TestInvalidQueries(t *testing.T) {
	w := webuitest.Shop()
	_, h := serve(t, w, "")
	for path, code := range map[string]int{"matrix?port=0": 400, "matrix?port=80/icmp": 400, "matrix?port=http": 400, "matrix?ns=nowhere": 404, "explain": 400, "explain?from=shop/web": 400,
		"explain?from=shop/web&to=shop/db:0": 400, "explain?from=shop/nobody&to=shop/db:1": 404, "policy": 400, "policy?id=shop/nothing": 404, "nothing": 404} {
		var e struct{ Error string }
		got, text, _ := ask(t, request(t, "GET", h.URL+"/api/"+path, ""), nil)
		if err := json.Unmarshal([]byte(text), &e); got != code || err != nil || e.Error == "" {
			t.Errorf("%s: %d %s", path, got, text)
		}
	}
	w.SetAway(true)
	if code, text, _ := ask(t, request(t, "GET", h.URL+"/api/explain?from=shop/web&to=shop/db", ""), nil); code != http.StatusServiceUnavailable || !strings.Contains(text, "stopping") {
		t.Errorf("while netmaster stops: %d %s", code, text)
	}
}

func TestWhatIf(t *testing.T) {
	w := webuitest.Shop()
	_, h := serve(t, w, "")
	post := func(kind, manifest string, remove bool, out *whatif) (int, string) {
		body, err := json.Marshal(trial{manifest, remove})
		if err != nil {
			t.Fatal(err)
		}
		code, text, _ := ask(t, request(t, "POST", h.URL+"/api/whatif", string(body), "Content-Type", kind), out)
		return code, text
	}
	const asJSON = "application/json; charset=utf-8"
	asItIs, otherPeer := webuitest.PolicyYAML("db", "db", "api", 5432), webuitest.PolicyYAML("db", "db", "web", 5432)
	var d whatif
	code, text := post(asJSON, otherPeer, false, &d)
	if code != http.StatusOK || d.Same || len(d.Rows) == 0 || !d.Rows[0].Denied || d.Rows[0].From[0] != "shop/api" {
		t.Errorf("another peer: %d %s", code, text)
	}
	if code, text := post(asJSON, asItIs, false, &d); code != http.StatusOK || !d.Same {
		t.Errorf("as it is: %d %s", code, text)
	}
	if code, text := post(asJSON, asItIs, true, &d); code != http.StatusOK || d.Same {
		t.Errorf("removed: %d %s", code, text)
	}
	for name, bad := range map[string]string{
		"nothing":          "",
		"no YAML":          "a: [",
		"no policy":        "{apiVersion: v1, kind: Pod, metadata: {name: x}}",
		"an unknown field": strings.Replace(asItIs, "ingress:", "ingres:", 1),
		"too long":         asItIs + strings.Repeat("#", maxManifest),
	} {
		if code, text := post(asJSON, bad, false, nil); code != http.StatusBadRequest || !strings.Contains(text, `"error"`) {
			t.Errorf("%s: %d %s", name, code, text)
		}
	}
	if code, _ := post("text/plain", asItIs, false, nil); code != http.StatusBadRequest {
		t.Errorf("what a form of another site can send is taken: %d", code)
	}
	if n := w.Policies(); n != 3 {
		t.Errorf("what-if changed the cluster: %d policies", n)
	}
}

// Many browsers that ask the same at the same time cost what one does.
func TestManyBrowsers(t *testing.T) {
	w := webuitest.Shop()
	_, h := serve(t, w, "")
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() { ask(t, request(t, "GET", h.URL+"/api/matrix", ""), nil) })
	}
	all.Wait()
	if kinds := w.Questions(); len(kinds) > 4 {
		t.Errorf("20 browsers asked netmaster %d times: %v", len(kinds), kinds)
	}
}

// Who asks a thousand different things at once takes neither netmaster's time nor its memory from others.
func TestFlood(t *testing.T) {
	w := webuitest.Shop()
	let := make(chan struct{})
	w.Refuse = func(*inspect.Question) error { <-let; return nil }
	s, _ := serve(t, w, "")
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer func() { cancel(); all.Wait(); close(let) }()
	busy := make(chan error, 1000)
	for i := range 1000 {
		all.Go(func() {
			_, err := s.ask.put(ctx, &inspect.Question{Kind: inspect.AskPolicies, Namespace: fmt.Sprint(i)})
			if errors.Is(err, errBusy) {
				busy <- err
			}
		})
	}
	late := time.After(queryTimeout / 4)
	for i := range 1000 - maxWaiting {
		select {
		case <-busy:
		case <-late:
			t.Fatalf("only %d of 1000 are refused", i)
		}
	}
	if n := len(w.Questions()); n > maxAtOnce {
		t.Errorf("netmaster works on %d questions at once", n)
	}
}

// An answer is not older than the change that is asked about, by more than fresh.
func TestAnswersAreFresh(t *testing.T) {
	w := webuitest.Shop()
	_, h := serve(t, w, "")
	url := h.URL + "/api/policies"
	ask(t, request(t, "GET", url, ""), nil)
	web := webuitest.Labelled("app", "web")
	added := &policy.Policy{Namespace: "shop", Name: "new", AppliedTo: web, IsolatesIngress: true}
	w.Apply(resolve.Batch{Policies: []*policy.Policy{added}})
	deadline := time.Now().Add(20 * responseTTL)
	for {
		_, text, _ := ask(t, request(t, "GET", url, ""), nil)
		if strings.Contains(text, `"new"`) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the answer is still of before the change")
		}
	}
}
