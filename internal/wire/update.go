package wire

import (
	"fmt"
	"math"
	"net/netip"

	"github.com/flowkeep/flowkeep/api/feed"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"google.golang.org/protobuf/proto"
)

func unknown(m proto.Message) bool { return len(m.ProtoReflect().GetUnknown()) > 0 }

// toRule returns a rule of an update, or a part of one. It does not compare the key with the content.
func toRule(in *feed.Rule) (*policy.Rule, error) {
	if unknown(in) {
		return nil, errUnknownField
	}
	key, err := unpackKey(in.Key)
	if err != nil {
		return nil, err
	}
	r := &policy.Rule{Key: key, AnyPeer: in.AnyPeer, AnyPort: in.AnyPort, DryRun: in.Audit}
	if r.Direction, err = toDirection(in.Direction); err != nil {
		return nil, fmt.Errorf("rule %s: %w", key, err)
	}
	if r.AppliedTo, err = unpackKey(in.AppliedTo); err != nil {
		return nil, fmt.Errorf("rule %s: applied to: %w", key, err)
	}
	if r.Peers, err = unpackKeys(in.Peers); err != nil {
		return nil, fmt.Errorf("rule %s: peers: %w", key, err)
	}
	if err := toLists(in, r); err != nil {
		return nil, fmt.Errorf("rule %s: %w", key, err)
	}
	return r, nil
}

func toLists(in *feed.Rule, r *policy.Rule) error {
	for _, b := range in.Blocks {
		block, err := toBlock(b)
		if err != nil {
			return err
		}
		r.Blocks = append(r.Blocks, block)
	}
	for _, p := range in.Ports {
		ports, err := toPorts(p)
		if err != nil {
			return err
		}
		r.Ports = append(r.Ports, ports)
	}
	var err error
	r.Origins, err = toOrigins(in.Origins)
	return err
}

func toDirection(d feed.Direction) (policy.Direction, error) {
	switch d {
	case feed.Direction_DIRECTION_INGRESS:
		return policy.Ingress, nil
	case feed.Direction_DIRECTION_EGRESS:
		return policy.Egress, nil
	}
	return 0, fmt.Errorf("unknown direction %d", d)
}

// toBlock: an except that lies outside would say that something else was meant.
func toBlock(in *feed.IPBlock) (policy.IPBlock, error) {
	var out policy.IPBlock
	if unknown(in) {
		return out, errUnknownField
	}
	var err error
	if out.CIDR, err = unpackPrefix(in.GetCidr()); err != nil {
		return out, fmt.Errorf("block: %w", err)
	}
	for _, e := range in.Except {
		except, err := unpackPrefix(e)
		if err != nil {
			return out, fmt.Errorf("block %s: except: %w", out.CIDR, err)
		}
		if except.Bits() < out.CIDR.Bits() || !out.CIDR.Contains(except.Addr()) {
			return out, fmt.Errorf("block %s: %s is no part of it", out.CIDR, except)
		}
		out.Except = append(out.Except, except)
	}
	return out, nil
}

func toPorts(in *feed.PortRange) (policy.PortRange, error) {
	switch {
	case unknown(in):
		return policy.PortRange{}, errUnknownField
	case in.Protocol != feed.Protocol_PROTOCOL_TCP && in.Protocol != feed.Protocol_PROTOCOL_UDP &&
		in.Protocol != feed.Protocol_PROTOCOL_SCTP:
		return policy.PortRange{}, fmt.Errorf("unknown protocol %d", in.Protocol)
	case in.First > in.Last || in.Last > math.MaxUint16:
		return policy.PortRange{}, fmt.Errorf("%d to %d is no range of ports", in.First, in.Last)
	}
	return policy.PortRange{Protocol: policy.Protocol(in.Protocol), First: uint16(in.First), Last: uint16(in.Last)}, nil
}

func toOrigins(in []*feed.Origin) ([]policy.Origin, error) {
	if len(in) == 0 {
		return nil, nil
	}
	out := make([]policy.Origin, 0, len(in))
	for _, o := range in {
		if o.GetRule() < -1 || o.GetPolicy() == "" || len(o.GetPolicy()) > 2*maxName+1 {
			return nil, fmt.Errorf("rule %d of %q is no rule of a policy", o.GetRule(), short(o.GetPolicy()))
		}
		out = append(out, policy.Origin{Policy: o.Policy, Rule: int(o.Rule)})
	}
	return out, nil
}

func toGroup(in *feed.Group) (g policy.GroupUpdate, err error) {
	if unknown(in) {
		return g, errUnknownField
	}
	if g.Key, err = unpackKey(in.Key); err != nil {
		return g, err
	}
	switch in.Kind {
	case feed.GroupKind_GROUP_KIND_PEER:
		g.Kind = policy.PeerGroup
	case feed.GroupKind_GROUP_KIND_APPLIED_TO:
		g.Kind = policy.AppliedToGroup
	default:
		return g, fmt.Errorf("group %s: unknown kind %d", g.Key, in.Kind)
	}
	if g.Added, err = unpackAddresses(in.Added); err != nil {
		return g, fmt.Errorf("group %s: %w", g.Key, err)
	}
	if g.Removed, err = unpackAddresses(in.Removed); err != nil {
		return g, fmt.Errorf("group %s: %w", g.Key, err)
	}
	if g.Alike, err = unpackKeys(in.Alike); err != nil {
		return g, fmt.Errorf("group %s: alike: %w", g.Key, err)
	}
	g.Replace, g.Gone = in.Replace, in.Gone
	if g.Gone && (g.Replace || len(g.Added)+len(g.Removed) > 0) || g.Replace && len(g.Removed) > 0 {
		return g, fmt.Errorf("group %s: it cannot go, be replaced and be changed at once", g.Key)
	}
	if len(g.Alike) > 0 && (g.Gone || g.Kind != policy.PeerGroup) {
		return g, fmt.Errorf("group %s: no group can be like it", g.Key)
	}
	return g, nil
}

func toSettled(in *feed.Settled) (policy.SettledEndpoint, error) {
	if unknown(in) || in.GetId() == "" || len(in.GetId()) > 2*maxName+1 || len(in.GetUid()) > maxUID {
		return policy.SettledEndpoint{}, fmt.Errorf("settled: %q is no pod", short(in.GetId()))
	}
	return policy.SettledEndpoint{ID: in.Id, UID: in.Uid}, nil
}

// maxUpdate bounds all parts of an update together, in bytes.
const maxUpdate = 1 << 30

// UpdateAssembler assembles an update from its parts. It is of no use after an error.
type UpdateAssembler struct {
	update policy.NodeUpdate
	open   bool // parts came, the last is yet to come
	size   int
	rules  map[policy.Key]struct{}
	groups map[policy.GroupID]int // → index in update.Groups; alike: of a group that is like another one
	more   *policy.Rule           // a rule that goes on
}

// alike is in UpdateAssembler.groups of a group that is like another one.
const alike = -1

// Add takes a part; with the last the update is complete and whole is true.
func (a *UpdateAssembler) Add(part *feed.Update) (update policy.NodeUpdate, whole bool, err error) {
	if err := a.add(part); err != nil {
		return policy.NodeUpdate{}, false, fmt.Errorf("update %d: %w", part.GetRevision(), err)
	}
	if !part.Last {
		return policy.NodeUpdate{}, false, nil
	}
	update = a.update
	*a = UpdateAssembler{}
	for i := range update.Groups {
		if g := &update.Groups[i]; !disjoint(g.Added, g.Removed) {
			return policy.NodeUpdate{}, false, fmt.Errorf("update %d: group %s: an address is added and removed",
				update.Revision, g.Key)
		}
	}
	return update, true, nil
}

func (a *UpdateAssembler) add(part *feed.Update) error {
	if !a.open {
		*a = UpdateAssembler{
			open:   true,
			update: policy.NodeUpdate{Revision: part.Revision},
			rules:  map[policy.Key]struct{}{},
			groups: map[policy.GroupID]int{},
		}
	}
	switch a.size += proto.Size(part); {
	case unknown(part):
		return errUnknownField
	case part.Revision != a.update.Revision:
		return fmt.Errorf("a part of %d came before it was complete", a.update.Revision)
	case a.size > maxUpdate:
		return fmt.Errorf("larger than %d bytes", maxUpdate)
	}
	for _, r := range part.Rules {
		if err := a.addRule(r); err != nil {
			return err
		}
	}
	removed, err := unpackKeys(part.RemovedRules)
	if err != nil {
		return fmt.Errorf("removed rules: %w", err)
	}
	for _, key := range removed {
		if err := a.change(policy.RuleChange{Key: key}); err != nil {
			return err
		}
	}
	for _, g := range part.Groups {
		if err := a.addGroup(g); err != nil {
			return err
		}
	}
	for _, s := range part.Settled {
		settled, err := toSettled(s)
		if err != nil {
			return err
		}
		a.update.Settled = append(a.update.Settled, settled)
	}
	if part.Last && a.more != nil {
		return fmt.Errorf("rule %s: its rest is missing", a.more.Key)
	}
	return nil
}

func (a *UpdateAssembler) change(c policy.RuleChange) error {
	if a.more != nil {
		return fmt.Errorf("rule %s: its rest is missing", a.more.Key)
	}
	if _, twice := a.rules[c.Key]; twice {
		return fmt.Errorf("rule %s comes twice", c.Key)
	}
	a.rules[c.Key] = struct{}{}
	a.update.Rules = append(a.update.Rules, c)
	return nil
}

// addRule holds the key of a whole rule against its content.
func (a *UpdateAssembler) addRule(in *feed.Rule) error {
	r, err := toRule(in)
	if err != nil {
		return err
	}
	if a.more != nil {
		if r, err = goOn(a.more, r); err != nil {
			return err
		}
		a.more = nil
	}
	if in.More {
		a.more = r
		return nil
	}
	if !ascending(r.Peers, compareKeys) {
		return fmt.Errorf("rule %s: peers are out of order, or come twice", r.Key)
	}
	if policy.RuleKey(r) != r.Key {
		return fmt.Errorf("rule %s: its key is not that of its content", r.Key)
	}
	return a.change(policy.RuleChange{Key: r.Key, Rule: r})
}

func goOn(r, rest *policy.Rule) (*policy.Rule, error) {
	if r.Key != rest.Key || r.Direction != rest.Direction || r.AppliedTo != rest.AppliedTo ||
		r.AnyPeer != rest.AnyPeer || r.AnyPort != rest.AnyPort || r.DryRun != rest.DryRun {
		return nil, fmt.Errorf("rule %s: what follows is not its rest", r.Key)
	}
	r.Peers = append(r.Peers, rest.Peers...)
	r.Blocks = append(r.Blocks, rest.Blocks...)
	r.Ports = append(r.Ports, rest.Ports...)
	r.Origins = append(r.Origins, rest.Origins...)
	return r, nil
}

// addGroup puts the pieces of a large group together again.
func (a *UpdateAssembler) addGroup(in *feed.Group) error {
	g, err := toGroup(in)
	if err != nil {
		return err
	}
	id := g.ID()
	i, known := a.groups[id]
	if !known {
		a.groups[id] = len(a.update.Groups)
		a.update.Groups = append(a.update.Groups, g)
		return a.addAlike(&g, g.Alike)
	}
	if i == alike || g.Replace || g.Gone || a.update.Groups[i].Gone ||
		a.update.Groups[i].Replace && len(g.Removed) > 0 {
		return fmt.Errorf("group %s comes twice", g.Key)
	}
	have := &a.update.Groups[i]
	if have.Added, err = follow(have.Added, g.Added); err == nil {
		have.Removed, err = follow(have.Removed, g.Removed)
	}
	if err != nil {
		return fmt.Errorf("group %s: %w", g.Key, err)
	}
	have.Alike = append(have.Alike, g.Alike...)
	return a.addAlike(have, g.Alike)
}

// addAlike notes groups that are like another one. Each is in an update once, in whatever way.
func (a *UpdateAssembler) addAlike(of *policy.GroupUpdate, keys []policy.Key) error {
	if !ascending(of.Alike, compareKeys) {
		return fmt.Errorf("group %s: those like it are out of order, or come twice", of.Key)
	}
	for _, k := range keys {
		id := of.Kind.ID(k)
		if _, twice := a.groups[id]; twice {
			return fmt.Errorf("group %s comes twice", k)
		}
		a.groups[id] = alike
	}
	return nil
}

// follow appends addresses that must come after those before.
func follow(have, more []netip.Addr) ([]netip.Addr, error) {
	if len(have) > 0 && len(more) > 0 && have[len(have)-1].Compare(more[0]) >= 0 {
		return nil, errOrder
	}
	return append(have, more...), nil
}

// disjoint reports whether two sorted lists have no address in common.
func disjoint(a, b []netip.Addr) bool {
	for len(a) > 0 && len(b) > 0 {
		switch a[0].Compare(b[0]) {
		case 0:
			return false
		case -1:
			a = a[1:]
		default:
			b = b[1:]
		}
	}
	return true
}
