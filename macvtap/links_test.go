package macvtap

import (
	"slices"
	"strings"
	"testing"
)

func TestFates(t *testing.T) {
	entries := func(entries ...Entry) []Policy { return []Policy{{Namespace: "a", Name: "p", Entries: entries}} }
	for _, c := range []struct {
		name string
		in   Input
		want map[string]string // of some links
	}{
		{"implicit", Input{}, map[string]string{
			"lo": "a loopback device carries no macvtap devices", "eth0": "as eth0", "eth2": "it is a port of a bond", "veth1": "of itself the node exposes devices and bonds, and this is a veth",
			"eth4": "it is a port of a switch of Open vSwitch", "ib0": "of itself the node exposes devices and bonds, and this is a virtual device",
			"eth@9": `"eth@9" is no resource name: it takes letters, digits and - _ . between them`,
		}},
		{"configuration", Input{Config: &Config{Entries: []ConfigEntry{{0, "x", "eth0", Bridge, 1}, {1, "y", "eth0", Passthru, 1}}}}, map[string]string{
			"eth0": "as x, and configuration [1] does not count for resource y: configuration [0] says resource x has devices on eth0, which passthru would have for itself",
			"eth1": "the explicit configuration does not have it",
		}},
		{"node-centric", Input{Policies: entries(Entry{Parent: "*", Resource: "x"}, Entry{Parent: "veth1"}, Entry{Parent: "eth9"})}, map[string]string{
			"eth0": "as x", "eth3": "policy a/p parentSelector[0] is a glob, which does not take it in: it is a port of a bridge",
			"eth0.7": "policy a/p parentSelector[0] is a glob, which takes in devices and bonds: a vlan must be named",
			"veth1":  "as veth1, and policy a/p parentSelector[0] is a glob, which takes in devices and bonds: a veth must be named",
			"lo":     "a loopback device carries no macvtap devices",
		}},
		{"resource-centric", Input{Policies: []Policy{resourceCentric, {Namespace: "a", Name: "q", Nodes: aware}}, Labels: tagged, Links: h1}, map[string]string{
			"bond1": "as dataplane", "eth1": "policy macvtap-cni/policy-1 parentSelector[1] comes after bond1, on which resource dataplane is",
			"eth0": "none of the policies that select the node has it: a/q, macvtap-cni/policy-1",
		}},
	} {
		if c.in.Links == nil {
			c.in.Links = host
		}
		fates := Fates(c.in, Select(c.in))
		if len(fates) != len(c.in.Links) {
			t.Errorf("%s: %d fates of %d links", c.name, len(fates), len(c.in.Links))
		}
		for _, f := range fates {
			got := f.Why
			if len(f.Resources) > 0 {
				got = strings.TrimSuffix("as "+strings.Join(f.Resources, ", ")+", and "+f.Why, ", and ")
			}
			if want, ok := c.want[f.Link.Name]; ok && got != want {
				t.Errorf("%s: %s: %q, not %q", c.name, f.Link.Name, got, want)
			}
		}
	}
}

// Each link is told of once, and one without resources with a reason.
func TestEachLinkHasAFate(t *testing.T) {
	eachInput(t, func(t *testing.T, _ draw, in Input) {
		e := Select(in)
		fates := Fates(in, e)
		uses := 0
		for _, r := range e.Resources {
			for _, p := range r.Parents {
				if linkOf(in, p.Link) != nil {
					uses++
				}
			}
		}
		for _, f := range fates {
			uses -= len(f.Resources)
			if len(f.Resources) == 0 && f.Why == "" {
				t.Errorf("nothing is told of %s", f.Link.Name)
			}
		}
		if uses != 0 || len(fates) != len(in.Links) {
			t.Errorf("%d uses are left over, and there are %d fates of %d links", uses, len(fates), len(in.Links))
		}
	})
}

func TestHolders(t *testing.T) {
	holders := []Holder{{Device: "x:eth0:10", Pod: "b"}, {Device: "other"}, {Device: "x:eth0:9", Pod: "a"}}
	SortHolders(holders)
	if got := []string{holders[0].Parent(), holders[1].Device, holders[2].Device}; !slices.Equal(got, []string{"", "x:eth0:9", "x:eth0:10"}) {
		t.Error(got)
	}
}

func FuzzParseDeviceID(f *testing.F) {
	for _, id := range []string{"dataplane:eth0:7", "a:b:-1", "a:b:01", "a:b:99999999999999999999", "::", "a:b:c:1", "a:b:+1"} {
		f.Add(id)
	}
	f.Fuzz(func(t *testing.T, id string) {
		if resource, parent, n, ok := ParseDeviceID(id); ok && DeviceID(resource, parent, n) != id {
			t.Errorf("%q is %q %q %d", id, resource, parent, n)
		}
	})
}
