package macvtap

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// claim is one parent for one resource, as the oracle sees it.
type claim struct {
	resource, link, mode string
	capacity             int
}

// oracle states the rules one by one and knows nothing of how Select goes about them: what is claimed, in order of rank, and
// of that, what is had.
func oracle(in Input) (had []claim) {
	claims := claimed(in)
	for i := range claims {
		if isHad(claims, i) {
			had = append(had, claims[i])
		}
	}
	return had
}

// isHad: of claims that do not go together the first is had, provided that it is had itself.
func isHad(claims []claim, i int) bool {
	for j := range i {
		if !goTogether(claims[i], claims[j]) && isHad(claims, j) {
			return false
		}
	}
	return true
}

func goTogether(a, b claim) bool {
	if a.resource == b.resource && a.link == b.link {
		return false // one is enough
	}
	if a.resource == b.resource && a.mode != b.mode {
		return false // who asks for the resource must know what it gets
	}
	if a.link == b.link && (a.mode == "passthru" || b.mode == "passthru") {
		return false // passthru has the parent for itself
	}
	return true
}

func claimed(in Input) (claims []claim) {
	if in.Config != nil {
		for _, e := range in.Config.Entries {
			if usable(in, e.Name, e.LowerDevice, true) {
				claims = append(claims, claim{e.Name, e.LowerDevice, string(e.Mode), e.Capacity})
			}
		}
		return claims
	}
	selected := false
	for _, p := range oldestFirst(in.Policies) {
		if !selects(p, in.Labels) {
			continue
		}
		selected = true
		var all []claim
		for _, e := range p.Entries {
			all = append(all, entryClaims(in, p, e)...)
		}
		if p.Resource != "" && len(all) > 0 { // the first that is there, else the first of those that were
			best := all[0]
			for _, c := range slices.Backward(all) {
				if linkOf(in, c.link) != nil {
					best = c
				}
			}
			all = []claim{best}
		}
		claims = append(claims, all...)
	}
	if selected {
		return claims
	}
	for _, name := range everyName(in) {
		if usable(in, name, name, false) && goodResource(name) {
			claims = append(claims, claim{name, name, "bridge", 100})
		}
	}
	return claims
}

func entryClaims(in Input, p Policy, e Entry) (claims []claim) {
	c := claim{mode: string(e.Mode), capacity: 100}
	if c.mode == "" {
		c.mode = "bridge"
	}
	if e.Quantity != nil {
		c.capacity = *e.Quantity
	}
	if c.capacity < 1 || c.capacity > 4096 || !slices.Contains([]string{"bridge", "private", "vepa", "passthru"}, c.mode) {
		return nil
	}
	if p.Resource != "" && (e.Resource != "" || !goodResource(p.Resource)) || e.Resource != "" && !goodResource(e.Resource) {
		return nil
	}
	if c.mode == "passthru" {
		c.capacity = 1
	}
	for _, name := range everyName(in) {
		c.link, c.resource = name, p.Resource+e.Resource
		if c.resource == "" {
			c.resource = name
		}
		if wildcard(e.Parent, name) && usable(in, c.resource, name, name == e.Parent) && goodResource(c.resource) {
			claims = append(claims, c)
		}
	}
	return claims
}

// usable: by its name a link can be had that is no loopback device; unnamed, a device or bond that is no port; and what was had before,
// while it is gone, or a port.
func usable(in Input, resource, name string, named bool) bool {
	before := slices.Contains(in.Known[resource], name)
	l := linkOf(in, name)
	switch {
	case l == nil:
		return before
	case l.Loopback:
		return false
	case named:
		return true
	}
	deviceOrBond := l.Physical || l.Kind == "bond"
	for _, glob := range in.Also {
		deviceOrBond = deviceOrBond || wildcard(glob, name)
	}
	return deviceOrBond && (l.Master == 0 || l.MasterKind == "vrf" || before)
}

func linkOf(in Input, name string) *Link {
	for _, l := range in.Links {
		if l.Name == name {
			return &l
		}
	}
	return nil
}

func everyName(in Input) (names []string) {
	for _, l := range in.Links {
		names = append(names, l.Name)
	}
	for _, parents := range in.Known {
		names = append(names, parents...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func oldestFirst(policies []Policy) []Policy {
	policies = slices.Clone(policies)
	for range policies {
		for i := range len(policies) - 1 {
			a, b := policies[i], policies[i+1]
			younger := a.Created.After(b.Created)
			if a.Created.Equal(b.Created) {
				younger = a.Namespace > b.Namespace || a.Namespace == b.Namespace && a.Name > b.Name
			}
			if younger {
				policies[i], policies[i+1] = b, a
			}
		}
	}
	return policies
}

func selects(p Policy, labels map[string]string) bool {
	for _, r := range p.Nodes.Requirements {
		value, has := labels[r.Key]
		in := has && slices.Contains(r.Values, value)
		if r.Operator == policy.In && !in || r.Operator == policy.NotIn && in || r.Operator == policy.Exists && !has || r.Operator == policy.DoesNotExist && has {
			return false
		}
	}
	return p.Invalid == ""
}

// wildcard knows * alone.
func wildcard(pattern, name string) bool {
	head, tail, glob := strings.Cut(pattern, "*")
	if !glob {
		return pattern == name
	}
	if !strings.HasPrefix(name, head) {
		return false
	}
	for i := len(head); i <= len(name); i++ {
		if wildcard(tail, name[i:]) {
			return true
		}
	}
	return false
}

func goodResource(name string) bool {
	ends := func(r byte) bool { return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' }
	if name == "" || len(name) > 63 || !ends(name[0]) || !ends(name[len(name)-1]) {
		return false
	}
	for i := range len(name) {
		if !ends(name[i]) && !strings.ContainsRune("-_.", rune(name[i])) {
			return false
		}
	}
	return true
}

// draw makes inputs of few names and values, so that they meet.
type draw struct{ *rand.Rand }

func one[T any](d draw, of ...T) T { return of[d.IntN(len(of))] }

var names = []string{"lo", "eth0", "eth1", "eth2", "bond0", "bond1", "ens3", "veth9", "e@1", "eth0.7"}

func (d draw) some(of []string) (some []string) {
	for _, s := range of {
		if d.IntN(2) == 0 {
			some = append(some, s)
		}
	}
	return some
}

func (d draw) links() (links []Link) {
	for i, name := range d.some(names) {
		l := Link{Name: name, Index: i + 1, Up: d.IntN(4) > 0, Loopback: name == "lo"}
		switch {
		case strings.HasPrefix(name, "bond"):
			l.Kind = "bond"
		case strings.HasPrefix(name, "veth"), strings.Contains(name, "."):
			l.Kind = one(d, "veth", "vlan")
		default:
			l.Physical = !l.Loopback && d.IntN(8) > 0
		}
		if d.IntN(4) == 0 {
			l.Master, l.MasterKind = 77, one(d, "bridge", "bond", "vrf", "")
		}
		links = append(links, l)
	}
	return links
}

func (d draw) policy(i int) Policy {
	p := Policy{Namespace: one(d, "a", "b"), Name: fmt.Sprint("p", i), Created: time.Unix(int64(d.IntN(3)), 0), Nodes: d.selector()}
	if d.IntN(3) == 0 {
		p.Resource = one(d, "x", "y", "no/name")
	}
	if d.IntN(12) == 0 {
		p.Invalid = "nobody understands it"
	}
	for range 1 + d.IntN(4) {
		p.Entries = append(p.Entries, d.entry(p.Resource != ""))
	}
	return p
}

func (d draw) selector() (s policy.Selector) {
	for range d.IntN(5) / 4 {
		s.Requirements = append(s.Requirements, policy.Requirement{Key: one(d, "aware", "zone"),
			Operator: one(d, policy.In, policy.NotIn, policy.Exists, policy.DoesNotExist), Values: []string{one(d, "true", "false")}})
		if o := s.Requirements[0].Operator; o == policy.Exists || o == policy.DoesNotExist {
			s.Requirements[0].Values = nil
		}
	}
	return s
}

func (d draw) entry(resourceCentric bool) (e Entry) {
	e = Entry{Parent: one(d, append([]string{"eth*", "*", "e*s*", "bond*", "eth7"}, names...)...), Mode: one(d, "", Bridge, VEPA, Private, Passthru, "brigde")}
	if d.IntN(2) == 0 {
		e.Mode = ""
	}
	if d.IntN(3) == 0 {
		e.Quantity = number(one(d, 0, -4, 1, 25, 100, MaxCapacity, MaxCapacity+1))
	}
	if !resourceCentric && d.IntN(2) == 0 || d.IntN(8) == 0 {
		e.Resource = one(d, "x", "y", "eth0", "-")
	}
	return e
}

func (d draw) input() Input {
	in := Input{Links: d.links(), Labels: map[string]string{}, Known: map[string][]string{}}
	for i := range d.IntN(4) {
		in.Policies = append(in.Policies, d.policy(i))
	}
	if d.IntN(2) == 0 {
		in.Labels["aware"] = one(d, "true", "false")
	}
	for _, resource := range d.some([]string{"x", "y", "eth0", "eth1", "bond0"}) {
		in.Known[resource] = d.some(names)
	}
	if d.IntN(4) == 0 {
		in.Also = []string{one(d, "veth*", "eth0*", "*")}
	}
	if d.IntN(6) == 0 {
		in.Config = &Config{}
		for i, name := range d.some([]string{"x", "y", "z"}) {
			e := ConfigEntry{i, name, one(d, names...), one(d, Modes...), 1 + d.IntN(3)}
			if e.Mode == Passthru {
				e.Capacity = 1
			}
			in.Config.Entries = append(in.Config.Entries, e)
		}
	}
	return in
}

func claimsOf(e Exposure) (claims []claim) {
	for _, r := range e.Resources {
		for _, p := range r.Parents {
			claims = append(claims, claim{r.Name, p.Link, string(p.Mode), p.Capacity})
		}
	}
	return claims
}

func compareClaims(a, b claim) int {
	return strings.Compare(a.resource+"\x00"+a.link, b.resource+"\x00"+b.link)
}

// eachInput runs a law on random inputs; the seed of one that breaks it is in the name.
func eachInput(t *testing.T, law func(t *testing.T, d draw, in Input)) {
	for seed := range uint64(10000) {
		d := draw{rand.New(rand.NewPCG(seed, 1))}
		in := d.input()
		law(t, d, in)
		if t.Failed() {
			t.Fatalf("seed %d: %+v", seed, in)
		}
	}
}

func TestSelectIsTheOracle(t *testing.T) {
	exposed, conflicts := 0, 0
	eachInput(t, func(t *testing.T, _ draw, in Input) {
		e := Select(in)
		want := oracle(in)
		slices.SortFunc(want, compareClaims)
		if got := claimsOf(e); !slices.Equal(got, want) {
			t.Errorf("%+v, the oracle says %+v", got, want)
		}
		exposed += len(want)
		conflicts += len(e.Conflicts)
	})
	if exposed < 10000 || conflicts < 750 {
		t.Errorf("the inputs say little: %d exposed, %d conflicts", exposed, conflicts)
	}
}

func shuffled[T any](d draw, of []T) []T {
	of = slices.Clone(of)
	d.Shuffle(len(of), func(i, j int) { of[i], of[j] = of[j], of[i] })
	return of
}

func TestOrderDoesNotMatter(t *testing.T) {
	eachInput(t, func(t *testing.T, d draw, in Input) {
		other := in
		other.Policies, other.Links, other.Known = shuffled(d, in.Policies), shuffled(d, in.Links), map[string][]string{}
		for resource, parents := range in.Known {
			other.Known[resource] = shuffled(d, parents)
		}
		if a, b := Select(in), Select(other); !reflect.DeepEqual(a, b) {
			t.Errorf("%+v, and in another order %+v", a, b)
		}
	})
}

// What a node has with its policies it still has with a younger one besides.
func TestYoungerPoliciesOnlyAdd(t *testing.T) {
	eachInput(t, func(t *testing.T, d draw, in Input) {
		before := Select(in)
		if before.Source != FromPolicies {
			return
		}
		youngest := d.policy(9)
		youngest.Created = time.Unix(99, 0)
		in.Policies = append(slices.Clone(in.Policies), youngest)
		after := claimsOf(Select(in))
		for _, c := range claimsOf(before) {
			if !slices.Contains(after, c) {
				t.Errorf("%+v went with %+v", c, youngest)
			}
		}
	})
}

// Links that go take no device out of the list, but for what a list of one resource falls back to; with the links back all is as it was.
func TestLinksThatGoAndComeBack(t *testing.T) {
	eachInput(t, func(t *testing.T, d draw, in Input) {
		in.Policies = slices.DeleteFunc(in.Policies, func(p Policy) bool { return p.Resource != "" })
		in.Known = nil
		before := Select(in)
		all := in.Links
		in.Links, in.Known = shuffled(d, all)[:len(all)/2], known(before)
		during := Select(in)
		if a, b := claimsOf(before), claimsOf(during); !slices.Equal(a, b) && !conflicting(before, during) {
			t.Errorf("%+v became %+v", a, b)
		}
		for _, r := range during.Resources {
			for _, p := range r.Parents {
				if there := linkOf(in, p.Link) != nil; !there && p.Healthy || p.Healthy != (p.Why == "") {
					t.Errorf("%s on %s: %+v", r.Name, p.Link, p)
				}
			}
		}
		in.Links, in.Known = all, known(during)
		if after := Select(in); !slices.Equal(told(before), told(after)) && !conflicting(before, after) {
			t.Errorf("%+v came back as %+v", before, after)
		}
	})
}

// conflicting: a glob takes a port in once an entry that names it has brought it into the resource, and the older of both wins.
func conflicting(before, after Exposure) bool { return len(before.Conflicts)+len(after.Conflicts) > 0 }
