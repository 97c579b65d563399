package explain_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/flowkeep/flowkeep/policydb/explain"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/policy/policytest"
)

// vary changes a few things of a world.
func vary(g policytest.Gen, w *policy.World) *policy.World {
	c := clone(w)
	for range 1 + g.IntN(4) {
		switch i := g.IntN(len(c.Policies)); g.IntN(7) {
		case 0:
			c.Policies = slices.Delete(c.Policies, i, i+1)
		case 1:
			c.Policies = append(c.Policies, g.Staged(100+i))
		case 2:
			c.Policies[i].AppliedTo = g.Selector()
		case 3:
			c.Endpoints[g.IntN(pods)].Labels = g.Labels()
		case 4:
			c.Namespaces[g.IntN(3)].Labels = g.Labels()
		case 5:
			n := g.IntN(pods)
			c.Endpoints[n] = g.Endpoint(n)
		case 6:
			c.Policies[i].DryRun = !c.Policies[i].DryRun
		}
	}
	return c
}

// place is an end in two worlds: a pod, or an address outside.
type place struct {
	pod      string
	was, now netip.Addr
}

var outsideAddresses = []string{"203.0.113.5", "10.244.1.30", "10.244.0.15", "2001:db8::5", "fd00:10:244::7f", "fd00:10:244:1::1"}

func places(w, v *policy.World) (list []place) {
	for i, e := range w.Endpoints {
		for _, six := range []bool{false, true} {
			p := place{e.ID(), addressOf(w, e, six), addressOf(v, v.Endpoints[i], six)}
			if p.was.IsValid() && p.now.IsValid() {
				list = append(list, p)
			}
		}
	}
	for _, text := range outsideAddresses {
		a := netip.MustParseAddr(text)
		list = append(list, place{"", a, a})
	}
	return list
}

// in tells whether the place is in the group, given all groups' CIDRs.
func (p place) in(g explain.Group, cidrs []netip.Prefix) bool {
	if p.pod != "" {
		return slices.Contains(g.Pods, p.pod)
	}
	narrowest := netip.Prefix{}
	for _, c := range cidrs {
		if c.Contains(p.was) && (!narrowest.IsValid() || c.Bits() > narrowest.Bits()) {
			narrowest = c
		}
	}
	return g.CIDR == narrowest
}

func cidrsOf(worlds ...*policy.World) []netip.Prefix {
	list := []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
	for _, w := range worlds {
		for _, pol := range w.Policies {
			if pol.DryRun {
				continue
			}
			for _, r := range slices.Concat(pol.Ingress, pol.Egress) {
				for _, p := range r.Peers {
					if p.Block != nil {
						list = append(append(list, p.Block.CIDR), p.Block.Except...)
					}
				}
			}
		}
	}
	return list
}

// claimed is what the delta says of two places.
func claimed(t *testing.T, d *explain.Delta, from, to place, cidrs []netip.Prefix) (said explain.Difference) {
	t.Helper()
	family, found := 4, 0
	if from.was.Is6() {
		family = 6
	}
	for _, x := range d.Differences {
		in := func(p place) func(int) bool { return func(i int) bool { return p.in(d.Groups[i], cidrs) } }
		if (x.Family == 0 || x.Family == family) && slices.ContainsFunc(x.From, in(from)) && slices.ContainsFunc(x.To, in(to)) {
			said = x
			found++
		}
	}
	if found > 1 {
		t.Errorf("%d differences from %v to %v", found, from, to)
	}
	return said
}

// causes are what the oracle's verdicts before and after have to say about why they differ.
func causes(before, after policy.Verdict) (list []string) {
	add := func(d string, was, is policy.SideVerdict) {
		switch {
		case before.Allowed && !after.Allowed && !is.Allowed && len(was.Isolated) == 0:
			list = append(list, effects(d, explain.Isolates, origins(is.Isolated))...)
		case before.Allowed && !after.Allowed && !is.Allowed:
			list = append(list, effects(d, explain.AllowsNoLonger, was.By)...)
		case !before.Allowed && after.Allowed && !was.Allowed && len(is.Isolated) == 0:
			list = append(list, effects(d, explain.IsolatesNoLonger, origins(was.Isolated))...)
		case !before.Allowed && after.Allowed && !was.Allowed:
			list = append(list, effects(d, explain.Allows, is.By)...)
		}
	}
	add("egress", before.Egress, after.Egress)
	add("ingress", before.Ingress, after.Ingress)
	slices.Sort(list)
	return list
}

func origins(isolated []string) (list []policy.Origin) {
	for _, id := range isolated {
		list = append(list, policy.Origin{Policy: id, Rule: -1})
	}
	return list
}

func effects(direction string, e explain.Effect, origins []policy.Origin) (list []string) {
	for _, o := range origins {
		list = append(list, (&explain.Cause{Direction: direction, Effect: e, Policy: o.Policy, Rule: o.Rule}).String())
	}
	return list
}

// saidCauses are those that a difference has for a packet.
func saidCauses(d *explain.Difference, p policy.Packet) (list []string) {
	for i := range d.Because {
		if c := &d.Because[i]; c.Connections.Contains(p.Protocol, p.Port) && c.Denies() == d.Lost.Contains(p.Protocol, p.Port) {
			list = append(list, c.String())
		}
	}
	slices.Sort(list)
	return list
}

func TestDiffIsWhereTheOracleDiffers(t *testing.T) {
	differ := 0
	worlds(t, 150, func(g policytest.Gen, w *policy.World, m *explain.Model) {
		v := vary(g, w)
		d := explain.Diff(m, explain.NewModel(v))
		list, cidrs, tries := places(w, v), cidrsOf(w, v), slices.Concat(probes(w), probes(v))
		for range 40 {
			from, to := list[g.IntN(len(list))], list[g.IntN(len(list))]
			if from.was.Is6() != to.was.Is6() || from.pod == to.pod {
				continue
			}
			said := claimed(t, &d, from, to, cidrs)
			for _, p := range tries {
				was := policy.Allowed(w, policy.Packet{From: from.was, To: to.was, Protocol: p.Protocol, Port: p.Port})
				is := policy.Allowed(v, policy.Packet{From: from.now, To: to.now, Protocol: p.Protocol, Port: p.Port})
				before, after := was.Allowed, is.Allowed
				if said.Gained.Contains(p.Protocol, p.Port) != (after && !before) || said.Lost.Contains(p.Protocol, p.Port) != (before && !after) {
					t.Errorf("%v to %v %s/%d: was %v, is %v; gained %s, lost %s", from, to, p.Protocol, p.Port, before, after, said.Gained, said.Lost)
					return
				}
				if want, got := causes(was, is), saidCauses(&said, p); !slices.Equal(want, got) {
					t.Errorf("%v to %v %s/%d: was %v, is %v, because of\n%q, want\n%q", from, to, p.Protocol, p.Port, before, after, got, want)
					return
				}
				if before != after {
					differ++
				}
			}
		}
	})
	if differ < 1000 {
		t.Errorf("only %d probes differed", differ)
	}
}

func TestDiffOfEqualWorldsIsEmpty(t *testing.T) {
	worlds(t, 20, func(_ policytest.Gen, w *policy.World, m *explain.Model) {
		d := explain.Diff(m, explain.NewModel(clone(w)))
		if !d.Same() {
			t.Errorf("%+v", d)
		}
	})
}

func TestDiffListsPodsOfOneWorldApart(t *testing.T) {
	before, after := policytest.New(1).World(3, 2), policytest.New(1).World(3, 2)
	a, b := *before.Endpoints[0], *before.Endpoints[0]
	a.Name, a.Addresses = "gone", []netip.Addr{netip.MustParseAddr("10.0.0.1")}
	b.Name, b.Addresses = "new", []netip.Addr{netip.MustParseAddr("10.0.0.2")}
	a.HostNetwork, a.Finished, b.HostNetwork, b.Finished = false, false, false, false
	before.Endpoints, after.Endpoints = append(before.Endpoints, &a), append(after.Endpoints, &b)
	d := explain.Diff(explain.NewModel(before), explain.NewModel(after))
	if !slices.Equal(d.OnlyBefore, []string{"ns0/gone"}) || !slices.Equal(d.OnlyAfter, []string{"ns0/new"}) || len(d.Differences) != 0 || d.Same() {
		t.Errorf("%+v", d)
	}
}
