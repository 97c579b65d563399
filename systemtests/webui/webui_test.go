// Package webui tests netmaster's web UI in a Chromium, against the handler of netmaster/webui and a netmaster without a
// cluster.
package webui

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"testing"

	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/netmaster/webui"
	"github.com/flowkeep/flowkeep/netmaster/webui/webuitest"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/systemtests/chrome"
)

// browser is the Chromium of all tests, nil on a machine without one.
var browser *chrome.Browser

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	b, err := chrome.Start(context.Background(), "")
	switch {
	case err == nil:
		browser = b
		defer b.Close()
	case !errors.Is(err, chrome.ErrNotInstalled):
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// serve serves the web UI at a loopback address until the test ends, and returns the address.
func serve(t *testing.T, n *webuitest.Netmaster, tokenFile string) string {
	t.Helper()
	s, err := webui.Listen(webui.Config{
		Address:   "127.0.0.1:0",
		TokenFile: tokenFile,
		Inspector: n,
		Logger:    slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s.URL()
}

// look opens a view of the web UI, in parallel to other tests.
func look(t *testing.T, n *webuitest.Netmaster, view string) *chrome.View {
	t.Helper()
	t.Parallel()
	return chrome.Look(t, browser, serve(t, n, "")+view)
}

// open opens another view of the page that v shows.
func open(v *chrome.View, view string) {
	v.Helper()
	v.Go(chrome.Value[string](v, "location.origin") + "/" + view)
}

// polls waits until the page has fetched netmaster's status n more times. It does so every three seconds.
func polls(v *chrome.View, n int) {
	v.Helper()
	const fetches = `performance.getEntriesByType("resource").filter((e) => e.name.endsWith("/api/overview")).length`
	v.Until("%s >= %d", fetches, chrome.Value[int](v, fetches)+n)
}

// addPolicy adds a policy for the pods of namespace shop with one label.
func addPolicy(n *webuitest.Netmaster, name, app string, change func(*policy.Policy)) {
	p := &policy.Policy{Namespace: "shop", Name: name, AppliedTo: webuitest.Labelled("app", app)}
	change(p)
	n.Apply(resolve.Batch{Policies: []*policy.Policy{p}})
}
