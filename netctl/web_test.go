package main

import (
	"bufio"
	"io"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/flowkeep/flowkeep/api/inspect"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// runWeb runs netctl web in the background until the test ends or interrupt is called.
func runWeb(t *testing.T, b *bench, args ...string) (url string, interrupt func()) {
	t.Helper()
	out, in := io.Pipe()
	ended := make(chan int, 1)
	var said strings.Builder
	go func() {
		code := run(append(append([]string{"web", "--no-browser"}, args...), b.flags...), in, &said)
		in.Close()
		ended <- code
	}()
	url, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("exit code %d: %s", <-ended, said.String())
	}
	return strings.TrimSpace(url), func() {
		t.Helper()
		if err := syscall.Kill(os.Getpid(), syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		if code := <-ended; code != 0 {
			t.Errorf("interrupted: exit code %d: %s", code, said.String())
		}
	}
}

// fetch gets a path of the web UI with a token.
func fetch(t *testing.T, url, token string) (code int, text string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(body)
}

// TestWeb_QueriesAsTheUser: the web UI's queries reach netmaster through the API server with the user's credentials.
// Without the token of the URL it returns no data.
func TestWeb_QueriesAsTheUser(t *testing.T) {
	b, s := newCluster(t, town())
	url, interrupt := runWeb(t, b)
	at, token, ok := strings.Cut(url, "#token=")
	if !ok || !strings.HasPrefix(at, "http://127.0.0.1:") {
		t.Fatalf("the URL is %q", url)
	}
	if code, text := fetch(t, at, ""); code != http.StatusOK || !strings.HasPrefix(text, "<!doctype html>") {
		t.Errorf("%d: %.80q", code, text)
	}
	if code, text := fetch(t, at+"api/overview", ""); code != http.StatusUnauthorized {
		t.Errorf("without a token: %d: %.80q", code, text)
	}
	code, text := fetch(t, at+"api/overview", token)
	if code != http.StatusOK || !strings.Contains(text, "degraded: 1 problem") {
		t.Errorf("with the token: %d: %.200q", code, text)
	}
	const path = "GET /behind/a/path/apis/inspect.flowkeep.io/v1alpha1/status/answer"
	if len(s.seen) != 1 || s.seen[0] != path || s.users[0] != "Bearer janes-token " {
		t.Errorf("the API server was asked %q by %q", s.seen, s.users)
	}
	interrupt()
}

// TestWeb_ShowsWhyThereIsNoData: a user without rights, and an API server that does not respond.
func TestWeb_ShowsWhyThereIsNoData(t *testing.T) {
	for _, c := range []struct {
		name, context string
		err           error
		code          int
		text          string
	}{
		{"forbidden", "here", status.Error(codes.PermissionDenied, "jane may not"), http.StatusForbidden, "may not"},
		{"away", "nowhere", nil, http.StatusServiceUnavailable, "API server does not answer at https://127.0.0.1:1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, _ := newCluster(t, map[string]any{inspect.AskStatus: inspect.Status{}})
			b.fail(c.err)
			url, interrupt := runWeb(t, b, "--context", c.context)
			at, token, _ := strings.Cut(url, "#token=")
			if code, text := fetch(t, at+"api/overview", token); code != c.code || !strings.Contains(text, c.text) {
				t.Errorf("%d: %s", code, text)
			}
			interrupt()
		})
	}
}

// TestWeb_ListensOnLoopbackOnly refuses addresses on which others would query as the user.
func TestWeb_ListensOnLoopbackOnly(t *testing.T) {
	b, _ := newCluster(t, nil)
	for _, address := range []string{"0.0.0.0:0", "[::]:0", "192.0.2.1:80", "127.0.0.1", "example.com:80", ":80"} {
		b.prints(exitUsage, "web --no-browser --address "+address, "use a loopback address")
	}
}

// TestWeb_OpensABrowser passes the URL, and goes on without a browser.
func TestWeb_OpensABrowser(t *testing.T) {
	var opened string
	w := &web{browse: func(url string) error { opened = url; return io.EOF }}
	var out strings.Builder
	w.announce(&out, "https://api.example:6443", "http://127.0.0.1:1/#token=x")
	if opened != "http://127.0.0.1:1/#token=x" || !strings.Contains(out.String(), "no browser was opened (EOF)") {
		t.Errorf("opened %q: %s", opened, out.String())
	}
	t.Setenv("DISPLAY", "")
	t.Setenv("WAYLAND_DISPLAY", "")
	if err := browse("about:blank"); err == nil {
		t.Error("a browser was started without a display")
	}
}
