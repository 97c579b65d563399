package nmstate

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
)

// draw is a source of documents: few names and values, so that they meet.
type draw struct{ *rand.Rand }

func one[T any](d draw, of ...T) T { return of[d.IntN(len(of))] }

func (d draw) sometimes(o map[string]any, key string, v func() any) {
	if d.IntN(3) == 0 {
		o[key] = v()
	}
}

var drawnNames = []any{"eth0", "eth1", "bond0", "br1", "eth1.10"}

func (d draw) state() State {
	s := State{}
	seen := map[string]bool{}
	var interfaces []any
	for range d.IntN(4) {
		i := d.iface()
		if key := i.Key(); i.Name() == "" || !seen[key] {
			seen[key] = true
			interfaces = append(interfaces, map[string]any(i))
		}
	}
	if interfaces != nil {
		s[keyInterfaces] = interfaces
	}
	d.sometimes(s, keyRoutes, func() any {
		routes := map[string]any{keyConfig: d.list(d.route)}
		there := slices.DeleteFunc(list(clone(routes[keyConfig])), func(r any) bool { return isAbsent(object(r)) })
		if len(there) > 0 {
			d.sometimes(routes, keyRunning, func() any { return there })
		}
		return routes
	})
	d.sometimes(s, one(d, keyRules, keyRouteRules), func() any { return map[string]any{keyConfig: d.list(d.rule)} })
	d.sometimes(s, keyDNS, func() any {
		config := map[string]any{}
		d.sometimes(config, "server", func() any { return d.list(func() any { return one[any](d, "192.0.2.53", "2001:DB8::53") }) })
		d.sometimes(config, "search", func() any { return d.list(func() any { return one[any](d, "a.example", "b.example") }) })
		dns := map[string]any{keyConfig: config}
		d.sometimes(dns, keyRunning, func() any {
			running := map[string]any{"server": []any{}, "search": []any{}}
			maps.Copy(running, cloneObject(config))
			return running
		})
		return dns
	})
	d.sometimes(s, "hostname", func() any { return map[string]any{"config": one[any](d, "a", "b", nil)} })
	return s
}

func (d draw) list(element func() any) []any {
	drawn := []any{}
	for range d.IntN(4) {
		drawn = append(drawn, element())
	}
	return drawn
}

func (d draw) iface() Interface {
	i := Interface{"name": one(d, drawnNames...)}
	d.sometimes(i, "type", func() any { return one[any](d, "ethernet", "bond", "ovs-bridge", "veth") })
	d.sometimes(i, keyState, func() any { return one[any](d, Up, Down, Absent, Ignore) })
	d.sometimes(i, "mtu", func() any { return one[any](d, 1450, 1500, int64(1500), 1500.0, nil) })
	d.sometimes(i, "mac-address", func() any { return one[any](d, "52:54:00:AB:CD:EF", "52:54:00:ab:cd:ef", "52-54-00-ab-cd-00") })
	d.sometimes(i, "ipv4", func() any { return d.ip("192.0.2.1", "192.0.2.2") })
	d.sometimes(i, "ipv6", func() any { return d.ip("2001:DB8::1", "2001:db8:0:0::1", "fe80::1") })
	d.sometimes(i, "bridge", func() any {
		return map[string]any{"port": d.ports(), "options": map[string]any{"stp": map[string]any{"enabled": one[any](d, true, false)}}}
	})
	d.sometimes(i, "link-aggregation", func() any {
		return map[string]any{"port": d.set(drawnNames), "options": map[string]any{"miimon": one[any](d, 100, "100", "140")}}
	})
	return i
}

func (d draw) ip(addresses ...string) any {
	o := map[string]any{}
	d.sometimes(o, "enabled", func() any { return one(d, true, false) })
	d.sometimes(o, "dhcp", func() any { return one(d, true, false) })
	d.sometimes(o, "address", func() any {
		list := []any{}
		for _, a := range d.set([]any{addresses[0], addresses[1]}) {
			list = append(list, map[string]any{"ip": a, "prefix-length": one[any](d, 24, 32)})
		}
		return list
	})
	return o
}

func (d draw) set(from []any) []any {
	from = slices.Clone(from)
	d.Shuffle(len(from), func(a, b int) { from[a], from[b] = from[b], from[a] })
	return from[:d.IntN(len(from)+1)]
}

func (d draw) ports() (list []any) {
	list = []any{}
	for _, name := range d.set(drawnNames) {
		port := map[string]any{"name": name}
		d.sometimes(port, "vlan", func() any { return map[string]any{"tag": one[any](d, 5, 6)} })
		list = append(list, port)
	}
	return list
}

func (d draw) route() any {
	o := map[string]any{"destination": one[any](d, "10.0.0.0/8", "10.1.2.3/8", "2001:DB8::/32"), "next-hop-interface": one(d, drawnNames...)}
	d.sometimes(o, "metric", func() any { return one[any](d, 10, 20) })
	d.sometimes(o, "weight", func() any { return one[any](d, 1, 2) })
	d.sometimes(o, keyState, func() any { return Absent })
	if isAbsent(o) {
		d.sometimes(o, "destination", func() any { return nil })
	}
	return o
}

func (d draw) rule() any {
	o := map[string]any{"ip-from": one[any](d, "192.0.2.0/24", "192.0.2.7"), "route-table": one[any](d, 100, 200)}
	d.sometimes(o, keyState, func() any { return Absent })
	return o
}

// laws hold for all documents.
var laws = []struct {
	name string
	hold func(a, b, c State) error
}{
	{"Canonical is idempotent", func(a, _, _ State) error { return same(Canonical(a), Canonical(Canonical(a)), encodedState) }},
	{"what is equal does not differ", func(a, _, _ State) error { return none(Diff(a, Canonical(a))) }},
	{"over wins", func(a, b, _ State) error {
		if contradicts(b) || mute(a, b) || buries(b, a) {
			return nil
		}
		return none(Diff(b, Overlay(a, b)))
	}},
	{"a document over itself is itself", func(a, _, _ State) error { return same(Overlay(a, a), a, meaning) }},
	{"nothing below, nothing above", func(a, _, _ State) error {
		if err := same(Overlay(nil, a), a, meaning); err != nil {
			return err
		}
		return same(Overlay(a, nil), a, meaning)
	}},
	{"Overlay is associative", func(a, b, c State) error {
		if contradicts(a) || contradicts(b) || contradicts(c) {
			return nil
		}
		return same(Overlay(Overlay(a, b), c), Overlay(a, Overlay(b, c)), meaning)
	}},
	{"nothing is left of a document without itself", func(a, _, _ State) error {
		if left := Subtract(a, a); len(left) != 0 {
			return fmt.Errorf("left: %s", encoded(left))
		}
		return nil
	}},
	{"what was taken can be laid on top again", func(a, b, _ State) error {
		if contradicts(a) || contradicts(b) {
			return nil
		}
		s := Overlay(a, b)
		return none(Diff(s, Overlay(Subtract(s, b), b)))
	}},
	{"what is accepted is accepted over what is accepted", func(a, b, _ State) error {
		if len(RefusedReported(a)) > 0 || len(RefusedReported(b)) > 0 {
			return nil
		}
		if reasons := RefusedReported(Overlay(a, b)); len(reasons) > 0 {
			return fmt.Errorf("%v", reasons)
		}
		return nil
	}},
	{"without what is not there a document stays", func(a, _, _ State) error { return same(Subtract(a, nil), Overlay(nil, a), meaning) }},
}

// mute tells whether over speaks of an interface that base wants absent without saying that it shall be there.
func mute(base, over State) bool {
	return slices.ContainsFunc(over.Interfaces(), func(o Interface) bool {
		return o.State() == "" && slices.ContainsFunc(base.Interfaces(), func(b Interface) bool { return b.Key() == o.Key() && b.State() == Absent })
	})
}

// buries tells whether a wants all of a name gone of which b has an OVS bridge.
func buries(a, b State) bool {
	return slices.ContainsFunc(a.Interfaces(), func(i Interface) bool {
		return i.State() == Absent && i.Type() == "" && hasKey(b.Interfaces(), Interface{"name": i.Name(), "type": OVSBridge}.Key())
	})
}

func meaning(s State) string      { return encoded(Canonical(cloneObject(Unrepeated(s)))) }
func encodedState(s State) string { return encoded(s) }

func same(a, b State, form func(State) string) error {
	if form(a) != form(b) {
		return fmt.Errorf("%s\nis not\n%s", form(a), form(b))
	}
	return nil
}

func none(d []Difference) error {
	if len(d) > 0 {
		return fmt.Errorf("%v", d)
	}
	return nil
}

// contradicts tells whether a document wants one route or rule both there and not, or in two ways.
func contradicts(s State) bool {
	for _, key := range []string{keyRoutes, keyRouteRules} {
		entries := s.Config(key)
		for n, a := range entries {
			for m, b := range entries {
				if n != m && (entryKey(a) == entryKey(b) || isAbsent(a) && matchesEntry(a, b)) {
					return true
				}
			}
		}
	}
	return false
}

func TestLaws(t *testing.T) {
	for seed := range uint64(2_000) {
		d := draw{rand.New(rand.NewPCG(seed, 0))}
		a, b, c := d.state(), d.state(), d.state()
		before := encoded([]State{a, b, c})
		for _, law := range laws {
			if err := law.hold(a, b, c); err != nil {
				t.Fatalf("seed %d: %s:\na %s\nb %s\nc %s\n%v", seed, law.name, encoded(a), encoded(b), encoded(c), err)
			}
		}
		if after := encoded([]State{a, b, c}); after != before {
			t.Fatalf("seed %d: %s became %s", seed, before, after)
		}
	}
}

// FuzzParse: whatever is read can be read again, is checked, and obeys the laws that need no second document.
func FuzzParse(f *testing.F) {
	for seed := range uint64(8) {
		f.Add([]byte(encoded(draw{rand.New(rand.NewPCG(seed, 1))}.state())))
	}
	f.Add([]byte("null"))
	f.Add([]byte(`{"routes": {"": []}, "port": [{"0": null}, {}]}`))
	f.Add([]byte(`{"routes": {"running": []}, "route-rules": {"config": [], "running": []}}`))
	f.Add([]byte("interfaces:\n- name: dummy0\n  state: up\n  type: dummy\n  mtu: 1450\n"))
	f.Add([]byte("interfaces: null\nroutes: {config: [{destination: '::/0', next-hop-address: 'fe80::1%eth0'}]}\nrules: [{fwmark: 0x1}]"))
	f.Add([]byte(`{"dns-resolver": {"config": {"server": ["fe80::1%eth0"]}}, "x": 1e400}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		s, err := ParseTemplate(raw)
		if err != nil {
			return
		}
		text, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		again, err := ParseTemplate(text)
		if err != nil || encoded(again) != string(text) {
			t.Fatalf("%s is read as %s (%v)", text, encoded(again), err)
		}
		for _, law := range []int{0, 1, 3, 4, 6, 9} {
			if err := laws[law].hold(s, nil, nil); err != nil {
				t.Fatalf("%s: %s: %v", laws[law].name, text, err)
			}
		}
		Own(s, s, "fk0")
	})
}
