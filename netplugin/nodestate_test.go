package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/nodestate"
	"github.com/flowkeep/flowkeep/nodestate/nmstate"
	"sigs.k8s.io/yaml"
)

// The program nmstatectl knows nothing of Flowkeep: what would touch it does not get there.
func TestGuard(t *testing.T) {
	text, err := os.ReadFile("../nodestate/nmstate/testdata/ofFlowkeep.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct{ Desired, Path string }
	if err := yaml.UnmarshalStrict(text, &cases); err != nil || len(cases) < 7 {
		t.Fatalf("%d cases: %v", len(cases), err)
	}
	o := nodeStateFlags{bridge: "fk0"}
	guard := func(desired string) error {
		s, err := nmstate.Parse([]byte(desired))
		if err != nil {
			t.Fatal(err)
		}
		return o.guard(s)
	}
	for _, c := range cases {
		if err := guard(c.Desired); !errors.Is(err, nodestate.ErrRefused) || !strings.HasPrefix(err.Error(), c.Path) {
			t.Errorf("%s: %v", c.Desired, err)
		}
	}
	if err := guard("interfaces: [{name: eth1, mtu: 1400}, {name: fk0, state: ignore}]"); err != nil {
		t.Error(err)
	}
}

// TestNodeState_HasTheNodesAddresses: the agent knows the families by which it reaches the API server.
func TestNodeState_HasTheNodesAddresses(t *testing.T) {
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/v1/nodes/node1" {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"kind": "Node", "apiVersion": "v1", "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}}`)
	}))
	defer api.Close()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf("{clusters: [{name: c, cluster: {server: %q}}], contexts: [{name: c, context: {cluster: c}}], "+
		"current-context: c}", api.URL)
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	o := nodeStateFlags{kubeconfig: kubeconfig, node: "node1", backend: backendNative, stateDir: t.TempDir()}
	client, cfg, err := o.config(t.Context(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	defer closeAll(cfg.Backends)
	if cfg.Addresses == nil {
		t.Fatal("the agent does not ask for the Node's addresses")
	}
	if got := cfg.Addresses(t.Context()); !slices.Equal(got, []netip.Addr{netip.MustParseAddr("192.0.2.1")}) {
		t.Error(got)
	}
}
