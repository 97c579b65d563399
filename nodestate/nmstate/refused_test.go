package nmstate

import (
	"fmt"
	"maps"
	"strings"
	"testing"
)

func TestRefusedReported(t *testing.T) {
	for _, c := range []struct{ what, desired, paths string }{
		{"empty", "{interfaces: [{name: eth1, lldp: {neighbors: []}}], routes: {running: []}, dns-resolver: {running: {}}, capabilities: []}", ""},
		{"null", "{interfaces: [{name: eth1, lldp: {neighbors: null}}], routes: {running: null}, dns-resolver: {running: null}, capabilities: null}", ""},
		{"neighbours", "interfaces: [{name: eth1, lldp: {enabled: true, neighbors: [[{type: 5}]]}}]", "interfaces[eth1].lldp.neighbors"},
		{"neighbours of what is ignored", "interfaces: [{name: eth1, state: ignore, lldp: {neighbors: [[{type: 5}]]}}]", ""},
		{"capabilities", "capabilities: [bond]", "capabilities"},

		{"DNS that repeats config",
			"dns-resolver: {running: {server: ['2001:DB8::53'], search: []}, config: {server: ['2001:db8::53'], options: [rotate]}}", ""},
		{"other servers", "dns-resolver: {running: {server: [192.0.2.54]}, config: {server: [192.0.2.53]}}", "dns-resolver.running.server"},
		{"another order", "dns-resolver: {running: {search: [b, a]}, config: {search: [a, b]}}", "dns-resolver.running.search"},
		{"no servers", "dns-resolver: {running: {server: []}, config: {server: [192.0.2.53]}}", "dns-resolver.running.server"},
		{"options that config lacks", "dns-resolver: {running: {options: [rotate]}, config: {}}", "dns-resolver.running.options"},
		{"DNS without config", "dns-resolver: {running: {server: [192.0.2.53]}}", "dns-resolver.running.server"},

		{"a route that config has", "routes: {running: [{destination: 10.0.0.1/8, next-hop-interface: eth1}], " +
			"config: [{destination: 10.0.0.0/8, next-hop-interface: eth1, metric: 5}]}", ""},
		{"a route by another metric", "routes: {running: [{destination: 10.0.0.0/8, metric: 6}], " +
			"config: [{destination: 10.0.0.0/8, next-hop-interface: eth1, metric: 5}]}", "routes.running[destination 10.0.0.0/8]"},
		{"a route that goes", "routes: {running: [{destination: 10.0.0.0/8}], config: [{destination: 10.0.0.0/8, state: absent}]}",
			"routes.running[destination 10.0.0.0/8]"},
		{"a route that is to go", "routes: {running: [{destination: 10.0.0.0/8, state: absent}], " +
			"config: [{destination: 10.0.0.0/8, next-hop-interface: eth1}]}", "routes.running[destination 10.0.0.0/8]"},
		{"a route without config", "routes: {running: [{destination: 10.0.0.0/8}]}", "routes.running[destination 10.0.0.0/8]"},
	} {
		t.Run(c.what, func(t *testing.T) {
			var paths []string
			for _, reason := range RefusedReported(parsed(t, c.desired)) {
				path, _, _ := strings.Cut(reason, ": ")
				paths = append(paths, path)
			}
			if got := strings.Join(paths, " "); got != c.paths {
				t.Errorf("%q is refused, not %q", got, c.paths)
			}
		})
	}
}

// TestRefusedReported_DeletedFromConfig: the error about a route that was deleted from config alone says how to remove it.
func TestRefusedReported_DeletedFromConfig(t *testing.T) {
	reasons := RefusedReported(parsed(t, "routes: {running: [{destination: 10.0.0.0/8}], config: []}"))
	if len(reasons) != 1 || !strings.Contains(reasons[0], "to remove it, delete it from routes.running too") {
		t.Errorf("%q", reasons)
	}
}

// A copy of a report with many routes allocates nothing for each pair of them.
func TestRefusedReported_OfManyRoutes(t *testing.T) {
	for _, what := range []string{"repeated", "other"} {
		allocations := func(routes int) float64 {
			s := manyRoutes(routes, what == "other")
			return testing.AllocsPerRun(1, func() { RefusedReported(s) })
		}
		few, many := allocations(50), allocations(400)
		if many > 20*few { // 8 times as many routes: 64 times as many pairs
			t.Errorf("%s routes: %v allocations for 50, %v for 400", what, few, many)
		}
	}
}

func BenchmarkRefusedReported(b *testing.B) {
	for _, what := range []string{"repeated", "other"} {
		b.Run(what, func(b *testing.B) {
			s := manyRoutes(2000, what == "other")
			for b.Loop() {
				RefusedReported(s)
			}
		})
	}
}

// manyRoutes has in running the routes of config, or others.
func manyRoutes(routes int, other bool) State {
	var config, running []any
	for n := range routes {
		r := map[string]any{"destination": fmt.Sprintf("10.%d.%d.0/24", n/256, n%256), "next-hop-interface": "eth1"}
		o := maps.Clone(r)
		if other {
			o["metric"], r["metric"] = 5, 6
		}
		config, running = append(config, o), append(running, r)
	}
	return State{keyRoutes: map[string]any{keyConfig: config, keyRunning: running}}
}
