package wire

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/api/feed"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/policy/policytest"
	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/proto"
)

// gen draws what travels on the feed.
type gen struct{ policytest.Gen }

func (g gen) key() (k policy.Key) {
	for i := range k {
		k[i] = byte(g.IntN(256))
	}
	return k
}

func (g gen) keys(n int) []policy.Key {
	var out []policy.Key
	for range n {
		out = append(out, g.key())
	}
	slices.SortFunc(out, compareKeys)
	return out
}

func (g gen) addresses(n int) []netip.Addr {
	var out []netip.Addr
	for range n {
		a := policytest.Address(g.IntN(60000), false)
		if g.IntN(2) == 0 {
			a = policytest.Address(g.IntN(60000), true)
		}
		out = append(out, a)
	}
	return sorted(out)
}

func (g gen) rule(size int) *policy.Rule {
	r := &policy.Rule{Direction: policy.Direction(1 + g.IntN(2)), AppliedTo: g.key(), AnyPeer: g.IntN(5) == 0, AnyPort: g.IntN(3) == 0, DryRun: g.IntN(3) == 0, Peers: g.keys(g.IntN(size))}
	for range g.IntN(size) {
		r.Blocks = append(r.Blocks, *g.Block())
	}
	for range g.IntN(size) {
		p := g.Port()
		r.Ports = append(r.Ports, policy.PortRange{Protocol: p.Protocol, First: p.First, Last: p.Last})
	}
	for i := range g.IntN(size) {
		r.Origins = append(r.Origins, policy.Origin{Policy: fmt.Sprintf("ns/policy%d", i), Rule: g.IntN(4) - 1})
	}
	r.Key = policy.RuleKey(r)
	return r
}

func (g gen) group(size int) policy.GroupUpdate {
	u := policy.GroupUpdate{Key: g.key(), Kind: policy.GroupKind(1 + g.IntN(2))}
	switch g.IntN(4) {
	case 0:
		u.Gone = true
	case 1:
		u.Replace, u.Added = true, g.addresses(g.IntN(size))
	default:
		all := g.addresses(g.IntN(size))
		for _, a := range all {
			if g.IntN(2) == 0 {
				u.Added = append(u.Added, a)
			} else {
				u.Removed = append(u.Removed, a)
			}
		}
	}
	if u.Kind == policy.PeerGroup && !u.Gone {
		u.Alike = g.keys(g.IntN(size))
	}
	return u
}

func (g gen) update(rules, groups, size int) policy.NodeUpdate {
	u := policy.NodeUpdate{Revision: g.Uint64()}
	for range rules {
		if r := g.rule(size); g.IntN(4) == 0 {
			u.Rules = append(u.Rules, policy.RuleChange{Key: r.Key})
		} else {
			u.Rules = append(u.Rules, policy.RuleChange{Key: r.Key, Rule: r})
		}
	}
	for range groups {
		u.Groups = append(u.Groups, g.group(size))
	}
	for i := range g.IntN(4) {
		u.Settled = append(u.Settled, policy.SettledEndpoint{ID: fmt.Sprintf("ns/pod%d", i), UID: "uid"})
	}
	return u
}

// canonical: rules to put come before those to remove on the wire.
func canonical(u policy.NodeUpdate) policy.NodeUpdate {
	u.Rules = slices.Clone(u.Rules)
	slices.SortStableFunc(u.Rules, func(a, b policy.RuleChange) int {
		return cmp.Compare(btoi(a.Rule == nil), btoi(b.Rule == nil))
	})
	return u
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

var asValues = []gocmp.Option{cmpopts.EquateEmpty(), cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})}

// send is an update as it arrives: encoded, decoded, put together.
func send(t *testing.T, u *policy.NodeUpdate) (out policy.NodeUpdate, sizes []int) {
	t.Helper()
	var all UpdateAssembler
	whole := false
	for m := range Parts(u) {
		if whole {
			t.Fatal("a part came after the last")
		}
		b, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		sizes = append(sizes, len(b))
		came := new(feed.MasterMessage)
		if err := proto.Unmarshal(b, came); err != nil {
			t.Fatal(err)
		}
		if out, whole, err = all.Add(came.GetUpdate()); err != nil {
			t.Fatal(err)
		}
	}
	if !whole {
		t.Fatal("the last part was not marked")
	}
	return out, sizes
}

func TestUpdatesArriveAsTheyWere(t *testing.T) {
	g := gen{policytest.New(1)}
	for i := range 120 {
		u := g.update(g.IntN(8), g.IntN(8), 2+i/4)
		got, _ := send(t, &u)
		if d := gocmp.Diff(canonical(u), got, asValues...); d != "" {
			t.Fatalf("update %d differs (-sent +came):\n%s", i, d)
		}
	}
}

// Rules, groups and lists that are larger than a message go in parts, each far below the bound.
func TestLargeUpdatesAreParted(t *testing.T) {
	g := gen{policytest.New(2)}
	u := policy.NodeUpdate{Revision: 1}
	r := &policy.Rule{Direction: policy.Ingress, Peers: g.keys(50_000)}
	for range 10_000 {
		r.Blocks = append(r.Blocks, *g.Block())
		r.Ports = append(r.Ports, policy.PortRange{Protocol: policy.SCTP, First: 1, Last: 65535})
	}
	for i := range 5_000 {
		r.Origins = append(r.Origins, policy.Origin{Policy: fmt.Sprintf("%0253d/%0253d", i, i), Rule: -1})
	}
	r.Key = policy.RuleKey(r)
	u.Rules = append(u.Rules, policy.RuleChange{Key: r.Key, Rule: r})
	for range 50_000 {
		u.Rules = append(u.Rules, policy.RuleChange{Key: g.key()})
	}
	alike := policy.GroupUpdate{Key: g.key(), Kind: policy.PeerGroup, Replace: true, Added: g.addresses(100_000), Alike: g.keys(50_000)}
	u.Groups = append(u.Groups, alike,
		policy.GroupUpdate{Key: g.key(), Kind: policy.AppliedToGroup, Added: g.addresses(20_000)})
	for i := range 1000 {
		u.Settled = append(u.Settled, policy.SettledEndpoint{ID: fmt.Sprintf("%0253d/%0253d", i, i), UID: "uid"})
	}
	got, sizes := send(t, &u)
	if !reflect.DeepEqual(canonical(u), got) {
		t.Fatal("it is not what was sent")
	}
	if most := slices.Max(sizes); most > partSize+pieceSize {
		t.Errorf("a part of %d bytes", most)
	}
}

// One block with as many excepts as the API server takes in an object stays below the bound of a message.
func TestTheLargestBlockFits(t *testing.T) {
	r := &policy.Rule{Direction: policy.Egress, Blocks: []policy.IPBlock{{CIDR: netip.MustParsePrefix("fd00::/16")}}}
	for i := range 160_000 { // 1.5 MiB of "::/128",
		a := netip.MustParseAddr("fd00::").As16()
		a[13], a[14], a[15] = byte(i>>16), byte(i>>8), byte(i)
		r.Blocks[0].Except = append(r.Blocks[0].Except, netip.PrefixFrom(netip.AddrFrom16(a), 128))
	}
	r.Key = policy.RuleKey(r)
	u := policy.NodeUpdate{Rules: []policy.RuleChange{{Key: r.Key, Rule: r}}}
	if _, sizes := send(t, &u); slices.Max(sizes) > feed.MaxMasterMessage {
		t.Errorf("a part of %d bytes", slices.Max(sizes))
	}
}

func TestHellosArriveAsTheyWere(t *testing.T) {
	g := gen{policytest.New(3)}
	for _, n := range []int{0, 1, 100, 20_000} {
		h := Hello{Node: "node1", Program: "v1", Versions: Versions{2, 7}, Revision: 9, TrafficMode: "geneve",
			Links: &policy.Links{OnLink: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}}
		for kind := range policy.GroupKind(3) {
			for range n {
				h.Held = append(h.Held, Held{kind, g.key(), g.key()})
			}
		}
		for i := range min(n, MaxAnnounced) {
			h.Announced = append(h.Announced, Announcement{Namespace: "ns", Name: fmt.Sprintf("pod%d", i), UID: "uid", Addresses: g.addresses(2)})
		}
		var all HelloAssembler
		var got Hello
		parts, whole := 0, false
		for m := range HelloParts(&h) {
			b, err := proto.Marshal(m)
			if err != nil || len(b) > feed.MaxNodeMessage {
				t.Fatal(len(b), err)
			}
			came := new(feed.NodeMessage)
			if err := proto.Unmarshal(b, came); err != nil {
				t.Fatal(err)
			}
			parts++
			if got, whole, err = all.Add(came.GetHello()); err != nil {
				t.Fatal(err)
			}
		}
		if !whole || !reflect.DeepEqual(h, got) {
			t.Fatalf("%d: it is not what was sent", n)
		}
		if n == 20_000 && parts < 4 {
			t.Errorf("%d keys in %d parts", 3*n, parts)
		}
	}
}

func TestAcksAreCutToWhatFits(t *testing.T) {
	g := gen{policytest.New(4)}
	a := Ack{Revision: 7}
	for i := range 1000 {
		a.Errors = append(a.Errors, RuleError{Rules: g.keys(1000), Origins: g.rule(20).Origins, Message: fmt.Sprint(i, strings.Repeat("ü\xff", 900))})
	}
	m := FromAck(&a)
	b, err := proto.Marshal(m)
	if err != nil || len(b) > feed.MaxNodeMessage {
		t.Fatal(len(b), err)
	}
	got, err := ToAck(m.GetAck())
	if err != nil || len(got.Errors) != MaxErrors || got.Errors[MaxErrors-1].Message != "and 745 more" || len(got.Errors[0].Rules) != MaxErrorKeys {
		t.Errorf("%v: %d errors, the last %q", err, len(got.Errors), got.Errors[len(got.Errors)-1].Message)
	}
	a.Errors = a.Errors[:1]
	a.Errors[0] = RuleError{Rules: g.keys(3), Origins: []policy.Origin{{Policy: "a/b", Rule: -1}}, Message: "no"}
	if got, err := ToAck(FromAck(&a).GetAck()); err != nil || gocmp.Diff(a, got, asValues...) != "" {
		t.Error(got, err)
	}
}

// What makes no sense is refused whole, and the error says what is wrong.
func TestNonsenseInUpdatesIsRefused(t *testing.T) {
	key := func(n byte) []byte { return slices.Repeat([]byte{n}, 16) }
	rule := func(change func(*policy.Rule), wire func(*feed.Rule)) *feed.Update {
		r := &policy.Rule{Direction: policy.Ingress, AppliedTo: policy.Key{1}, Peers: []policy.Key{{1}, {2}}, Blocks: []policy.IPBlock{{CIDR: netip.MustParsePrefix("10.0.0.0/8")}},
			Ports: []policy.PortRange{{Protocol: policy.TCP, First: 1, Last: 2}}, Origins: []policy.Origin{{Policy: "a/b"}}}
		if change != nil {
			change(r)
		}
		r.Key = policy.RuleKey(r)
		u := policy.NodeUpdate{Revision: 1, Rules: []policy.RuleChange{{Key: r.Key, Rule: r}}}
		for m := range Parts(&u) {
			if wire != nil {
				wire(m.GetUpdate().Rules[0])
			}
			return m.GetUpdate()
		}
		return nil
	}
	group := func(groups ...*feed.Group) *feed.Update {
		for _, g := range groups {
			if g.Kind == 0 {
				g.Kind = feed.GroupKind_GROUP_KIND_PEER
			}
			if g.Key == nil {
				g.Key = key(1)
			}
		}
		return &feed.Update{Groups: groups}
	}
	prefix := func(bits uint32, a ...byte) func(*feed.Rule) {
		return func(r *feed.Rule) { r.Blocks[0].Cidr = &feed.Prefix{Address: a, Bits: bits} }
	}
	four := func(b ...byte) *feed.Addresses { return &feed.Addresses{Ipv4: b} }
	mapped := netip.MustParseAddr("::ffff:10.0.0.1").As16()
	later := func(m proto.Message) { m.ProtoReflect().SetUnknown([]byte{0xf8, 0x7f, 1}) }
	for name, test := range map[string]struct {
		update *feed.Update
		want   string
	}{
		"short key":              {rule(nil, func(r *feed.Rule) { r.Key = r.Key[:15] }), "no key"},
		"no key":                 {rule(nil, func(r *feed.Rule) { r.Key = nil }), "no key"},
		"another content":        {rule(nil, func(r *feed.Rule) { r.AnyPeer = true }), "not that of its content"},
		"a dry run that is none": {rule(func(r *policy.Rule) { r.DryRun = true }, func(r *feed.Rule) { r.Audit = false }), "not that of its content"},
		"no dry run that is one": {rule(nil, func(r *feed.Rule) { r.Audit = true }), "not that of its content"},
		"wider ports":            {rule(nil, func(r *feed.Rule) { r.Ports[0].Last = 65535 }), "not that of its content"},
		"lost peers":             {rule(nil, func(r *feed.Rule) { r.Peers = nil }), "not that of its content"},
		"lost ports":             {rule(nil, func(r *feed.Rule) { r.Ports = nil }), "not that of its content"},
		"short peers":            {rule(nil, func(r *feed.Rule) { r.Peers = r.Peers[:31] }), "no list of keys"},
		"peer twice":             {rule(func(r *policy.Rule) { r.Peers = []policy.Key{{1}, {1}} }, nil), "come twice"},
		"peers out of order":     {rule(func(r *policy.Rule) { r.Peers = []policy.Key{{2}, {1}} }, nil), "out of order"},
		"no applied-to":          {rule(nil, func(r *feed.Rule) { r.AppliedTo = nil }), "applied to"},
		"no direction":           {rule(nil, func(r *feed.Rule) { r.Direction = 0 }), "unknown direction 0"},
		"unknown direction":      {rule(nil, func(r *feed.Rule) { r.Direction = 3 }), "unknown direction 3"},
		"no protocol":            {rule(nil, func(r *feed.Rule) { r.Ports[0].Protocol = 0 }), "unknown protocol 0"},
		"unknown protocol":       {rule(nil, func(r *feed.Rule) { r.Ports[0].Protocol = 256 + 6 }), "unknown protocol 262"},
		"ports backwards":        {rule(nil, func(r *feed.Rule) { r.Ports[0].First = 3 }), "no range of ports"},
		"port 65536":             {rule(nil, func(r *feed.Rule) { r.Ports[0].Last = 65536 }), "no range of ports"},
		"prefix of 3 bytes":      {rule(nil, prefix(8, 10, 0, 0)), "no address"},
		"no prefix":              {rule(nil, func(r *feed.Rule) { r.Blocks[0].Cidr = nil }), "no address"},
		"prefix of 33 bits":      {rule(nil, prefix(33, 10, 0, 0, 0)), "no prefix of 33 bits"},
		"prefix of 256+8 bits":   {rule(nil, prefix(264, 10, 0, 0, 0)), "no prefix of 264 bits"},
		"prefix with host bits":  {rule(nil, prefix(8, 10, 1, 0, 0)), "bits set behind"},
		"prefix mapped":          {rule(nil, prefix(128, mapped[:]...)), "IPv6 form"},
		"except outside":         {rule(nil, func(r *feed.Rule) { r.Blocks[0].Except = []*feed.Prefix{{Address: []byte{11, 0, 0, 0}, Bits: 16}} }), "no part of it"},
		"except wider":           {rule(nil, func(r *feed.Rule) { r.Blocks[0].Except = []*feed.Prefix{{Address: []byte{0, 0, 0, 0}, Bits: 0}} }), "no part of it"},
		"except of other family": {rule(nil, func(r *feed.Rule) { r.Blocks[0].Except = []*feed.Prefix{{Address: make([]byte, 16), Bits: 64}} }), "no part of it"},
		"origin without policy":  {rule(nil, func(r *feed.Rule) { r.Origins[0].Policy = "" }), "no rule of a policy"},
		"rule -2":                {rule(nil, func(r *feed.Rule) { r.Origins[0].Rule = -2 }), "no rule of a policy"},
		"the rest is missing":    {rule(nil, func(r *feed.Rule) { r.More = true }), "its rest is missing"},
		"later rule":             {rule(nil, func(r *feed.Rule) { later(r) }), "does not understand"},
		"later block":            {rule(nil, func(r *feed.Rule) { later(r.Blocks[0]) }), "does not understand"},
		"later ports":            {rule(nil, func(r *feed.Rule) { later(r.Ports[0]) }), "does not understand"},
		"later prefix":           {rule(nil, func(r *feed.Rule) { later(r.Blocks[0].Cidr) }), "no address"},
		"later update":           {func() *feed.Update { u := new(feed.Update); later(u); return u }(), "does not understand"},
		"later group":            {func() *feed.Update { u := group(new(feed.Group)); later(u.Groups[0]); return u }(), "does not understand"},
		"later addresses":        {func() *feed.Update { u := group(&feed.Group{Added: four()}); later(u.Groups[0].Added); return u }(), "does not understand"},
		"later settled": {func() *feed.Update {
			s := &feed.Settled{Id: "a/b"}
			later(s)
			return &feed.Update{Settled: []*feed.Settled{s}}
		}(), "is no pod"},
		"removed twice":        {&feed.Update{RemovedRules: append(key(1), key(1)...)}, "comes twice"},
		"removed short":        {&feed.Update{RemovedRules: key(1)[:5]}, "no list of keys"},
		"group without key":    {group(&feed.Group{Key: []byte{}}), "no key"},
		"group of kind 3":      {group(&feed.Group{Kind: 3}), "unknown kind"},
		"gone and changed":     {group(&feed.Group{Gone: true, Added: four(10, 0, 0, 1)}), "at once"},
		"gone and replaced":    {group(&feed.Group{Gone: true, Replace: true}), "at once"},
		"replaced and removed": {group(&feed.Group{Replace: true, Removed: four(10, 0, 0, 1)}), "at once"},
		"gone twice":           {group(&feed.Group{Gone: true}, &feed.Group{Gone: true}), "comes twice"},
		"replaced twice":       {group(&feed.Group{Replace: true}, &feed.Group{Replace: true}), "comes twice"},
		"alike twice":          {group(&feed.Group{Alike: key(2)}, &feed.Group{Key: key(3), Alike: key(2)}), "comes twice"},
		"alike, then itself":   {group(&feed.Group{Alike: key(2)}, &feed.Group{Key: key(2)}), "comes twice"},
		"itself, then alike":   {group(&feed.Group{Key: key(2)}, &feed.Group{Alike: key(2)}), "comes twice"},
		"like itself":          {group(&feed.Group{Alike: key(1)}), "comes twice"},
		"alike out of order":   {group(&feed.Group{Alike: append(key(3), key(2)...)}), "out of order"},
		"alike in two parts":   {group(&feed.Group{Alike: key(3)}, &feed.Group{Alike: key(2)}), "out of order"},
		"a short alike":        {group(&feed.Group{Alike: key(2)[1:]}), "no list of keys"},
		"alike and gone":       {group(&feed.Group{Alike: key(2), Gone: true}), "no group can be like it"},
		"alike, of pods here":  {group(&feed.Group{Alike: key(2), Kind: feed.GroupKind_GROUP_KIND_APPLIED_TO}), "no group can be like it"},
		"replaced and patched": {group(&feed.Group{Replace: true}, &feed.Group{Removed: four(1, 0, 0, 1)}), "comes twice"},
		"address of 3 bytes":   {group(&feed.Group{Added: four(10, 0, 0)}), "no lists of"},
		"address twice":        {group(&feed.Group{Added: four(10, 0, 0, 1, 10, 0, 0, 1)}), "come twice"},
		"address twice in two": {group(&feed.Group{Added: four(10, 0, 0, 1)}, &feed.Group{Added: four(10, 0, 0, 1)}), "come twice"},
		"added and removed":    {group(&feed.Group{Added: four(10, 0, 0, 1), Removed: four(10, 0, 0, 1)}), "added and removed"},
		"added, then removed":  {group(&feed.Group{Added: four(10, 0, 0, 1)}, &feed.Group{Removed: four(10, 0, 0, 1)}), "added and removed"},
		"address mapped":       {group(&feed.Group{Added: &feed.Addresses{Ipv6: mapped[:]}}), "IPv6 form"},
		"settled nobody":       {&feed.Update{Settled: []*feed.Settled{{}}}, "is no pod"},
	} {
		test.update.Last = true
		u, whole, err := new(UpdateAssembler).Add(test.update)
		if err == nil || whole || !strings.Contains(err.Error(), test.want) || len(u.Rules)+len(u.Groups) > 0 {
			t.Errorf("%s: %v, whole %v, %d rules", name, err, whole, len(u.Rules))
		}
	}
	if _, whole, err := new(UpdateAssembler).Add(func() *feed.Update { u := rule(nil, nil); u.Last = true; return u }()); err != nil || !whole {
		t.Errorf("what makes sense: %v", err)
	}
}

func TestPartsMustBelongTogether(t *testing.T) {
	var all UpdateAssembler
	if _, _, err := all.Add(&feed.Update{Revision: 1}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := all.Add(&feed.Update{Revision: 2, Last: true}); err == nil {
		t.Error("a part of another revision was taken")
	}
	r := gen{policytest.New(5)}.rule(5)
	head := func() *feed.Rule {
		return &feed.Rule{Key: r.Key[:], Direction: feed.Direction(r.Direction), AppliedTo: r.AppliedTo[:], More: true}
	}
	for name, rest := range map[string]func(*feed.Rule){
		"another key":       func(f *feed.Rule) { f.Key = make([]byte, 16) },
		"another direction": func(f *feed.Rule) { f.Direction = 3 - f.Direction },
		"another target":    func(f *feed.Rule) { f.AppliedTo = make([]byte, 16) },
		"any peer":          func(f *feed.Rule) { f.AnyPeer = true },
		"a dry run":         func(f *feed.Rule) { f.Audit = !f.Audit },
	} {
		f := head()
		rest(f)
		if _, _, err := new(UpdateAssembler).Add(&feed.Update{Rules: []*feed.Rule{head(), f}}); err == nil {
			t.Errorf("%s: taken as the rest", name)
		}
	}
}

func TestNonsenseInHellosIsRefused(t *testing.T) {
	pod := func(name string) *feed.Announcement {
		return &feed.Announcement{Namespace: "ns", Name: name, Addresses: &feed.Addresses{Ipv4: []byte{10, 0, 0, 1}}}
	}
	addr := func(b ...byte) *feed.Announcement {
		a := pod("a")
		a.Addresses = &feed.Addresses{Ipv4: b}
		return a
	}
	many := make([]*feed.Announcement, MaxAnnounced+1)
	for i := range many {
		many[i] = pod(fmt.Sprint("pod", i))
	}
	mapped := netip.MustParseAddr("::ffff:10.0.0.1").As16()
	for name, h := range map[string]*feed.Hello{
		"no name":            {},
		"slash in the name":  {Node: "a/b"},
		"newline in it":      {Node: "a\nb"},
		"long name":          {Node: strings.Repeat("a", 254)},
		"long version":       {Node: "n", ProgramVersion: strings.Repeat("a", 200)},
		"short held":         {Node: "n", HeldRules: make([]byte, 31)},
		"held twice":         {Node: "n", HeldPeerGroups: make([]byte, 64)},
		"too many held":      {Node: "n", HeldRules: make([]byte, 32*(MaxHeld+1))},
		"announced twice":    {Node: "n", Announced: []*feed.Announcement{pod("a"), pod("a")}},
		"too many announced": {Node: "n", Announced: many},
		"pod without name":   {Node: "n", Announced: []*feed.Announcement{pod("")}},
		"pod with slash":     {Node: "n", Announced: []*feed.Announcement{pod("a/b")}},
		"loopback":           {Node: "n", Announced: []*feed.Announcement{addr(127, 0, 0, 1)}},
		"unspecified":        {Node: "n", Announced: []*feed.Announcement{addr(0, 0, 0, 0)}},
		"multicast":          {Node: "n", Announced: []*feed.Announcement{addr(224, 0, 0, 1)}},
		"3 bytes":            {Node: "n", Announced: []*feed.Announcement{addr(10, 0, 0)}},
		"address twice":      {Node: "n", Announced: []*feed.Announcement{addr(10, 0, 0, 1, 10, 0, 0, 1)}},
		"9 addresses":        {Node: "n", Announced: []*feed.Announcement{addr(1, 0, 0, 1, 1, 0, 0, 2, 1, 0, 0, 3, 1, 0, 0, 4, 1, 0, 0, 5, 1, 0, 0, 6, 1, 0, 0, 7, 1, 0, 0, 8, 1, 0, 0, 9)}},
		"mapped":             {Node: "n", Announced: []*feed.Announcement{{Namespace: "ns", Name: "a", Addresses: &feed.Addresses{Ipv6: mapped[:]}}}},
	} {
		if _, whole, err := new(HelloAssembler).Add(h); err == nil || whole {
			t.Errorf("%s: accepted", name)
		}
	}
	var all HelloAssembler
	_, _, _ = all.Add(&feed.Hello{Node: "a", More: true})
	if _, _, err := all.Add(&feed.Hello{Node: "b"}); err == nil {
		t.Error("a hello changed its name")
	}
}

func TestNodesArriveAsTheyWere(t *testing.T) {
	infos := []policy.NodeInfo{{Name: "a", Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")},
		PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24"), netip.MustParsePrefix("fd00::/64")},
		Links:    &policy.Links{OnLink: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}},
		{Name: "b"}, {Name: "c", Links: &policy.Links{OnLink: []netip.Prefix{}}}}
	got, err := ToNodes(FromNodes(infos).GetNodes())
	if d := gocmp.Diff(infos, got, asValues...); d != "" || err != nil {
		t.Error(err, d)
	}
	// A Node object may say what no other node would believe: the others are told the rest.
	infos[0].PodCIDRs = append(infos[0].PodCIDRs, netip.MustParsePrefix("::ffff:10.0.0.0/120"))
	if got, err = ToNodes(FromNodes(infos).GetNodes()); err != nil || len(got[0].PodCIDRs) != 2 {
		t.Error(got, err)
	}
	for name, n := range map[string]*feed.Nodes{
		"no name":   {Nodes: []*feed.NodeInfo{{}}},
		"twice":     {Nodes: []*feed.NodeInfo{{Name: "a"}, {Name: "a"}}},
		"17 links":  {Nodes: []*feed.NodeInfo{{Name: "a", Links: &feed.Links{OnLink: make([]*feed.Prefix, 17)}}}},
		"host bits": {Nodes: []*feed.NodeInfo{{Name: "a", PodCidrs: []*feed.Prefix{{Address: []byte{10, 0, 0, 1}, Bits: 24}}}}},
	} {
		if _, err := ToNodes(n); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestVersions(t *testing.T) {
	for _, v := range []struct {
		least, most uint32
		want        uint32
		ok          bool
	}{{feed.MinVersion, feed.MaxVersion, feed.MaxVersion, true}, {1, 99, feed.MaxVersion, true}, {0, feed.MinVersion - 1, 0, false}, {feed.MaxVersion + 1, 99, 0, false}, {99, 1, 0, false}, {0, 0, 0, false}} {
		got, ok := Own().Common(Versions{v.least, v.most})
		if ok != v.ok || ok && got != v.want {
			t.Errorf("%d to %d: %d, %v", v.least, v.most, got, ok)
		}
	}
	if CheckWelcome(&feed.Welcome{Version: feed.MaxVersion}, Own()) != nil || CheckWelcome(&feed.Welcome{}, Own()) == nil || CheckWelcome(&feed.Welcome{Version: 99}, Own()) == nil {
		t.Error("welcomes")
	}
}

func TestRepliesArriveAsTheyWere(t *testing.T) {
	for _, n := range []int{0, 1, replyPart, replyPart + 1, 3*replyPart + 5} {
		body := []byte(strings.Repeat("x", n))
		var got []byte
		more := true
		for m := range ReplyParts(5, body) {
			r := m.GetReply()
			if !more || r.Id != 5 || proto.Size(m) > feed.MaxNodeMessage {
				t.Fatal(n, more, r.Id)
			}
			got, more = append(got, r.Body...), r.More
		}
		if more || string(got) != string(body) {
			t.Errorf("%d bytes came of %d", len(got), n)
		}
	}
	if m := FromReplyError(1, errors.New("\xffno")); m.GetReply().Error != "no" {
		t.Errorf("%q", m.GetReply().Error)
	}
}
