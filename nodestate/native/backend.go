package native

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/flowkeep/flowkeep/nodestate"
	"github.com/flowkeep/flowkeep/nodestate/native/lldp"
	"github.com/flowkeep/flowkeep/nodestate/nmstate"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/vishvananda/netlink"
)

// Name is what states and journals call this backend.
const Name = "native"

// Config configures a Backend for its node.
type Config struct {
	Bridge     string // Flowkeep's, which is left alone
	ResolvConf string // path of the file of DNS servers; empty: DNS is left alone
	Root       string // where the node's root directory is, for the file of DNS servers; empty: /
	OVSDB      string // endpoint of ovsdb-server, such as unix:/run/openvswitch/db.sock; empty: no Open vSwitch
	Neighbours string // path of the record of who is known by LLDP; empty: they are forgotten with the process
	StateDir   string // where it is kept which ports Flowkeep's bridge has; empty: nowhere
	Log        *slog.Logger
}

// system has a network and does steps to it: the kernel, or in tests a network in memory.
type system interface {
	// show has of the routes of routing daemons only default routes and those to the destinations.
	show(ctx context.Context, destinations map[netip.Prefix]bool) (*network, error)
	do(ctx context.Context, s Step) error
}

// Backend implements nodestate.Backend in this process. One goroutine uses it.
type Backend struct {
	system system
	own    Own
	cfg    Config
	ovs    *switches
	ears   *lldp.Listener
}

// New makes a backend of the network namespace that the caller is in. Close ends it.
func New(cfg Config) *Backend {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	own := Own{Bridge: cfg.Bridge}
	known, err := openPorts(cfg.StateDir, cfg.Bridge)
	if err != nil {
		cfg.Log.Warn("no interface can be changed until ovsdb-server responds", "err", err)
	}
	ovs := &switches{endpoint: cfg.OVSDB, own: own, ports: known, log: cfg.Log}
	ears := lldp.New(cfg.Neighbours)
	k := &kernel{
		own:        own,
		root:       cfg.Root,
		resolvConf: cfg.ResolvConf,
		ovs:        ovs,
		ears:       ears,
		setMAC:     netlink.LinkSetHardwareAddr,
	}
	return &Backend{system: k, own: own, cfg: cfg, ovs: ovs, ears: ears}
}

// Listen starts to receive neighbours by LLDP, until Close. It signals on the channel when they have changed the
// state. Without it Show reports those on record.
func (b *Backend) Listen(moved chan<- struct{}, reg prometheus.Registerer, log *slog.Logger) error {
	if err := reg.Register(b.ears); err != nil {
		return fmt.Errorf("count frames of LLDP: %w", err)
	}
	return b.ears.Open(func() {
		select {
		case moved <- struct{}{}:
		default:
		}
	}, log)
}

// Close ends listening, and the connection to Open vSwitch.
func (b *Backend) Close() {
	b.ears.Close()
	b.ovs.close()
}

// Name implements nodestate.Backend.
func (b *Backend) Name() string { return Name }

// Capabilities are the types that can be made and features; Open vSwitch's while it runs.
func (b *Backend) Capabilities() []string { return capabilities(b.changesResolver(), b.ovs.runs()) }

// changesResolver reports whether resolv.conf is the agent's to change.
func (b *Backend) changesResolver() bool {
	if b.cfg.ResolvConf == "" {
		return false
	}
	r, err := readResolver(b.cfg.Root, b.cfg.ResolvConf)
	return err == nil && r.owner == nil
}

// Show is the current state but for Flowkeep's own and pods' interfaces and routes.
func (b *Backend) Show(ctx context.Context) (nmstate.State, error) {
	n, err := b.system.show(ctx, nil)
	if err != nil {
		return nil, err
	}
	return report(n, b.own)
}

// Plan returns the steps of Apply, without taking them.
func (b *Backend) Plan(ctx context.Context, desired nmstate.State) ([]Step, error) {
	_, _, steps, err := b.plan(ctx, desired)
	return steps, err
}

func (b *Backend) plan(ctx context.Context, desired nmstate.State) (*network, *target, []Step, error) {
	now, err := b.system.show(ctx, nodestate.DestinationsOf(desired))
	if err != nil {
		return nil, nil, nil, err
	}
	to, steps, err := planFor(now, desired, b.own)
	if err != nil {
		return nil, nil, nil, nodestate.Refuse("%w", err)
	}
	if away := cmp.Or(now.Away, b.ovs.absence()); needsSwitch(steps) && away != nil {
		return nil, nil, nil, nodestate.Refuse("%w", away)
	}
	return now, to, steps, nil
}

// planFor is pure.
func planFor(now *network, desired nmstate.State, own Own) (*target, []Step, error) {
	doc, err := parse(desired)
	if err != nil {
		return nil, nil, err
	}
	to, err := want(now, doc, own)
	refused := []error{err}
	for _, reason := range nmstate.RefusedReported(desired) {
		refused = append(refused, errors.New(reason))
	}
	if err := errors.Join(refused...); err != nil {
		return nil, nil, err
	}
	steps, err := transition(now, to)
	return to, steps, err
}

// rounds is how often a change is looked at again: the kernel may have done more, or less, than the plan knew.
const rounds = 4

// Apply implements nodestate.Backend. After the steps it reads the network back, and plans again what is not as desired.
func (b *Backend) Apply(ctx context.Context, desired nmstate.State, order nodestate.Order) (nodestate.Change, error) {
	change := nodestate.Change{Backend: Name}
	if order.Since != nil {
		change = *order.Since
	}
	now, to, steps, err := b.plan(ctx, desired)
	if err != nil || len(steps) == 0 {
		return change, err
	}
	if !order.Volatile && order.Since == nil {
		err := now.checkUplink(steps, nil)
		if err != nil && order.Addresses != nil {
			err = now.checkUplink(steps, order.Addresses(ctx))
		}
		if err != nil {
			return change, nodestate.Refuse("%w", err)
		}
	}
	if change, err = extended(change, remember(now, to, steps), steps); err != nil {
		return change, fmt.Errorf("write down how the node is: %w", err)
	}
	if order.Journal != nil {
		if err := order.Journal(change); err != nil {
			return change, fmt.Errorf("keep how the node is before the change: %w", err)
		}
	}
	for range rounds {
		if err := b.perform(ctx, steps); err != nil {
			return change, err
		}
		if _, _, steps, err = b.plan(ctx, desired); err != nil {
			return change, fmt.Errorf("look at what the change did: %w", err)
		}
		if len(steps) == 0 {
			return change, nil
		}
	}
	return change, fmt.Errorf("the kernel did not keep what it took: there remains to %s", texts(steps))
}

func texts(steps []Step) string {
	var out []string
	for _, s := range steps {
		out = append(out, s.String())
	}
	return strings.Join(out, ", ")
}

func (b *Backend) perform(ctx context.Context, steps []Step) error {
	for _, s := range steps {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := b.system.do(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
	}
	return nil
}

// Commit implements nodestate.Backend: nothing is kept of a change here.
func (b *Backend) Commit(context.Context, nodestate.Change) error { return nil }

// before is what a change needs to be undone: how all that it concerns was.
type before struct {
	Links   map[string]*link `json:"links"`             // as they were
	Absent  []string         `json:"absent,omitempty"`  // concerned, and not there then
	Routes  []route          `json:"routes,omitempty"`  // of these links, and those taken away
	Added   []route          `json:"added,omitempty"`   // that the change makes
	Rules   []rule           `json:"rules,omitempty"`   // taken away
	RulesIn []rule           `json:"rulesIn,omitempty"` // that the change makes
	DNS     *resolver        `json:"dns,omitempty"`     // nil: the change leaves it alone
}

// remember collects everything that the steps, and what the kernel does besides, can change.
func remember(now *network, to *target, steps []Step) *before {
	end := now.clone()
	concerned := map[string]bool{}
	for _, s := range steps {
		_ = end.do(s) // the planner did it already
		if s.name != "" {
			concerned[s.name] = true
		}
		if s.verb == setMAC || s.verb == setMTU { // for which its driver may want it down
			for _, name := range now.takenDown(s.name) {
				concerned[name] = true
			}
		}
	}
	for name := range to.named {
		concerned[name] = true
	}
	for _, name := range slices.Concat(now.names(), end.names()) {
		if !reflect.DeepEqual(now.Links[name], end.Links[name]) {
			concerned[name] = true
		}
	}
	for _, name := range sortedKeys(concerned) { // a bond without ports takes another MAC address
		for _, n := range []*network{now, end} {
			if l := n.Links[name]; l != nil && l.Controller != "" {
				concerned[l.Controller] = true
			}
		}
	}
	for _, name := range sortedKeys(concerned) {
		for _, other := range now.following(name, bound) { // a state and an MTU that another program sets
			concerned[other] = true
		}
	}
	b := &before{Links: map[string]*link{}}
	for _, name := range sortedKeys(concerned) {
		if l := now.Links[name]; l != nil {
			b.Links[name] = now.settled(l)
		} else {
			b.Absent = append(b.Absent, name)
		}
	}
	has := func(n *network, r *route) bool {
		return slices.ContainsFunc(n.Routes, func(o route) bool { return o.equal(r) })
	}
	for _, r := range now.Routes {
		if !r.kernelMade() && (concerned[r.Link] || !has(end, &r) || slices.ContainsFunc(r.Hops, func(h hop) bool { return concerned[h.Link] })) {
			b.Routes = append(b.Routes, r)
		}
	}
	for _, r := range to.Routes {
		if !r.kernelMade() && !has(now, &r) {
			b.Added = append(b.Added, r)
		}
	}
	b.Rules = without(now.Rules, to.Rules)
	b.RulesIn = without(to.Rules, now.Rules)
	if to.DNS != nil && !to.DNS.equal(now.DNS) {
		b.DNS = now.DNS
	}
	return b
}

func without(list, other []rule) []rule {
	return slices.DeleteFunc(slices.Clone(list), func(r rule) bool { return slices.Contains(other, r) })
}

// settled is the link without the MAC address that it has from another: set by hand it would no longer follow that. A bond
// keeps its own: it may have it from a port that will not be its first one when the ports come back.
func (n *network) settled(l *link) *link {
	out := l.clone()
	if base := n.Links[l.Base]; l.Type == typeVLAN && base != nil && base.MAC == l.MAC {
		out.MAC = ""
	}
	if c := n.Links[l.Controller]; c != nil && c.Type == typeBond {
		out.MAC = l.OwnMAC
	}
	if l.Bridge == nil {
		return out
	}
	for _, name := range n.ports(l.key()) {
		if n.Links[name].MAC == l.MAC {
			out.MAC = ""
		}
	}
	return out
}

// Rollback implements nodestate.Backend.
func (b *Backend) Rollback(ctx context.Context, c nodestate.Change) error {
	if len(c.Before) == 0 {
		return nil
	}
	if c.Backend != Name {
		return fmt.Errorf("the change was made by the backend %q, not %s", c.Backend, Name)
	}
	var was before
	if err := json.Unmarshal(c.Before, &was); err != nil {
		return fmt.Errorf("read how the node was before the change: %w", err)
	}
	var failed error
	for range rounds {
		now, err := b.system.show(ctx, was.destinations())
		if err != nil {
			return err
		}
		steps, stuck := wayBack(now, was.target(now))
		if failed = stuck; now.Away != nil && was.ofSwitch() {
			failed = errors.Join(failed, fmt.Errorf("what was changed in Open vSwitch: %w", now.Away))
		}
		if len(steps) == 0 {
			return left(failed)
		}
		failed = errors.Join(failed, b.undo(ctx, now, steps))
		if ctx.Err() != nil {
			return errors.Join(failed, ctx.Err())
		}
	}
	if failed == nil {
		failed = errors.New("the kernel does not keep what was before")
	}
	return left(failed)
}

// destinations returns those of the routes that the change concerned.
func (was *before) destinations() map[netip.Prefix]bool {
	out := map[netip.Prefix]bool{}
	for _, r := range slices.Concat(was.Routes, was.Added) {
		out[r.Dst] = true
	}
	return out
}

// switchLimit is how long one step back may wait for Open vSwitch.
const switchLimit = 6 * time.Second

// undo does all steps back: one that fails does not keep the others from being done, and once Open vSwitch has been waited for in vain it
// is left out.
func (b *Backend) undo(ctx context.Context, now *network, steps []Step) (failed error) {
	var vain error
	for _, s := range steps {
		switched, limited := now.switched(s), ctx
		if switched && vain != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: not tried: %w", s, vain))
			continue
		}
		cancel := func() {}
		if switched {
			limited, cancel = context.WithTimeout(ctx, switchLimit)
		}
		err := b.system.do(limited, s)
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", s, err))
		}
		if limited.Err() != nil && ctx.Err() == nil {
			vain = errors.New("Open vSwitch did not do what was before it in time")
		}
		cancel()
	}
	return failed
}

// switched reports whether the step changes Open vSwitch.
func (n *network) switched(s Step) bool {
	l := n.Links[s.name]
	return needsSwitch([]Step{s}) || l != nil && (l.Type == typeOVSInterface || l.OVSPort != nil)
}

// ofSwitch reports whether the change concerned something that Open vSwitch keeps.
func (was *before) ofSwitch() bool {
	return slices.ContainsFunc(was.Absent, func(key string) bool { return strings.HasSuffix(key, keySuffix) }) ||
		slices.ContainsFunc(sortedKeys(was.Links), func(key string) bool { return was.Links[key].inSwitch() })
}

// inSwitch reports whether Open vSwitch keeps the link, or keeps it as a port.
func (l *link) inSwitch() bool {
	return l.Type == typeOVSBridge || l.Type == typeOVSInterface || l.OVSPort != nil || strings.HasSuffix(l.Controller, keySuffix)
}

// left is the error of what could not be rolled back, if there is any.
func left(failed error) error {
	if failed == nil {
		return nil
	}
	return fmt.Errorf("not all is as before the change: %w", failed)
}

// goneWith reports whether the link cannot return: a card that was removed, or a link above one. The change did not
// cause that.
func (was *before) goneWith(now *network, name string) bool {
	for range len(was.Links) + 1 {
		l := was.Links[name]
		switch {
		case l == nil || now.Links[name] != nil:
			return false
		case !creatable(l.Type):
			return true
		case l.Base == "" || l.Type == typeVeth:
			return false
		}
		name = l.Base
	}
	return false
}

// target is the network as it is now, with what the change concerned as it was.
func (was *before) target(now *network) *target {
	to := &target{network: *now.clone(), named: map[string]bool{}}
	for _, name := range was.Absent {
		to.drop(name)
	}
	for name, l := range was.Links {
		switch have := now.Links[name]; {
		case was.goneWith(now, name):
		case now.Away == nil || !l.inSwitch() && (have == nil || have.Doubt == ""):
			to.Links[name] = l.clone()
		case have != nil && l.Type != typeOVSBridge && l.Type != typeOVSInterface: // whose port it is waits until ovsdb-server answers
			back := l.clone()
			back.Controller, back.BridgePort, back.OVSPort = have.Controller, have.BridgePort, have.OVSPort
			to.Links[name] = back
		}
	}
	to.Routes = slices.DeleteFunc(to.Routes, func(r route) bool {
		return slices.ContainsFunc(was.Added, func(a route) bool { return a.equal(&r) })
	})
	for _, r := range was.Routes {
		if !slices.ContainsFunc(to.Routes, func(o route) bool { return o.equal(&r) }) {
			to.Routes = append(slices.DeleteFunc(to.Routes, func(o route) bool { return o.sameKey(&r) && !o.kernelMade() }), r)
		}
	}
	to.Rules = append(without(to.Rules, was.RulesIn), without(was.Rules, to.Rules)...)
	if was.DNS != nil {
		to.DNS = was.DNS
	}
	return to
}

// drop removes a link with all that was put upon it since, and releases its ports.
func (t *target) drop(key string) {
	l := t.Links[key]
	if l == nil || !creatable(l.Type) {
		return
	}
	for _, name := range t.above(key) {
		t.drop(name)
	}
	for _, name := range t.ports(key) {
		if port := t.Links[name]; port.Type == typeOVSInterface {
			delete(t.Links, name)
		} else {
			port.Controller, port.BridgePort, port.OVSPort = "", nil, nil
		}
	}
	delete(t.Links, key)
}
