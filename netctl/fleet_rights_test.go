package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/fleet"
	"github.com/flowkeep/flowkeep/netctl/apiserver"
)

// What who asks may not read is named among the problems, and the rest is told.
func TestFleetWithoutSomeRights(t *testing.T) {
	for _, c := range []struct {
		forbidden string   // the end of a path, or a part of it
		unread    string   // is named
		stays     []string // is told all the same
	}{
		{"/configmaps/", "ConfigMap ", []string{"shop/web       Unknown", "NetworkPolicy     shop/deny      Unknown   1 of 3"}},
		{"/customresourcedefinitions", "CustomResourceDefinitions ", []string{"shop/web       Unknown", "NetworkPolicy     shop/deny      Unknown   1 of 3"}},
		{"/placements", "Placements ", []string{"shop/web       Unknown   2 of 3", "shop/deny"}},
		{"/managedclusters", "ManagedClusters ", []string{"shop/web", "shop/deny"}},
		{"/gateways", "Gateways ", []string{"NetworkPolicy     shop/deny    Unknown   1 of 3"}},
		{"/ratelimitpolicies", "RateLimitPolicy.kuadrant.io ", []string{"shop/web       Unknown   2 of 3", "SecurityPolicy    shop/limit     Unknown   1 of 3"}},
		{"/policyoverrides", "PolicyOverrides ", []string{"shop/web       Unknown   2 of 3"}},
		{"/networkpolicysets", "NetworkPolicySets ", []string{"shop/web       Unknown   2 of 3", "SecurityPolicy   shop/limit"}},
		{"/networkpolicies", "NetworkPolicies ", []string{"shop/web       Unknown   2 of 3"}},
		{"/manifestworks", "ManifestWorks ", []string{"shop/web", "shop/deny"}},
	} {
		b, s, _ := hubCluster(t)
		all := s.refuse
		s.refuse = func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.HasSuffix(r.URL.Path, c.forbidden) && (!strings.HasSuffix(c.forbidden, "/") || !strings.Contains(r.URL.Path, c.forbidden)) {
				return all(w, r)
			}
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w, `{"kind": "Status", "message": "User \"jane\" cannot"}`)
			return true
		}
		b.prints(exitFailed, "fleet status -o wide", append(c.stays, "problem: "+c.unread, `cannot be read by this user (User "jane" cannot)`)...)
		b.prints(0, "fleet policies", "netctl: "+c.unread, "flowkeep-fleet-view")
		b.prints(0, "fleet gateways", "netctl: "+c.unread)
	}
}

// What is in force everywhere as far as it is known is Unknown, while something may not be read.
func TestFleetIsUnknownWithoutRights(t *testing.T) {
	v := &fleet.View{Unread: []string{"Gateways may not be read"}}
	if a := newFleetAnswer(v); a.InForce != "Unknown" || len(a.Problems) != 1 {
		t.Errorf("%+v", a)
	}
	if a := newFleetAnswer(&fleet.View{}); a.InForce != "True" || len(a.Problems) != 0 {
		t.Errorf("%+v", a)
	}
}

// Works are read in pages, one by one, and told of as they come in.
func TestManyWorksAreRead(t *testing.T) {
	const many = 1234
	var pages []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		from, _ := strconv.Atoi(q.Get("continue"))
		limit, _ := strconv.Atoi(q.Get("limit"))
		pages = append(pages, fmt.Sprint(from, " ", limit, " ", q.Get("labelSelector")))
		to := min(from+limit, many)
		var items []any
		for n := from; n < to; n++ {
			items = append(items, map[string]any{"metadata": map[string]any{"name": fmt.Sprint("w", n), "namespace": "c1"}, "spec": map[string]any{"workload": map[string]any{"manifests": []any{1, "x"}}}})
		}
		meta := map[string]any{"remainingItemCount": many - to}
		if to < many {
			meta["continue"] = fmt.Sprint(to)
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"kind": "ManifestWorkList", "items": items, "metadata": meta})
	}))
	defer server.Close()
	config := filepath.Join(t.TempDir(), "config")
	text := fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: c}}], clusters: [{name: c, cluster: {server: %q}}], users: [{name: c, user: {}}]}`, server.URL)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := apiserver.New(apiserver.Options{Kubeconfig: config})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	h := &fleet.Hub{Controller: fleet.DefaultController}
	seen := 0
	if err := readWorks(t.Context(), c, h, nil, func(read, about int) {
		if seen++; read != seen || about < read || about > many {
			t.Errorf("%d of %d are read, and it is told of %d", seen, about, read)
		}
	}); err != nil {
		t.Fatal(err)
	}
	if len(h.Works) != many || h.Works[many-1].Name != fmt.Sprint("w", many-1) || seen != many {
		t.Errorf("%d works are read", len(h.Works))
	}
	selector := fleet.LabelController + "=" + fleet.ControllerLabel(string(fleet.DefaultController))
	if want := []string{"0 500 " + selector, "500 500 " + selector, "1000 500 " + selector}; fmt.Sprint(pages) != fmt.Sprint(want) {
		t.Errorf("pages are %v", pages)
	}
}

// Who sits at a terminal sees how far the reading is when it takes long, not too often, and the line goes away.
func TestReading(t *testing.T) {
	var out bytes.Buffer
	start := time.Now()
	now := start
	progress, done := reading(&out, start, func() time.Time { return now })
	progress(1, 10)
	done()
	if out.Len() != 0 {
		t.Errorf("it says %q at once", &out)
	}
	now = start.Add(2 * time.Second)
	progress(2, 10)
	progress(3, 10)
	now = now.Add(time.Second)
	progress(4, 4)
	done()
	if have, want := out.String(), "\rreading works: 2 of 10\x1b[K\rreading works: 4\x1b[K\r\x1b[K"; have != want {
		t.Errorf("it says %q", have)
	}
}
