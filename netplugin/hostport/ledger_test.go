package hostport

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/netplugin/endpoints"
)

// pod returns a pod with one hostPort and an IPv4 address.
func pod(id string) endpoints.Endpoint {
	return endpoints.Endpoint{
		Namespace:   "shop",
		Name:        id,
		ContainerID: id,
		IfName:      "eth0",
		Addresses:   []netip.Addr{netip.MustParseAddr("10.9.3.2")},
		HostPorts:   []endpoints.PortMapping{{HostPort: 18080, ContainerPort: 80, Protocol: "tcp"}},
		Realised:    true,
	}
}

// with returns IPv4 tables with the rules of containers.
func with(ids ...string) *byFamily {
	r := rules{chains: map[string]int{}, ports: map[string]int{}}
	for _, chain := range baseChains {
		r.chains[chain] = 1
	}
	for _, id := range ids {
		r.ports[id]++
	}
	return &byFamily{four: r}
}

func names(pods []endpoints.Endpoint) string {
	var out []string
	for _, e := range pods {
		out = append(out, e.ContainerID)
	}
	return strings.Join(out, " ")
}

func TestLedger(t *testing.T) {
	a, b := pod("a"), pod("b")
	type step struct {
		have  *byFamily
		pods  []endpoints.Endpoint
		add   string
		again bool
	}
	both, one, none := []endpoints.Endpoint{a, b}, []endpoints.Endpoint{a}, []endpoints.Endpoint(nil)
	for name, steps := range map[string][]step{
		"all there": {{with("a", "b"), both, "", false}, {with("a", "b"), both, "", false}},
		"all lost": {
			{with("a", "b"), both, "", false},
			{new(byFamily), both, "a b", false},
			{with("a", "b"), both, "", false},
		},
		"own rules lost":                   {{with("a"), one, "", false}, {with(), one, "", true}, {with(), one, "a", false}},
		"lost while netplugin was away":    {{with(), one, "", true}, {with(), one, "a", false}},
		"flushed while netplugin was away": {{new(byFamily), one, "a", false}},
		"flushed before the runtime has run portmap": {
			{with(), none, "", false},
			{new(byFamily), one, "", false},
		},
		"one lost, because another's ADD made the table": {
			{with("a", "b"), both, "", false},
			{with("b"), both, "", true},
			{with("b"), both, "a", false},
		},
		"the runtime has not run portmap yet": {
			{with(), none, "", false},
			{with(), one, "", false},
			{with(), one, "", false},
			{with("a"), one, "", false},
		},
		"the runtime ends the pod": {{with("a"), one, "", false}, {with(), one, "", true}, {with(), none, "", false}},
		"seen again in time":       {{with("a"), one, "", false}, {with(), one, "", true}, {with("a"), one, "", false}},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger()
			for i, s := range steps {
				l.ended(s.pods)
				add, again := l.compare(s.have, s.pods)
				if names(add) != s.add || again != s.again {
					t.Fatalf("step %d: ADD of %q, again %v; want %q, %v", i, names(add), again, s.add, s.again)
				}
			}
		})
	}
}

// A pod that ended while its ADD was repeated needs one DEL more, until that has succeeded.
func TestLedger_Ended(t *testing.T) {
	l, list := newLedger(), []endpoints.Endpoint{pod("a")}
	l.compare(new(byFamily), list)
	if del := l.ended(list); len(del) > 0 {
		t.Errorf("DEL of living pods: %s", names(del))
	}
	for range 2 {
		if del := l.ended(nil); names(del) != "a" {
			t.Errorf("DEL of %q, want a", names(del))
		}
	}
	l.deleted("a")
	if del := l.ended(nil); len(del) > 0 {
		t.Errorf("repeated: DEL of %s", names(del))
	}
}

func TestByFamily_Of(t *testing.T) {
	full := func() rules { return with("a").four }
	for name, c := range map[string]struct {
		change func(*byFamily, *endpoints.Endpoint)
		want   presence
	}{
		"all there":          {func(*byFamily, *endpoints.Endpoint) {}, present},
		"no table":           {func(b *byFamily, _ *endpoints.Endpoint) { b.four = rules{} }, reset},
		"base chain flushed": {func(b *byFamily, _ *endpoints.Endpoint) { b.four.chains["output"] = 0 }, reset},
		"IPv6 lost": {func(_ *byFamily, e *endpoints.Endpoint) {
			e.Addresses = append(e.Addresses, netip.MustParseAddr("fd00::2"))
		}, reset},
		"IPv6 there": {func(b *byFamily, e *endpoints.Endpoint) {
			b.six = full()
			e.Addresses = append(e.Addresses, netip.MustParseAddr("fd00::2"))
		}, present},
		"one of two ports": {func(_ *byFamily, e *endpoints.Endpoint) {
			e.HostPorts = append(e.HostPorts, endpoints.PortMapping{HostPort: 2})
		}, absent},
		"the second port is of the other family": {func(_ *byFamily, e *endpoints.Endpoint) {
			e.HostPorts = append(e.HostPorts, endpoints.PortMapping{HostPort: 2, HostIP: "fd00::1"})
		}, present},
		"no port of the family": {func(b *byFamily, e *endpoints.Endpoint) {
			b.four = rules{}
			e.HostPorts[0].HostIP = "fd00::1"
		}, present},
	} {
		t.Run(name, func(t *testing.T) {
			have, e := &byFamily{four: full()}, pod("a")
			c.change(have, &e)
			if got := have.of(&e); got != c.want {
				t.Errorf("of = %v, want %v", got, c.want)
			}
		})
	}
}

func TestParse(t *testing.T) {
	const text = `{"nftables": [{"metainfo": {"version": "1.0.6"}}, {"table": {"family": "ip", "name": "cni_hostport"}},
		{"chain": {"name": "hostports"}}, {"rule": {"chain": "prerouting", "expr": []}},
		{"rule": {"chain": "hostports", "comment": "a", "expr": []}}, {"rule": {"chain": "hostports", "comment": "a"}},
		{"rule": {"chain": "masquerading", "comment": "b"}}]}`
	got, err := parse([]byte(text))
	if want := "map[hostports:2 masquerading:1 prerouting:1] map[a:2 b:1] map[a:2]"; err != nil ||
		fmt.Sprint(got.chains, got.own, got.ports) != want {
		t.Errorf("%v %v %v (%v), want %s", got.chains, got.own, got.ports, err, want)
	}
	if _, err := parse([]byte("{")); err == nil {
		t.Error("a broken list is no error")
	}
}
