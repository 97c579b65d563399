package server

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"
)

// What the page's server answers to a path; empty if it does not.
func pageText(m *master, url string) string {
	r, err := http.NewRequestWithContext(m.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		m.Fatal(err)
	}
	answer, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		return ""
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return ""
	}
	return string(body)
}

// The page shows what the API server has of a policy, and what is in force of it.
func TestPage(t *testing.T) {
	w := newWorld(t, shop(t)...)
	m := w.start(func(c *Config) { c.Page.Address = "127.0.0.1:0" })
	held(m, "node1")
	m.ready()
	url := w.pageURL()
	t.Cleanup(http.DefaultTransport.(*http.Transport).CloseIdleConnections)
	var p struct {
		YAML  string
		Nodes []struct{ Name, State string }
	}
	until(t, "the page shows the policy", func() bool {
		text := pageText(m, url+"api/policy?id=ns/p")
		return json.Unmarshal([]byte(text), &p) == nil && len(p.Nodes) == 1 && p.Nodes[0].State == "realised"
	})
	if !strings.HasPrefix(p.YAML, "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\n") || strings.Contains(p.YAML, "uid") {
		t.Errorf("the YAML is\n%s", p.YAML)
	}
	if !strings.HasPrefix(pageText(m, url), "<!doctype html>") {
		t.Error("there is no page")
	}
}

// pageURL returns the address of the page that the log names.
func (w *world) pageURL() string {
	w.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	found := regexp.MustCompile(`web UI is listening" url=(\S+)`).FindStringSubmatch(w.log.String())
	if found == nil {
		w.Fatalf("the log does not name the page:\n%s", w.log.String())
	}
	return found[1]
}

// A page that cannot be served is told, and everything else goes on.
func TestPageWithoutAnAddress(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	w := newWorld(t, shop(t)...)
	m := w.start(func(c *Config) { c.Page.Address = taken.Addr().String() })
	held(m, "node1")
	m.ready()
	if !w.logged("web UI failed; all else continues") {
		t.Error("nobody is told that there is no page")
	}
}
