package macvtap

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

func device(name string) Link { return Link{Name: name, Physical: true, Up: true} }

func bond(name string) Link { return Link{Name: name, Kind: "bond", Up: true} }

func number(n int) *int { return &n }

var aware = policy.Selector{Requirements: []policy.Requirement{{Key: "macvtapAware", Operator: policy.In, Values: []string{"true"}}}}

// The seed's hosts and its policy in both models.
var (
	tagged = map[string]string{"macvtapAware": "true"}
	h1     = []Link{{Name: "lo", Loopback: true, Up: true}, bond("bond1"), device("eth0"), device("eth1")}
	h2     = []Link{{Name: "lo", Loopback: true, Up: true}, bond("bond1"), device("ens3"), device("ens4"), device("ens5"), device("ens6")}
	h3     = []Link{{Name: "lo", Loopback: true, Up: true}, device("eth0"), device("eth1")}

	nodeCentric = Policy{Namespace: "macvtap-cni", Name: "policy-1", Nodes: aware, Entries: []Entry{
		{Parent: "bond1", Mode: Private, Quantity: number(25), Resource: "bondedIface"},
		{Parent: "eth1", Mode: VEPA, Resource: "quickDataplane"},
		{Parent: "eth2", Resource: "dataplane"},
	}}
	resourceCentric = Policy{Namespace: "macvtap-cni", Name: "policy-1", Nodes: aware, Resource: "dataplane", Entries: []Entry{
		{Parent: "bond1", Mode: Private, Quantity: number(25)},
		{Parent: "eth1", Mode: VEPA},
		{Parent: "eth2"},
	}}
)

// told is an exposure in lines: "dataplane: bond1 private 25".
func told(e Exposure) (lines []string) {
	for _, r := range e.Resources {
		for _, p := range r.Parents {
			line := fmt.Sprintf("%s: %s %s %d", r.Name, p.Link, p.Mode, p.Capacity)
			if !p.Healthy {
				line += ", " + p.Why
			}
			lines = append(lines, line)
		}
	}
	return lines
}

func TestSeedsHosts(t *testing.T) {
	for _, c := range []struct {
		name   string
		links  []Link
		labels map[string]string
		policy Policy
		want   []string
	}{
		{"h1, node-centric", h1, tagged, nodeCentric, []string{"bondedIface: bond1 private 25", "quickDataplane: eth1 vepa 100"}},
		{"h2, node-centric", h2, tagged, nodeCentric, []string{"bondedIface: bond1 private 25"}},
		{"h3, node-centric", h3, nil, nodeCentric, []string{"eth0: eth0 bridge 100", "eth1: eth1 bridge 100"}},
		{"h1, resource-centric", h1, tagged, resourceCentric, []string{"dataplane: bond1 private 25"}},
		{"h2, resource-centric", h2, tagged, resourceCentric, []string{"dataplane: bond1 private 25"}},
		{"h3, resource-centric", h3, nil, resourceCentric, []string{"eth0: eth0 bridge 100", "eth1: eth1 bridge 100"}},
		{"h3, were it tagged, resource-centric", h3, tagged, resourceCentric, []string{"dataplane: eth1 vepa 100"}},
		{"a host with eth2 alone", []Link{device("eth2")}, tagged, resourceCentric, []string{"dataplane: eth2 bridge 100"}},
		{"a host with none of them", []Link{device("ens3")}, tagged, resourceCentric, nil},
	} {
		e := Select(Input{Policies: []Policy{c.policy}, Labels: c.labels, Links: c.links})
		if got := told(e); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, not %q", c.name, got, c.want)
		}
		if len(e.Conflicts)+len(e.Problems) > 0 {
			t.Errorf("%s: %v %v", c.name, e.Conflicts, e.Problems)
		}
	}
}

// host has a link of each sort.
var host = []Link{
	{Name: "lo", Loopback: true, Up: true, Index: 1}, device("eth0"), device("eth1"), bond("bond0"),
	{Name: "eth2", Physical: true, Up: true, Master: 4, MasterKind: "bond"}, {Name: "eth3", Physical: true, Up: true, Master: 5, MasterKind: "bridge"},
	{Name: "eth4", Physical: true, Up: true, Master: 9, MasterKind: "openvswitch"}, {Name: "eth5", Physical: true, Up: true, Master: 10, MasterKind: "vrf"},
	{Name: "eth6", Physical: true}, {Name: "bond1", Kind: "bond", Up: true, Master: 5, MasterKind: "bridge"},
	{Name: "veth1", Kind: "veth", Up: true}, {Name: "br0", Kind: "bridge", Up: true, Index: 5}, {Name: "eth0.7", Kind: "vlan", Up: true},
	{Name: "vxlan0", Kind: "vxlan", Up: true}, {Name: "ovs-system", Kind: "openvswitch", Index: 9}, {Name: "br-int", Kind: "openvswitch", Up: true},
	{Name: "tap0", Kind: "tun", Up: true}, {Name: "macvtap0", Kind: "macvtap", Up: true}, {Name: "dummy0", Kind: "dummy", Up: true},
	{Name: "wg0", Kind: "wireguard", Up: true}, {Name: "ib0", Up: true}, device("eth@9"), device("averylongname15"),
}

func TestSelect(t *testing.T) {
	entries := func(entries ...Entry) []Policy { return []Policy{{Namespace: "a", Name: "p", Entries: entries}} }
	older := time.Unix(1000, 0)
	for _, c := range []struct {
		name string
		in   Input
		want []string
		also []string // of conflicts, absences and problems, as complaintsOf tells them
	}{
		{"implicit", Input{}, []string{"averylongname15: averylongname15 bridge 100", "bond0: bond0 bridge 100", "eth0: eth0 bridge 100", "eth1: eth1 bridge 100",
			"eth5: eth5 bridge 100", "eth6: eth6 bridge 100, it is down"}, []string{`implicit: "eth@9" is no resource name: it takes letters, digits and - _ . between them`}},
		{"implicit, and others besides", Input{Links: []Link{device("eth0"), {Name: "v1", Kind: "veth", Up: true}, {Name: "v2", Kind: "veth"}}, Also: []string{"v1"}},
			[]string{"eth0: eth0 bridge 100", "v1: v1 bridge 100"}, nil},
		{"a white list of nothing", Input{Policies: entries()}, nil, nil},
		{"a policy that selects another node", Input{Links: h3, Policies: []Policy{{Nodes: aware}}}, []string{"eth0: eth0 bridge 100", "eth1: eth1 bridge 100"}, nil},
		{"no resourceName: the parent's", Input{Policies: entries(Entry{Parent: "eth0"}, Entry{Parent: "eth[01]", Mode: VEPA})},
			[]string{"eth0: eth0 bridge 100", "eth1: eth1 vepa 100"}, []string{"policy a/p parentSelector[0] before policy a/p parentSelector[1]: eth0 on eth0: mode bridge, not vepa"}},
		{"a glob takes devices and bonds that are no ports", Input{Policies: entries(Entry{Parent: "*0*", Resource: "x"})},
			[]string{"x: bond0 bridge 100", "x: eth0 bridge 100"}, nil},
		{"a name takes everything", Input{Policies: entries(Entry{Parent: "eth0.7"}, Entry{Parent: "veth1"}, Entry{Parent: "eth3"}, Entry{Parent: "eth2"}, Entry{Parent: "eth4"})},
			[]string{"eth0.7: eth0.7 bridge 100", "eth2: eth2 bridge 100, it is a port of a bond", "eth3: eth3 bridge 100, it is a port of a bridge",
				"eth4: eth4 bridge 100, it is a port of a switch of Open vSwitch", "veth1: veth1 bridge 100"}, nil},
		{"but lo", Input{Policies: entries(Entry{Parent: "lo"}, Entry{Parent: "l*"})}, nil, []string{"policy a/p parentSelector[1]: no l*",
			"policy a/p parentSelector[0]: lo is a loopback device, which carries no macvtap devices"}},
		{"a link whose name is no resource's", Input{Policies: entries(Entry{Parent: "eth@9"}, Entry{Parent: "eth@9", Resource: "x"})}, []string{"x: eth@9 bridge 100"},
			[]string{`policy a/p parentSelector[0]: "eth@9" is no resource name: it takes letters, digits and - _ . between them; give the entry a resourceName`}},
		{"mistakes do not stop the rest", Input{Policies: entries(Entry{Parent: "eth0", Mode: "brigde"}, Entry{Parent: "eth0", Quantity: number(0)}, Entry{Parent: "eth0", Quantity: number(-1)},
			Entry{Parent: "eth0", Quantity: number(MaxCapacity + 1)}, Entry{Parent: "eth["}, Entry{}, Entry{Parent: "asixteencharname"}, Entry{Parent: "eth0", Resource: strings.Repeat("x", 64)},
			Entry{Parent: "eth9"}, Entry{Parent: "eth1", Resource: strings.Repeat("x", 63)})}, []string{strings.Repeat("x", 63) + ": eth1 bridge 100"}, []string{
			"policy a/p parentSelector[8]: no eth9",
			`policy a/p parentSelector[0]: mode "brigde" is none of bridge, private, vepa and passthru`,
			"policy a/p parentSelector[1]: quantity is 0, and must be 1 to 4096", "policy a/p parentSelector[2]: quantity is -1, and must be 1 to 4096",
			"policy a/p parentSelector[3]: quantity is 4097, and must be 1 to 4096", `policy a/p parentSelector[4]: "eth[" is no pattern: write * for any characters, ? for one, [ab] for one of these`,
			"policy a/p parentSelector[5]: the parent has no name", `policy a/p parentSelector[6]: no interface is called "asixteencharname": it has 16 characters, and 15 are the most`,
			`policy a/p parentSelector[7]: "` + strings.Repeat("x", 64) + `" is no resource name: it has 64 characters, and 63 are the most`}},
		{"a policy that can't be understood selects nothing", Input{Links: h3, Policies: []Policy{{Namespace: "a", Name: "p", Invalid: "nodeSelector: no such operator"}}},
			[]string{"eth0: eth0 bridge 100", "eth1: eth1 bridge 100"}, []string{"policy a/p: nodeSelector: no such operator"}},
		{"two names of one policy", Input{Policies: []Policy{{Namespace: "a", Name: "p", Resource: "x", Entries: []Entry{{Parent: "eth0", Resource: "y"}, {Parent: "eth1"}}}}},
			[]string{"x: eth1 bridge 100"}, []string{"policy a/p parentSelector[0]: the policy has a resourceName for all of its parents: an entry can't have one too"}},
		{"a resource that can't be asked for", Input{Policies: []Policy{{Namespace: "a", Name: "p", Resource: "x/y", Entries: []Entry{{Parent: "eth0"}}}}}, nil,
			[]string{`policy a/p: "x/y" is no resource name: it takes letters, digits and - _ . between them`}},
		{"the first by name of a glob", Input{Policies: []Policy{{Namespace: "a", Name: "p", Resource: "x", Entries: []Entry{{Parent: "nic*"}, {Parent: "eth*"}, {Parent: "bond0"}}}}},
			[]string{"x: eth0 bridge 100"}, []string{"policy a/p parentSelector[0]: no nic*"}},
		{"several policies", Input{Policies: []Policy{
			{Namespace: "b", Name: "young", Created: older.Add(1), Entries: []Entry{{Parent: "eth0", Resource: "x", Mode: VEPA}, {Parent: "bond0"}, {Parent: "eth1", Resource: "x", Quantity: number(7)}}},
			{Namespace: "b", Name: "old", Created: older, Entries: []Entry{{Parent: "eth0", Resource: "x"}}},
			{Namespace: "a", Name: "young", Created: older.Add(1), Entries: []Entry{{Parent: "eth1", Resource: "x", Quantity: number(9)}}},
		}}, []string{"bond0: bond0 bridge 100", "x: eth0 bridge 100", "x: eth1 bridge 9"}, []string{
			"policy b/old parentSelector[0] before policy b/young parentSelector[0]: x on eth0: mode bridge, not vepa",
			"policy a/young parentSelector[0] before policy b/young parentSelector[2]: x on eth1: 9 devices, not 7"}},
		{"one resource of two modes", Input{Policies: []Policy{
			{Namespace: "a", Name: "p", Entries: []Entry{{Parent: "eth0", Resource: "x", Mode: Private}}}, {Namespace: "a", Name: "q", Entries: []Entry{{Parent: "eth1", Resource: "x", Mode: VEPA}}},
		}}, []string{"x: eth0 private 100"}, []string{"policy a/p parentSelector[0] before policy a/q parentSelector[0]: x on eth1: mode private, not vepa"}},
		{"passthru", Input{Policies: entries(Entry{Parent: "eth0", Mode: Passthru, Resource: "x", Quantity: number(5)}, Entry{Parent: "eth1", Resource: "x", Mode: Passthru},
			Entry{Parent: "eth0", Resource: "y"}, Entry{Parent: "bond0", Resource: "y"}, Entry{Parent: "bond0", Resource: "z", Mode: Passthru})},
			[]string{"x: eth0 passthru 1", "x: eth1 passthru 1", "y: bond0 bridge 100"}, []string{
				"policy a/p parentSelector[0] before policy a/p parentSelector[2]: y on eth0: resource x has eth0 for itself (passthru)",
				"policy a/p parentSelector[3] before policy a/p parentSelector[4]: z on bond0: resource y has devices on bond0, which passthru would have for itself",
				"policy a/p parentSelector[0]: passthru gives the whole parent to one pod: quantity is 1, not 5"}},
		{"the configuration counts alone", Input{Policies: []Policy{nodeCentric}, Labels: tagged, Config: &Config{Entries: []ConfigEntry{
			{0, "x", "eth9", Bridge, 3}, {1, "y", "eth1", VEPA, 4}, {2, "z", "lo", VEPA, 4}}}}, []string{"y: eth1 vepa 4"}, []string{"configuration [0]: no eth9",
			"configuration [2]: lo is a loopback device, which carries no macvtap devices"}},
		{"also when all of it is refused", Input{Config: &Config{Problems: []Problem{{Origin{Source: FromConfig}, "name is missing"}}}}, nil, []string{"configuration [0]: name is missing"}},
	} {
		if c.in.Links == nil {
			c.in.Links = host
		}
		e := Select(c.in)
		if got := told(e); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, not %q", c.name, got, c.want)
		}
		if got := complaintsOf(e); !slices.Equal(got, c.also) {
			t.Errorf("%s:\n%s\nnot\n%s", c.name, strings.Join(got, "\n"), strings.Join(c.also, "\n"))
		}
	}
}

func complaintsOf(e Exposure) (lines []string) {
	for _, c := range e.Conflicts {
		lines = append(lines, fmt.Sprintf("%s before %s: %s on %s: %s", c.Winner, c.Loser, c.Resource, c.Parent, c.About))
	}
	for _, a := range e.Absent {
		lines = append(lines, fmt.Sprintf("%s: no %s", a.Origin, a.Parent))
	}
	for _, p := range e.Problems {
		lines = append(lines, fmt.Sprintf("%s: %s", p.Origin, p.Message))
	}
	return lines
}

// A parent that goes stays, unhealthy, and is well again when it is back, while its source asks for it.
func TestParentsComeAndGo(t *testing.T) {
	for _, c := range []struct {
		name                string
		in                  Input
		before, gone, other []string // with all links; without eth1; with eth1 as a port of a bridge
	}{
		{"implicit", Input{}, []string{"eth0: eth0 bridge 100", "eth1: eth1 bridge 100"},
			[]string{"eth0: eth0 bridge 100", "eth1: eth1 bridge 100, it is not there"}, []string{"eth0: eth0 bridge 100", "eth1: eth1 bridge 100, it is a port of a bridge"}},
		{"named", Input{Policies: []Policy{{Entries: []Entry{{Parent: "eth1", Resource: "x", Mode: VEPA}}}}}, []string{"x: eth1 vepa 100"},
			[]string{"x: eth1 vepa 100, it is not there"}, []string{"x: eth1 vepa 100, it is a port of a bridge"}},
		{"glob", Input{Policies: []Policy{{Entries: []Entry{{Parent: "eth*", Resource: "x"}}}}}, []string{"x: eth0 bridge 100", "x: eth1 bridge 100"},
			[]string{"x: eth0 bridge 100", "x: eth1 bridge 100, it is not there"}, []string{"x: eth0 bridge 100", "x: eth1 bridge 100, it is a port of a bridge"}},
		{"configuration", Input{Config: &Config{Entries: []ConfigEntry{{0, "x", "eth1", Bridge, 2}}}}, []string{"x: eth1 bridge 2"},
			[]string{"x: eth1 bridge 2, it is not there"}, []string{"x: eth1 bridge 2, it is a port of a bridge"}},
		{"the next of a list", Input{Policies: []Policy{{Resource: "x", Entries: []Entry{{Parent: "eth1", Mode: VEPA}, {Parent: "eth0"}}}}}, []string{"x: eth1 vepa 100"},
			[]string{"x: eth0 bridge 100"}, []string{"x: eth1 vepa 100, it is a port of a bridge"}},
		{"the last of a list", Input{Policies: []Policy{{Resource: "x", Entries: []Entry{{Parent: "eth7"}, {Parent: "eth1", Mode: VEPA}}}}}, []string{"x: eth1 vepa 100"},
			[]string{"x: eth1 vepa 100, it is not there"}, []string{"x: eth1 vepa 100, it is a port of a bridge"}},
	} {
		in := c.in
		check := func(when string, links []Link, want []string) {
			t.Helper()
			in.Links = links
			e := Select(in)
			if got := told(e); !slices.Equal(got, want) {
				t.Errorf("%s, %s: %q, not %q", c.name, when, got, want)
			}
			in.Known = known(e)
		}
		check("before", h3, c.before)
		check("gone", h3[:2], c.gone)
		check("back", h3, c.before)
		check("a port", []Link{h3[0], h3[1], {Name: "eth1", Physical: true, Up: true, Master: 7, MasterKind: "bridge"}}, c.other)
		check("and no more", h3, c.before)
	}
	in := Input{Links: h3[:2], Known: map[string][]string{"eth1": {"eth1"}}, Policies: []Policy{{Entries: []Entry{{Parent: "eth0"}}}}}
	if got := told(Select(in)); !slices.Equal(got, []string{"eth0: eth0 bridge 100"}) {
		t.Errorf("what nobody asks for any more stays: %q", got)
	}
}

func known(e Exposure) map[string][]string {
	known := map[string][]string{}
	for _, r := range e.Resources {
		for _, p := range r.Parents {
			known[r.Name] = append(known[r.Name], p.Link)
		}
	}
	return known
}

// Neither links nor resources have colons in their names, so that ids say which device is meant.
// A resource has no more devices than a message to the kubelet holds; what is left out is told of.
func TestResourcesAreBounded(t *testing.T) {
	most := MaxCapacity
	in := Input{Policies: []Policy{{Name: "p", Entries: []Entry{{Parent: "eth*", Quantity: &most, Resource: "data"}}}}}
	for i := range 40 {
		in.Links = append(in.Links, Link{Name: fmt.Sprintf("eth%02d", i), Physical: true, Up: true})
	}
	e := Select(in)
	devices := 0
	for _, p := range e.Resources[0].Parents {
		devices += p.Capacity
	}
	if devices != MaxDevices || len(e.Problems) != 32 || !strings.Contains(e.Problems[0].Message, "more than 32768 devices with the 4096 on eth08") {
		t.Errorf("%d devices, %d problems: %v", devices, len(e.Problems), e.Problems[0])
	}
	if why := Fates(in, e)[39].Why; why != "policy /p parentSelector[0] finds it, and is refused (see the problems)" {
		t.Error(why)
	}
}

func TestDeviceIDs(t *testing.T) {
	if id := DeviceID("dataplane", "bond1.7", 24); id != "dataplane:bond1.7:24" {
		t.Error(id)
	}
	if CheckLink("a:b") == "" || CheckResource("a:b") == "" {
		t.Error("a name with a colon is taken")
	}
	ids := map[string]bool{}
	for _, resource := range []string{"a", "a-a", "a_a", "a.a", "a-1"} {
		for _, parent := range []string{"a", "a-a", "a_a", "a.a", "1-a"} {
			for n := range 12 {
				ids[DeviceID(resource, parent, n)] = true
			}
		}
	}
	if len(ids) != 5*5*12 {
		t.Errorf("%d ids", len(ids))
	}
}

func TestOrigins(t *testing.T) {
	for o, want := range map[Origin]string{
		{Source: FromConfig, Entry: 2}: "configuration [2]", {Source: Implicit}: "implicit",
		{FromPolicies, "a/p", 3}: "policy a/p parentSelector[3]", {FromPolicies, "a/p", -1}: "policy a/p",
	} {
		if got := o.String(); got != want {
			t.Errorf("%#v is %q, not %q", o, got, want)
		}
	}
	if !reflect.DeepEqual(Select(Input{Links: host}), Select(Input{Links: slices.Clone(host)})) {
		t.Error("the same is not the same")
	}
}
