package main

import (
	"bytes"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/flowkeep/flowkeep/api/inspect"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// apiServer stands for one with netmaster behind it, or, where it is told so, for one without.
type apiServer struct {
	*netmaster
	refuse func(w http.ResponseWriter, r *http.Request) bool
	mu     sync.Mutex // of seen and users; tests read them when all requests have ended
	seen   []string   // method, path, the parts of the query that tests check
	users  []string
	cached *inspect.Cached // of all answers
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	user := r.Header.Get("Authorization") + " " + r.Header.Get("Impersonate-User") +
		strings.Join(r.Header.Values("Impersonate-Group"), ",")
	s.mu.Lock()
	s.seen = append(s.seen, strings.TrimSpace(r.Method+" "+r.URL.Path+" "+q.Get("watch")))
	s.users = append(s.users, user)
	s.mu.Unlock()
	if s.refuse != nil && s.refuse(w, r) {
		return
	}
	w.Header().Set(inspect.ServedBy, "v1")
	var question inspect.Question
	text := []byte(q.Get(inspect.QuestionParam))
	if r.Method == http.MethodPost {
		var b bytes.Buffer
		_, _ = b.ReadFrom(r.Body)
		text = b.Bytes()
	}
	if err := json.Unmarshal(text, &question); err != nil {
		panic(err)
	}
	a, err := s.Ask(r.Context(), &question)
	if err == nil {
		a.Cached = s.cached
	}
	switch watch := q.Get("watch") == "true"; {
	case err != nil && watch:
		f, _ := json.Marshal(inspect.NewFailure(status.Code(err), message(err)))
		fmt.Fprintf(w, "\n{\"type\":\"ERROR\",\"object\":%s}\n", f)
	case err != nil:
		f := inspect.NewFailure(status.Code(err), message(err))
		w.WriteHeader(f.Code)
		_ = json.NewEncoder(w).Encode(f)
	case watch:
		of, _ := json.Marshal(a.Cached)
		fmt.Fprintf(w, "\n\n{\"type\":\"ANSWER\",\"object\":%s,\"cached\":%s}\n", a.Body, of)
	default:
		if a.Cached != nil {
			w.Header().Set(inspect.CachedHeader, a.Cached.String())
		}
		_, _ = w.Write(a.Body)
	}
}

// newCluster is reached with nothing but the kubeconfig that its bench names.
func newCluster(t *testing.T, answers map[string]any) (*bench, *apiServer) {
	t.Helper()
	s := &apiServer{netmaster: &netmaster{answers: answers}}
	l := httptest.NewTLSServer(s)
	t.Cleanup(l.Close)
	t.Setenv("FLOWKEEP_SERVER", "")
	t.Setenv("HOME", t.TempDir())
	t.Setenv("KUBECONFIG", "")
	file := kubeconfig(t, l)
	return &bench{netmaster: s.netmaster, t: t, flags: []string{"--kubeconfig", file}}, s
}

func kubeconfig(t *testing.T, l *httptest.Server) string {
	dir := t.TempDir()
	ca := filepath.Join(dir, "ca.crt")
	file := filepath.Join(dir, "config")
	text := fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: here, users: [{name: jane, user: {token: janes-token}}],
clusters: [{name: here, cluster: {server: %q, certificate-authority: %s}}, {name: nowhere, cluster: {server: "https://127.0.0.1:1"}}],
contexts: [{name: here, context: {cluster: here, user: jane}}, {name: nowhere, context: {cluster: nowhere, user: jane}}]}`, l.URL+"/behind/a/path", ca)
	for name, content := range map[string][]byte{ca: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: l.Certificate().Raw}), file: []byte(text)} {
		if err := os.WriteFile(name, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return file
}

func TestKubeconfigIsEnough(t *testing.T) {
	b, s := newCluster(t, shop())
	b.prints(0, "status", "healthy: 1 policy in force on 2 nodes")
	b.prints(0, "flows node1", "2 flows on node1")
	file := b.flags[1]
	t.Setenv("KUBECONFIG", file)
	b.flags = nil
	b.prints(0, "policy ls", "shop")
	b.prints(exitUnreachable, "status --context nowhere", "the API server does not answer at https://127.0.0.1:1", "--server")
	b.prints(exitTrouble, "status --context other", `context "other" does not exist`)
	b.prints(0, "status --as joe --as-group a --as-group b", "healthy")
	t.Setenv("FLOWKEEP_SERVER", "127.0.0.1:1")
	b.prints(0, "status --context here", "healthy") // a flag counts more than the environment
	b.prints(exitUsage, "status --context here --server 127.0.0.1:1", "--server asks netmaster itself")
	b.prints(exitUsage, "status --as-group a", "--as-group needs --as")
	t.Setenv("FLOWKEEP_SERVER", "")
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	b.prints(exitTrouble, "status", "no cluster is known: set KUBECONFIG")
	if s.seen[0] != "GET /behind/a/path/apis/inspect.flowkeep.io/v1alpha1/status/answer" || s.users[0] != "Bearer janes-token " || s.users[3] != "Bearer janes-token joea,b" {
		t.Errorf("asked %q by %q", s.seen, s.users)
	}
}

// What takes long is watched, what is long is posted.
func TestHowQuestionsAreAsked(t *testing.T) {
	b, s := newCluster(t, map[string]any{inspect.AskWait: inspect.Wait{Namespace: "shop", Name: "db", Done: true}, inspect.AskStatus: inspect.Status{}, inspect.AskLookup: inspect.Lookup{}})
	long := "app" + strings.Repeat(",!"+strings.Repeat("y", 60), 100)
	b.prints(0, "policy wait shop/db --timeout 10s", "shop/db")
	b.prints(0, "policy wait shop/db --timeout 5m", "shop/db")
	b.prints(0, "status --timeout 1m", "healthy")
	b.prints(0, "cache lookup -n shop -l "+long, "0 pods")
	b.prints(0, "cache lookup --timeout 2m -n shop -l "+long, "0 pods")
	const prefix = "/behind/a/path/apis/inspect.flowkeep.io/v1alpha1"
	want := []string{"GET " + prefix + "/namespaces/shop/wait/answer", "GET " + prefix + "/namespaces/shop/wait true", "GET " + prefix + "/status true", "POST " + prefix + "/lookup", "POST " + prefix + "/lookup"}
	if strings.Join(s.seen, "\n") != strings.Join(want, "\n") {
		t.Errorf("asked:\n%s\nwant:\n%s", strings.Join(s.seen, "\n"), strings.Join(want, "\n"))
	}
}

// TestStandbysStateIsShown: netctl shows the state of the cluster that a standby's answer is of, however the answer
// comes.
func TestStandbysStateIsShown(t *testing.T) {
	b, s := newCluster(t, shop())
	const shown = "standby b answers from its label cache (memcached): the leader's state at epoch 5, revision 71"
	of := &inspect.Cached{Source: "memcached", Epoch: 5, Revision: 71, Standby: "b"}
	for _, command := range []string{"policy ls", "policy ls --timeout 1m"} {
		s.cached = of
		b.prints(0, command, "shop", shown)
		s.cached = &inspect.Cached{Source: "engine", Epoch: 5, Revision: 71}
		out, errOut, code := b.run(strings.Fields(command)...)
		if code != 0 || strings.Contains(out+errOut, "label cache") {
			t.Errorf("%s: an answer of the leader's is taken for a standby's:\n%s%s", command, out, errOut)
		}
	}
	if got := inspect.ParseCached(of.String()); *got != *of {
		t.Errorf("%+v", got)
	}
	for _, text := range []string{"", "x", "source=engine; epoch=x", "epoch=1; revision=1"} {
		if got := inspect.ParseCached(text); got != nil {
			t.Errorf("%q is parsed as %+v", text, got)
		}
	}
}

func TestRefusalsSayWhatToDo(t *testing.T) {
	b, s := newCluster(t, shop())
	answer := func(code int, body string) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, _ *http.Request) bool {
			w.WriteHeader(code)
			_, _ = w.Write([]byte(body))
			return true
		}
	}
	forbids := func(user string) string {
		return fmt.Sprintf(`{"kind":"Status","message":"status.inspect.flowkeep.io is forbidden: User \"%s\" cannot get it","code":403}`, user)
	}
	for _, c := range []struct {
		refuse func(http.ResponseWriter, *http.Request) bool
		code   int
		says   []string
	}{
		{answer(401, `{"kind":"Status","message":"Unauthorized"}`), exitTrouble, []string{"does not know who you are", "kubectl auth whoami"}},
		{answer(403, forbids("jane")), exitTrouble, []string{`User "jane" cannot get it`, "--clusterrole=flowkeep-view --user=jane"}},
		{answer(403, forbids("system:serviceaccount:ci:robot")), exitTrouble, []string{"--serviceaccount=ci:robot"}},
		{answer(403, forbids("$(rm)'")), exitTrouble, []string{`--user='$(rm)'\'''`}},
		{answer(403, forbids("jane")), exitTrouble, []string{"--clusterrole=flowkeep-view"}},
		{answer(404, `404 page not found`), exitUnreachable, []string{"knows no netmaster", "netmaster registration"}},
		{answer(503, `service unavailable`), exitUnreachable, []string{"does not reach netmaster: service unavailable", "kubectl get apiservice v1alpha1.inspect.flowkeep.io", "--server"}},
		{answer(200, `<html>sign in</html>`), exitUnreachable, []string{"is not netmaster"}},
		{answer(502, strings.Repeat("\x1b[31mx ", 1<<16)), exitUnreachable, []string{"502"}},
		{func(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) }, exitUnreachable, []string{"does not answer"}},
	} {
		s.refuse = c.refuse
		b.prints(c.code, "status", c.says...)
	}
	s.refuse = nil
	for code, says := range map[codes.Code]string{codes.NotFound: "it is so", codes.Unavailable: "it is so", codes.PermissionDenied: "it is so"} {
		s.err = status.Error(code, "it is so")
		b.prints(exitTrouble, "status", "netctl: "+says)
		b.prints(exitTrouble, "status --timeout 2m", "netctl: "+says)
	}
}

// A watch that breaks off is not an answer.
func TestBrokenWatch(t *testing.T) {
	b, s := newCluster(t, shop())
	for _, text := range []string{"", "\n\n", `{"type":"ANS`, "nonsense\n"} {
		s.refuse = func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set(inspect.ServedBy, "v1")
			_, _ = w.Write([]byte(text))
			return true
		}
		b.prints(exitUnreachable, "status --timeout 2m", "netctl: ")
	}
}

func TestSelectorsAsKubectlTakesThem(t *testing.T) {
	for text, want := range map[string]string{
		"": "{}", "app=web": `{"requirements":[{"key":"app","operator":1,"values":["web"]}]}`, "app==web": `{"requirements":[{"key":"app","operator":1,"values":["web"]}]}`,
		"app!=web": `{"requirements":[{"key":"app","operator":2,"values":["web"]}]}`, "app in (b,a)": `{"requirements":[{"key":"app","operator":1,"values":["a","b"]}]}`,
		"app": `{"requirements":[{"key":"app","operator":3}]}`, "!app": `{"requirements":[{"key":"app","operator":4}]}`,
	} {
		s, err := parseSelector(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if got, _ := json.Marshal(s); string(got) != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
	for _, text := range []string{"app>3", "app in", "=x", "a b"} {
		if s, err := parseSelector(text); err == nil {
			t.Errorf("%q: %+v", text, s)
		}
	}
}
