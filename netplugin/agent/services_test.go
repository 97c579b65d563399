package agent

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"testing"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/internal/keyed"
	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/service"
)

// web is a Service with two endpoints on node1, as netmaster sends it.
func web(t *testing.T) *keyed.Delta {
	t.Helper()
	value, err := wire.ServiceValue(&service.Service{
		Namespace:  "shop",
		Name:       "web",
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
		Ports:      []service.Port{{Name: "sql", Protocol: policy.TCP, Port: 80}},
	})
	if err != nil {
		t.Fatal(err)
	}
	var source keyed.Source
	source.Put(wire.ServiceKey("shop/web"), value)
	slice := &service.Slice{
		Namespace: "shop",
		Name:      "web-1",
		Service:   "web",
		Ports:     []service.SlicePort{{Name: "sql", Protocol: policy.TCP, Port: 5432}},
	}
	for i, pod := range []string{"shop/db", "shop/gone"} {
		slice.Endpoints = append(slice.Endpoints, service.Endpoint{
			Address:   netip.AddrFrom4([4]byte{10, 0, 0, byte(7 + i)}),
			Pod:       pod,
			Node:      "node1",
			ZoneHints: []string{"west"},
			Ready:     true,
		})
	}
	if value, err = wire.SliceValue(slice); err != nil {
		t.Fatal(err)
	}
	source.Put(wire.SliceKey("shop/web-1"), value)
	source.Put(wire.ZoneKey("node1"), []byte("west"))
	d, _ := source.Since(0)
	return &d
}

// TestQueryService: a node says what it holds, also after a restart, without pods of its own that have ended.
func TestQueryService(t *testing.T) {
	a, _, _ := running(t)
	own := policy.NodeInfo{Name: "node1", PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}}
	err := a.do(t.Context(), func() {
		a.rules.nodes = []policy.NodeInfo{own}
		a.pods.byID["shop/db"] = &pod{endpoint: wired("1", "c1", 7)}
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := a.translation.services.Apply(web(t)); err != nil {
		t.Fatal(err)
	}
	query := func(a *agent, id string) (out inspect.NodeService) {
		t.Helper()
		body, err := a.inspector.Query(t.Context(), fmt.Appendf(nil, `{"kind":"service","service":%q}`, id))
		if err == nil {
			err = json.Unmarshal(body, &out)
		}
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	got := query(a, "shop/web")
	if got.Service == nil || len(got.Service.Frontends) != 1 || got.Holds.Endpoints != 2 || got.Holds.Services != 1 {
		t.Fatalf("%+v", got)
	}
	f := &got.Service.Frontends[0]
	if len(f.Backends) != 1 || f.Backends[0].Pod != "shop/db" || f.Backends[0].Slots != f.Slots || f.Outcome != "translated" {
		t.Errorf("it leads to %+v, %s", f.Backends, f.Outcome)
	}
	if at := got.Service.At; at == nil || at.Node != "node1" || at.Zone != "west" {
		t.Errorf("at %+v", at)
	}
	if got := query(a, "shop/none"); got.Service != nil || got.Holds.Services != 1 {
		t.Errorf("%+v", got)
	}
	a.translation.services.Close()
	if err := a.translation.openServices(); err != nil {
		t.Fatal(err)
	}
	if got := query(a, "shop/web"); got.Service == nil || got.Holds.Endpoints != 2 {
		t.Errorf("after a restart: %+v", got)
	}
}
