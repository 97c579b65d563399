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
	"slices"
	"time"

	"github.com/flowkeep/flowkeep/internal/mtls"
	"github.com/flowkeep/flowkeep/internal/process"
	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/netplugin/capture"
	"github.com/flowkeep/flowkeep/netplugin/connections"
	"github.com/flowkeep/flowkeep/netplugin/datapath"
	"github.com/flowkeep/flowkeep/netplugin/drops"
	"github.com/flowkeep/flowkeep/netplugin/endpoints"
	"github.com/flowkeep/flowkeep/netplugin/feed"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/prometheus/client_golang/prometheus"
)

// Config is netplugin's configuration.
type Config struct {
	Node          string
	Servers       []string
	TLS           mtls.Source
	ServerName    string // of netmaster's certificate; empty: the host of its address
	ObeyUnelected bool   // a netmaster that takes part in no election is obeyed after one that did
	StateDir      string
	OVSDB         string
	OVSRunDir     string
	OVSControl    string // ovs-vswitchd's control socket; empty: by the pid file in OVSRunDir
	Bridge        string
	DatapathType  string // system or netdev
	CNISocket     string
	CNIConfDir    string // where the CNI configuration is written; empty: nowhere
	ClusterCIDRs  []string
	ServiceCIDRs  []string
	TrafficMode   string // TrafficRoute or TrafficGeneve
	MTU           int    // of pods; 0: by the node's interface
	AddTimeout    time.Duration
	AuditInterval time.Duration
	DropLogRate   uint32 // of denied packets that are looked at, a second; 0: none
	Version       string
	Logger        *slog.Logger
	Registerer    prometheus.Registerer
	Self          *process.Self // what is told to support; may be nil
	Health        *process.Health
}

// agent's fields belong to the goroutine that runs loop, but for calls, client, ended and cfg.
type agent struct {
	cfg      Config
	log      *slog.Logger
	metrics  metrics
	calls    chan func()
	client   master
	ended    *connections.Counter
	drops    *drops.Collector
	dryRuns  *drops.Collector // what policies in a dry run would have denied
	state    *state
	rules    *ruleset
	compiler *pipeline.Compiler
	pods     map[string]*pod // by endpoint ID
	asked    asked
	session  session // nil: the switch is away
	// switchProblem is why nothing passes though there is a session
	switchProblem string
	wrong         wrong
	counting      counting
	drift         drift
	captures      *capture.Captures
	// dial opens another connection to the switch, to read it; nil: it is read on session
	dial      func(context.Context) (reader, error)
	comparing chan struct{} // holds the comparison that is under way
	node      nodeConfig
	infos     chan []policy.NodeInfo // to whoever sets the node's own network up
	// remade says that meters were made, and flows that name them were not sent again.
	remade bool
	// untellable says that the switch takes no flows that tell of what is denied.
	untellable bool
	// configured says that the node's own flows are compiled
	configured bool
	complete   chan struct{} // closed when rules and node are known: only then may flows be compared
	disk       disk
}

// session is what the agent needs of ofctl.Session.
type session interface {
	datapath.Switch
	ForgetConnections(ctx context.Context, those ...ofctl.Connections) error
	Counters(ctx context.Context, filters []ofctl.Filter, visit func(ofctl.Counted) error) error
	EnsureMeters(ctx context.Context, meters []ofctl.Meter) error
	Meters(ctx context.Context) ([]ofctl.Meter, error)
	Close() error
	Done() <-chan struct{} // closed when it is lost
}

// master is what the agent needs of feed.Client.
type master interface {
	Announce(wire.Announcement)
	Withdraw(wire.Announcement)
	Report(wire.Ack)
	Drifted(wire.Drift)
	Anew(why string)
	Connected() bool
	Problem() string
}

// pod is a pod that is wired here, or is being wired.
type pod struct {
	endpoint endpoints.Endpoint
	settled  bool
	number   uint64     // of the write that has its rules
	done     chan error // told once, when it is in force; nil after
}

func newAgent(cfg Config) (*agent, error) {
	a := &agent{
		cfg: cfg, log: cfg.Logger, metrics: newMetrics(cfg.Registerer), calls: make(chan func()), pods: map[string]*pod{}, wrong: newWrong(),
		comparing: make(chan struct{}, 1), captures: capture.New(), infos: make(chan []policy.NodeInfo, 1), complete: make(chan struct{}),
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
	a.openSaver()
	a.ended = a.newCounter()
	if rules.known {
		u := rules.asUpdate()
		a.ended.Begin(&u)
	}
	a.drops = drops.New(drops.Config{Name: a.nameDrops, Registerer: cfg.Registerer})
	a.dryRuns = drops.New(drops.Config{Name: a.nameDrops, Registerer: cfg.Registerer, Audit: true, Logger: cfg.Logger})
	a.compiler = pipeline.New(pipeline.Config{}, ids)
	a.compiler.Apply(rules.asUpdate())
	a.compiler.ForgetUnused()
	if err := a.openCounters(); err != nil {
		return nil, errors.Join(err, a.closeState())
	}
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
		case <-a.disk.writes.changed:
			a.diskChanged()
		case <-ctx.Done():
			return
		}
	}
}

// State is what netmaster is told in a hello.
func (a *agent) State(ctx context.Context, begin func()) (have feed.Holding, err error) {
	err = a.do(ctx, func() {
		begin()
		a.asked = asked{}
		a.disk.updates, a.disk.saved = nil, 0
		have.Revision, have.Epoch = a.rules.revision, a.rules.epoch
		for key, r := range a.rules.rules {
			have.Held = append(have.Held, wire.Held{Key: key, Hash: r.Hash()})
		}
		for id, set := range a.rules.groups {
			have.Held = append(have.Held, wire.Held{Group: id.kind, Key: id.key, Hash: policy.MembersHash(members(set))})
		}
		for _, p := range a.pods {
			a.asked.announce(lifeOf(&p.endpoint))
			have.Announced = append(have.Announced, announcement(&p.endpoint))
		}
	})
	return have, err
}

// Obey keeps the highest epoch that was obeyed, on disk and in the mark, so that no restart has the node obey an older
// leader. A leader without an epoch leaves nothing to keep.
func (a *agent) Obey(ctx context.Context, epoch uint64) error {
	return a.do(ctx, func() {
		if epoch <= a.rules.epoch {
			return
		}
		a.rules.epoch = epoch
		a.save(change{epoch: epoch})
	})
}

func (a *agent) announce(e *endpoints.Endpoint) {
	a.asked.announce(lifeOf(e))
	a.client.Announce(announcement(e))
}

func announcement(e *endpoints.Endpoint) wire.Announcement {
	return wire.Announcement{Namespace: e.Namespace, Name: e.Name, UID: e.UID, Addresses: e.Addresses}
}

// Update puts an update in force: on the switch at once, in one bundle with the ports of the pods that it settles, and
// on disk. It is acknowledged when it is on disk, or when that takes long or fails, with all that is not in force then.
// Led is called when the update has its turn: its sender may lead no longer.
func (a *agent) Update(
	ctx context.Context, u policy.NodeUpdate, led func() error, acknowledge func([]wire.RuleError),
) error {
	var deposed error
	err := a.do(ctx, func() {
		if deposed = led(); deposed != nil {
			return
		}
		a.update(ctx, u)
		a.disk.updates[len(a.disk.updates)-1].acknowledge = acknowledge
		a.diskChanged()
	})
	return errors.Join(err, deposed)
}

func (a *agent) update(ctx context.Context, u policy.NodeUpdate) []wire.RuleError {
	began := time.Now()
	begins := !a.rules.known
	a.handOver(ctx, &u)
	a.rules.apply(u)
	a.counting.ledger.Rules(began, u.Rules)
	a.compiler.Apply(u)
	opened := a.openSettled(u.Settled)
	mods, ids := a.compiler.Take()
	number := a.save(change{update: &u, ids: ids})
	a.disk.updates = append(a.disk.updates, savedUpdate{number: number, revision: u.Revision})
	for _, p := range opened {
		p.number = number
	}
	if a.session != nil { // else the pods wait for attach
		if err := a.commit(ctx, mods); err != nil {
			for _, p := range opened {
				p.finish(err)
			}
		}
	}
	if begins {
		all := a.rules.asUpdate()
		a.ended.Begin(&all)
	} else {
		a.ended.Updated(&u)
	}
	a.checkComplete()
	a.metrics.revision.Set(float64(u.Revision))
	a.metrics.updateSeconds.Observe(time.Since(began).Seconds())
	a.wrong.told = a.notInForce()
	return a.wrong.told
}

// openSettled opens the pods that netmaster has said to be covered.
func (a *agent) openSettled(settled []policy.SettledEndpoint) (opened []*pod) {
	certain := a.asked.answered(settled)
	for _, s := range settled {
		p := a.pods[s.ID]
		switch {
		case p == nil || p.settled || s.UID != p.endpoint.UID:
		case !certain[life{s.ID, s.UID}]:
			a.announce(&p.endpoint)
		case a.diskProblem() != nil:
			p.finish(a.diskProblem())
		default:
			p.settled = true
			a.compiler.PutEndpoint(local(&p.endpoint))
			opened = append(opened, p)
		}
	}
	return opened
}

// take returns the mods that are due, and has the ids that were assigned or released written.
func (a *agent) take() []ofctl.FlowMod {
	mods, ids := a.compiler.Take()
	if len(ids) > 0 {
		a.save(change{ids: ids})
	}
	return mods
}

func (p *pod) finish(err error) {
	if p.done != nil {
		p.done <- err
		p.done = nil
	}
}

// commitTime bounds how long the owner waits for the switch to take a change: it takes 100,000 flows in a second.
const commitTime = time.Minute

// commit sends mods. Without a switch it does nothing: the next connection compares everything.
func (a *agent) commit(ctx context.Context, mods []ofctl.FlowMod) error {
	if a.session == nil {
		return errors.New("Open vSwitch is away")
	}
	if mods = append(a.wrong.again(mods), a.retold()...); len(mods) == 0 {
		return nil
	}
	bounded, cancel := context.WithTimeout(ctx, commitTime)
	defer cancel()
	refused, err := datapath.CommitAll(bounded, a.session, mods, without)
	a.metrics.flowMods.Add(float64(len(mods) - len(refused)))
	a.logRefused(refused)
	a.wrong.committed(mods, refused, err, a.compiler.Describe)
	a.toldDryRuns()
	a.remade = a.remade && err != nil
	if err != nil {
		a.log.Error("could not change the switch's flows; reconnecting to compare all", "error", err)
		go a.session.Close()
		a.detach()
		return err
	}
	a.purge(ctx)
	return nil
}

// without tells what it means to leave a flow out.
func without(f *ofctl.Flow) datapath.Without {
	switch {
	case pipeline.OnlyCounts(f.Table, f.Priority):
		return datapath.CountsLess
	case pipeline.OnlyAllows(f.Table, f.Priority):
		return datapath.DeniesMore
	}
	return datapath.Fails
}

// logRefused tells of each flow that more is denied without, and of one of those of dry runs, which may be many.
func (a *agent) logRefused(refused []datapath.Refusal) {
	uncounted := 0
	for _, r := range refused {
		a.metrics.refused.Inc()
		n := a.compiler.Describe(&r.Flow)
		if pipeline.TellsOfDryRuns(r.Flow.Table) {
			a.untoldDryRuns(r.Err.Error())
		}
		if without(&r.Flow) == datapath.DeniesMore {
			a.log.Error("the switch refused a flow; what it would have let through is denied", "flow", n.Text, "rules", n.Rules, "error", r.Err)
		} else if uncounted++; uncounted == 1 {
			a.log.Error("the switch refused flows of a dry run; what it says is not right", "first", n.Text, "rules", n.Rules, "error", r.Err)
		}
	}
}

// Nodes takes over what is known of the nodes, this one included.
func (a *agent) Nodes(ctx context.Context, infos []policy.NodeInfo) error {
	return a.do(ctx, func() {
		a.rules.nodes = infos
		a.save(change{nodes: &infos})
		select { // the newest counts
		case <-a.infos:
		default:
		}
		a.infos <- infos
	})
}

// Realize returns when the pod's rules are in force and on disk, and its port is open, or with ctx. What the switch
// knows of its addresses' last pod is deleted before.
func (a *agent) Realize(ctx context.Context, e endpoints.Endpoint) error {
	began := time.Now()
	if err := a.diskProblem(); err != nil {
		return err
	}
	if err := a.ended.Free(ctx, e.Addresses); err != nil {
		return err
	}
	done := make(chan error, 1)
	err := a.do(ctx, func() {
		have := a.pods[e.ID()]
		if have != nil && have.settled && have.endpoint.Equal(&e) {
			have.done = done
			a.finishPods()
			return
		}
		switch {
		case have == nil:
		case have.endpoint.ContainerID != e.ContainerID:
			_ = a.shut(ctx, have) // before its rules go: the name stands for another pod, or another sandbox, from here on
		case !slices.Equal(have.endpoint.Addresses, e.Addresses):
			a.unannounced(&have.endpoint)
		}
		a.pods[e.ID()] = &pod{endpoint: e, done: done}
		a.announce(&e)
	})
	if err != nil {
		return err
	}
	select {
	case err := <-done:
		if err == nil {
			a.metrics.realizeSeconds.Observe(time.Since(began).Seconds())
		}
		return err
	case <-ctx.Done():
	}
	if !a.client.Connected() {
		return fmt.Errorf("netmaster cannot be reached, so the pod's policies are not known; the kubelet tries again: %s", a.client.Problem())
	}
	return errors.New("netmaster has not resolved the pod's policies in time; the kubelet tries again")
}

// forgetting bounds how long a pod's end waits until its connections are forgotten.
const forgetting = 2 * time.Second

// Forget closes the pod's port, and then makes the switch forget its connections: its addresses will be given to others.
func (a *agent) Forget(ctx context.Context, e endpoints.Endpoint) error {
	var failed error
	var gone []netip.Addr
	err := a.do(ctx, func() {
		if have := a.pods[e.ID()]; have != nil && have.endpoint.ContainerID == e.ContainerID {
			delete(a.pods, e.ID())
			failed = a.shut(ctx, have)
		}
		gone = a.unowned(e.Addresses)
	})
	waiting, cancel := context.WithTimeout(ctx, forgetting)
	defer cancel()
	a.ended.Gone(waiting, e.ID(), gone)
	return errors.Join(err, failed)
}

// unowned are those of the addresses that no pod has, or has again.
func (a *agent) unowned(addrs []netip.Addr) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(addrs), func(addr netip.Addr) bool {
		for _, p := range a.pods {
			if slices.Contains(p.endpoint.Addresses, addr) {
				return true
			}
		}
		return false
	})
}

// shut closes the pod's port and then says that the pod is gone.
func (a *agent) shut(ctx context.Context, p *pod) error {
	p.finish(errors.New("the pod's name was given to another container meanwhile"))
	a.compiler.RemoveEndpoint(p.endpoint.ID())
	mods := a.take()
	var err error
	if a.session != nil {
		err = a.commit(ctx, mods)
		a.report()
	}
	a.unannounced(&p.endpoint)
	a.client.Withdraw(announcement(&p.endpoint))
	return err
}

// mostEarlier is how many answers to earlier sandboxes are passed over. A pod that netmaster does not have, and whose ADD fails again and again, has one more of them
// each time; they would keep it waiting when netmaster has it at last.
const mostEarlier = 8

// unannounced: the wiring is no longer what netmaster is to answer for.
func (a *agent) unannounced(e *endpoints.Endpoint) {
	if a.asked.end(lifeOf(e)) > mostEarlier {
		a.client.Anew("netmaster did not have a pod that was announced again and again")
	}
}

func local(e *endpoints.Endpoint) pipeline.LocalEndpoint {
	return pipeline.LocalEndpoint{ID: e.ID(), Port: e.Port, MAC: ofctl.MAC(e.MAC), Addresses: e.Addresses}
}

// attach compares all flows of a switch that has just been connected, and uses it from then on.
func (a *agent) attach(ctx context.Context, s session) error {
	a.trackHalves(ctx)
	a.holdFragments(ctx)
	a.ensureMeters(ctx, s)
	a.take() // what was due is part of the comparison
	a.wrong.forget()
	a.toldDryRuns()
	a.counting.sequence++
	a.counting.owed.Store(true)
	d, err := datapath.Compare(ctx, s, a.compiler.Flows())
	if err != nil {
		return err
	}
	a.session = s
	a.log.Info("connected to the switch", "missing", d.Missing, "changed", d.Changed, "extra", d.Extra)
	err = a.bring(ctx, &d)
	a.report()
	if err != nil {
		a.mayNotTell(err)
		return err
	}
	a.drift.problem = "" // all was compared
	if d.Empty() {       // the switch may have taken its last change when nobody was there any more to say so
		a.purge(ctx)
	}
	a.finishPods()
	return nil
}

// bring has the switch go from what it holds to what it should hold.
func (a *agent) bring(ctx context.Context, d *datapath.Difference) error {
	stages := d.Stages()
	if len(stages) > 1 {
		a.log.Info("the switch has the flows of another layout; those of this one go beside them, then the old ones go")
	}
	for _, s := range stages {
		if s.Drained {
			a.drain(ctx)
		}
		if err := a.commit(ctx, s.Mods); err != nil {
			return err
		}
	}
	return nil
}

// detach is called when the connection is lost.
func (a *agent) detach() {
	a.session, a.switchProblem = nil, ""
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
		a.setReady("rules", "")
	}
}
