// Package agent is netplugin's owner: one goroutine that holds the rule set, the compiler and the switch, and takes updates
// from netmaster, pods from the CNI and connections to the switch one after another.
package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"time"

	"github.com/flowkeep/flowkeep/internal/mtls"
	"github.com/flowkeep/flowkeep/internal/process"
	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/netplugin/datapath"
	"github.com/flowkeep/flowkeep/netplugin/endpoints"
	"github.com/flowkeep/flowkeep/netplugin/hostnet"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/prometheus/client_golang/prometheus"
)

// Config is netplugin's configuration.
type Config struct {
	Node          string
	Servers       []string
	TLS           mtls.Files
	StateDir      string
	OVSDB         string
	OVSRunDir     string
	Bridge        string
	DatapathType  string
	CNISocket     string
	ClusterCIDRs  []string
	ServiceCIDRs  []string
	MTU           int
	AddTimeout    time.Duration
	AuditInterval time.Duration
	Version       string
	Logger        *slog.Logger
	Registerer    prometheus.Registerer
	Health        *process.Health
}

// agent's fields belong to the goroutine that runs loop, but for calls, client and cfg.
type agent struct {
	cfg      Config
	log      *slog.Logger
	metrics  metrics
	calls    chan func()
	client   master
	state    *state
	rules    *ruleset
	compiler *pipeline.Compiler
	pods     map[string]*pod // by endpoint ID
	session  session         // nil: the switch is away
	wrong    wrong
	node     nodeConfig
	infos    chan []policy.NodeInfo // to whoever sets the node's own network up
	// configured says that the node's own flows are compiled
	configured bool
	complete   chan struct{} // closed when rules and node are known: only then may flows be compared
	// unsaved says that the file misses something that is enforced: the next write is of everything.
	unsaved bool
}

// session is what the agent needs of ofctl.Session.
type session interface {
	datapath.Switch
	Close() error
}

// master is what the agent needs of feed.Client.
type master interface {
	Announce(wire.Announcement)
	Withdraw(wire.Announcement)
	Report(wire.Ack)
	Connected() bool
	Problem() string
}

// pod is a pod that is wired here, or is being wired.
type pod struct {
	endpoint endpoints.Endpoint
	settled  bool
	done     chan error // told once, when it is in force; nil after
}

func newAgent(cfg Config) (*agent, error) {
	a := &agent{
		cfg: cfg, log: cfg.Logger, metrics: newMetrics(cfg.Registerer), calls: make(chan func()), pods: map[string]*pod{}, wrong: newWrong(),
		infos: make(chan []policy.NodeInfo, 1), complete: make(chan struct{}),
	}
	var err error
	var setAside string
	if a.state, setAside, err = openState(filepath.Join(cfg.StateDir, "rules.db")); err != nil {
		return nil, fmt.Errorf("open the rule set: %w", err)
	}
	if setAside != "" {
		a.metrics.stateCorrupt.Inc()
		a.log.Error("the rule set on disk was unreadable; pods keep their flows until netmaster sends the rules anew", "file", setAside)
	}
	rules, ids, err := a.state.load()
	if err != nil {
		return nil, err
	}
	a.rules = rules
	a.compiler = pipeline.New(pipeline.Config{}, ids)
	a.compiler.Apply(rules.asUpdate())
	a.compiler.ForgetUnused()
	return a, nil
}

// do runs f on the owner's goroutine and waits for it.
func (a *agent) do(ctx context.Context, f func()) error {
	done := make(chan struct{})
	select {
	case a.calls <- func() { defer close(done); f() }:
	case <-ctx.Done():
		return ctx.Err()
	}
	<-done
	return nil
}

func (a *agent) loop(ctx context.Context) {
	for {
		select {
		case f := <-a.calls:
			f()
		case <-ctx.Done():
			return
		}
	}
}

// State is what netmaster is told in a hello.
func (a *agent) State(ctx context.Context) (revision uint64, held []wire.Held, announced []wire.Announcement, err error) {
	err = a.do(ctx, func() {
		revision = a.rules.revision
		for key, r := range a.rules.rules {
			held = append(held, wire.Held{Key: key, Hash: r.Hash()})
		}
		for id, set := range a.rules.groups {
			held = append(held, wire.Held{Group: id.kind, Key: id.key, Hash: policy.MembersHash(members(set))})
		}
		for _, p := range a.pods {
			announced = append(announced, announcement(&p.endpoint))
		}
	})
	return revision, held, announced, err
}

func announcement(e *endpoints.Endpoint) wire.Announcement {
	return wire.Announcement{Namespace: e.Namespace, Name: e.Name, UID: e.UID, Addresses: e.Addresses}
}

// Update realises what netmaster sent: first on disk, so that no crash takes the node back to what it no longer may, then
// on the switch, in one bundle with the ports of the pods that it settles. It tells all that is not in force after it.
func (a *agent) Update(ctx context.Context, u policy.NodeUpdate) (errs []wire.RuleError, err error) {
	err = a.do(ctx, func() { errs = a.update(ctx, u) })
	return errs, err
}

func (a *agent) update(ctx context.Context, u policy.NodeUpdate) []wire.RuleError {
	began := time.Now()
	a.rules.apply(u)
	a.compiler.Apply(u)
	var opened []*pod
	for _, s := range u.Settled {
		if p := a.pods[s.ID]; p != nil && (s.UID == "" || s.UID == p.endpoint.UID) {
			p.settled = true
			a.compiler.PutEndpoint(local(&p.endpoint))
			opened = append(opened, p)
		}
	}
	mods := a.take(&u)
	if a.session != nil { // else the pods wait for attach
		err := a.commit(ctx, mods)
		for _, p := range opened {
			p.finish(err)
		}
	}
	a.checkComplete()
	a.metrics.revision.Set(float64(u.Revision))
	a.metrics.updateSeconds.Observe(time.Since(began).Seconds())
	a.wrong.told = a.notInForce()
	return a.wrong.told
}

// take gives the mods that are due, once the update and the ids that were given or given back are on disk.
func (a *agent) take(u *policy.NodeUpdate) []ofctl.FlowMod {
	mods, ids := a.compiler.Take()
	var err error
	switch {
	case a.unsaved:
		err = a.state.replace(a.rules, a.compiler.Assignments())
	case u != nil:
		err = a.state.save(*u, ids)
	case len(ids) > 0:
		err = a.state.saveIDs(ids)
	}
	a.unsaved = err != nil
	if err != nil {
		a.metrics.stateErrors.Inc()
		a.log.Error("cannot write the rule set to disk; enforcing goes on, but a restart would begin from an older one", "error", err)
	}
	return mods
}

func (p *pod) finish(err error) {
	if p.done != nil {
		p.done <- err
		p.done = nil
	}
}

// commit sends mods. Without a switch it does nothing: the next connection compares everything.
func (a *agent) commit(ctx context.Context, mods []ofctl.FlowMod) error {
	if a.session == nil {
		return errors.New("Open vSwitch is away")
	}
	if len(mods) == 0 {
		return nil
	}
	mods = a.wrong.again(mods)
	refused, err := datapath.CommitAll(ctx, a.session, mods, func(f *ofctl.Flow) bool { return pipeline.OnlyAllows(f.Table, f.Priority) })
	a.metrics.flowMods.Add(float64(len(mods) - len(refused)))
	for _, r := range refused {
		a.metrics.refused.Inc()
		n := a.compiler.Describe(&r.Flow)
		a.log.Error("the switch refused a flow; what it would have let through is denied", "flow", n.Text, "rules", n.Rules, "error", r.Err)
	}
	a.wrong.committed(mods, refused, err, a.compiler.Describe)
	if err != nil {
		a.log.Error("could not change the switch's flows; reconnecting to compare all", "error", err)
		go a.session.Close()
		a.detach()
	}
	return err
}

// Nodes takes over what is known of the nodes, this one included.
func (a *agent) Nodes(ctx context.Context, infos []policy.NodeInfo) error {
	return a.do(ctx, func() {
		a.rules.nodes = infos
		if err := a.state.saveNodes(infos); err != nil {
			a.metrics.stateErrors.Inc()
			a.log.Error("cannot write the nodes to disk", "error", err)
		}
		select { // the newest counts
		case <-a.infos:
		default:
		}
		a.infos <- infos
	})
}

// Realize returns when the pod's rules are in force and its port is open, or with ctx.
func (a *agent) Realize(ctx context.Context, e endpoints.Endpoint) error {
	done := make(chan error, 1)
	err := a.do(ctx, func() {
		have := a.pods[e.ID()]
		if have != nil && have.settled && have.endpoint.Equal(&e) {
			if have.done = done; a.session != nil {
				have.finish(nil)
			}
			return
		}
		if have != nil && have.endpoint.ContainerID != e.ContainerID {
			_ = a.shut(ctx, have) // before its rules go: the name stands for another pod, or another sandbox, from here on
		}
		a.pods[e.ID()] = &pod{endpoint: e, done: done}
		a.client.Announce(announcement(&e))
	})
	if err != nil {
		return err
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	if !a.client.Connected() {
		return fmt.Errorf("netmaster cannot be reached, so the pod's policies are not known; the kubelet tries again: %s", a.client.Problem())
	}
	return errors.New("netmaster has not resolved the pod's policies in time; the kubelet tries again")
}

// Forget closes the pod's port and frees its addresses.
func (a *agent) Forget(ctx context.Context, e endpoints.Endpoint) error {
	var failed error
	err := a.do(ctx, func() {
		if have := a.pods[e.ID()]; have != nil && have.endpoint.ContainerID == e.ContainerID {
			delete(a.pods, e.ID())
			failed = a.shut(ctx, have)
		}
	})
	return errors.Join(err, failed)
}

// shut closes the pod's port and then says that the pod is gone.
func (a *agent) shut(ctx context.Context, p *pod) error {
	p.finish(errors.New("the pod's name was given to another container meanwhile"))
	a.compiler.RemoveEndpoint(p.endpoint.ID())
	mods := a.take(nil)
	var err error
	if a.session != nil {
		err = a.commit(ctx, mods)
		a.report()
	}
	a.client.Withdraw(announcement(&p.endpoint))
	return err
}

func local(e *endpoints.Endpoint) pipeline.LocalEndpoint {
	return pipeline.LocalEndpoint{ID: e.ID(), Port: e.Port, MAC: ofctl.MAC(e.MAC), Addresses: e.Addresses}
}

// attach compares all flows of a switch that has just been connected, and uses it from then on.
func (a *agent) attach(ctx context.Context, s session) error {
	a.take(nil) // what was due is part of the comparison
	a.wrong.forget()
	d, err := datapath.Compare(ctx, s, a.compiler.Flows())
	if err != nil {
		return err
	}
	a.session = s
	a.log.Info("connected to the switch", "missing", d.Missing, "changed", d.Changed, "extra", d.Extra)
	err = a.commit(ctx, d.Mods)
	a.report()
	if err != nil {
		return err
	}
	for _, p := range a.pods {
		if p.settled {
			p.finish(nil)
		}
	}
	return nil
}

// detach is called when the connection is lost.
func (a *agent) detach() {
	a.session = nil
	a.report()
}

// checkComplete tells whether the flows that would be compiled now are all that should be: before that, comparing would
// take away what a node with a lost state file still enforces.
func (a *agent) checkComplete() {
	if !a.rules.known || !a.configured {
		return
	}
	select {
	case <-a.complete:
	default:
		close(a.complete)
	}
}

func (a *agent) self() policy.NodeInfo {
	for _, n := range a.rules.nodes {
		if n.Name == a.cfg.Node {
			return n
		}
	}
	return policy.NodeInfo{Name: a.cfg.Node}
}

// nodeConfig is what the flows need to know of this node that does not come from the feed.
type nodeConfig struct {
	gateway, wire pipeline.Device
	services      []netip.Prefix
}

// configure compiles what is known of the node.
func (a *agent) configure(ctx context.Context) {
	self := a.self()
	if len(self.PodCIDRs) == 0 {
		return
	}
	a.configured = true
	a.compiler.SetConfig(pipeline.Config{Gateway: a.node.gateway, Wire: a.node.wire, NodeAddrs: self.Addresses, PodCIDRs: self.PodCIDRs,
		GatewayAddrs: hostnet.GatewayAddrs(self), ServiceCIDRs: a.node.services})
	if a.session != nil {
		_ = a.commit(ctx, a.take(nil))
		a.report()
	}
	a.checkComplete()
}
