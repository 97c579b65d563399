// Package agent is netplugin's owner: one goroutine that holds the rule set, the compiler and the switch, and takes updates
// from netmaster, pods from the CNI and connections to the switch one after another.
package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/flowkeep/flowkeep/internal/mtls"
	"github.com/flowkeep/flowkeep/internal/process"
	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/netplugin/capture"
	"github.com/flowkeep/flowkeep/netplugin/conntrack"
	"github.com/flowkeep/flowkeep/netplugin/datapath"
	"github.com/flowkeep/flowkeep/netplugin/driftcheck"
	"github.com/flowkeep/flowkeep/netplugin/feed"
	"github.com/flowkeep/flowkeep/netplugin/hostnet"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/prometheus/client_golang/prometheus"
)

// Config is netplugin's configuration.
type Config struct {
	Node               string
	Servers            []string
	TLS                mtls.Source
	ServerName         string // of netmaster's certificate; empty: the host of its address
	ObeyUnelected      bool   // a netmaster that takes part in no election is obeyed after one that did
	StateDir           string
	OVSDB              string
	OVSRunDir          string
	OVSControl         string // ovs-vswitchd's control socket; empty: by the pid file in OVSRunDir
	Bridge             string
	ReadFlows          []string // command of the independent reader, without the management socket; empty: none
	DatapathType       string   // system or netdev
	CNISocket          string
	CNIConfDir         string // where the CNI configuration is written; empty: nowhere
	NodeRoot           string // the node's root directory, a mount in a container
	Portmap            string // the CNI plugin portmap, to repeat its ADD; empty: never
	ClusterCIDRs       []string
	ServiceCIDRs       []string
	NonMasquerade      []string // outside networks to which pods send with their own addresses
	Numbers            hostnet.Numbers
	TrafficMode        string // TrafficRoute or TrafficGeneve
	Services           string // ServicesKubeProxy or ServicesOVS
	MTU                int    // of pods; 0: by the node's interface
	AddTimeout         time.Duration
	DriftCheckInterval time.Duration
	DropLogRate        uint32 // of denied packets that are looked at, a second; 0: none
	Version            string
	Logger             *slog.Logger
	Registerer         prometheus.Registerer
	Self               *process.Self // the state for a support bundle; may be nil
	Health             *process.Health
}

// agent is the owner of the switch. Its fields belong to the goroutine that runs loop, but for calls, client, workers
// and cfg.
type agent struct {
	cfg      Config
	log      *slog.Logger
	metrics  metrics
	calls    chan func()
	client   master
	session  session // nil: the switch is away
	rules    *ruleset
	compiler *pipeline.Compiler
	pods     localPods
	node     nodeConfig
	complete chan struct{} // closed when rules and node are known: only then may flows be compared
	disk     disk
	wrong    wrong
	workers
	translation translation
}

// workers run off the owner goroutine, and call do for what needs it.
type workers struct {
	vswitchd   *vswitchd
	ended      *conntrack.Counter
	dropLog    *dropLog
	answers    *answers
	counting   counting
	monitor    flowMonitor
	drift      *driftcheck.Checker
	inspector  *inspector
	zoneLimits *zoneLimits
}

// session is what the agent needs of ofctl.Session.
type session interface {
	datapath.Switch
	ForgetConnections(ctx context.Context, those ...ofctl.Connections) error
	Counters(ctx context.Context, filters []ofctl.Filter, visit func(ofctl.Counted) error) error
	EnsureMeters(ctx context.Context, meters []ofctl.Meter) error
	Meters(ctx context.Context) ([]ofctl.Meter, error)
	EnsureGroups(ctx context.Context, groups []ofctl.SelectGroup) error
	Groups(ctx context.Context, visit func(ofctl.SelectGroup, error) error) error
	Temporaries(ctx context.Context, filter ofctl.Filter, visit func(ofctl.Temporary) error) error
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

func newAgent(cfg Config) (*agent, error) {
	a := &agent{
		cfg:      cfg,
		log:      cfg.Logger,
		metrics:  newMetrics(cfg.Registerer),
		calls:    make(chan func()),
		wrong:    newWrong(),
		complete: make(chan struct{}),
	}
	a.inspector = &inspector{a: a, captures: capture.New()}
	a.counting.a, a.disk.a = a, a
	a.monitor.a = a
	a.node = nodeConfig{a: a, infos: make(chan []policy.NodeInfo, 1)}
	a.pods = localPods{a: a, byID: map[string]*pod{}, limits: limits{a: a}}
	a.translation = translation{a: a, affinities: affinities{}, unnoted: make(chan struct{}, 1)}
	a.zoneLimits = &zoneLimits{a: a, table: nodeTable{a: a, size: tableSize, opened: hostnet.Opened}}
	a.vswitchd = newVswitchd(&a.cfg, a.log)
	a.drift = newDriftCheck(a)
	if cfg.Registerer != nil {
		a.drift.Register(cfg.Registerer)
	}
	var err error
	var setAside string
	if a.disk.state, setAside, err = openState(filepath.Join(cfg.StateDir, "rules.db")); err != nil {
		return nil, fmt.Errorf("open the rule set: %w", err)
	}
	if setAside != "" {
		a.metrics.stateCorrupt.Inc()
		a.log.Error("the rule set on disk was unreadable; pods keep their flows until netmaster sends the rules again", "file", setAside)
	}
	rules, ids, err := a.disk.loadRules()
	if err != nil {
		return nil, err
	}
	a.rules = rules
	a.disk.openSaver()
	a.ended = a.newCounter()
	if rules.known {
		u := rules.asUpdate()
		a.ended.Begin(&u)
	}
	if cfg.Registerer != nil && cfg.Health != nil {
		cfg.Registerer.MustRegister(newNotReady(cfg.Health))
	}
	a.dropLog = newDropLog(a)
	a.answers = newAnswers(cfg.Registerer)
	a.compiler = pipeline.New(pipeline.Config{}, ids)
	a.compiler.Apply(rules.asUpdate())
	a.compiler.ForgetUnused()
	if err := a.translation.openServices(); err != nil {
		return nil, errors.Join(err, a.disk.closeState())
	}
	if err := a.counting.openCounters(); err != nil {
		a.translation.services.Close()
		return nil, errors.Join(err, a.disk.closeState())
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
			a.disk.diskChanged()
		case <-ctx.Done():
			return
		}
	}
}

// State returns the content of the hello to netmaster.
func (a *agent) State(ctx context.Context, begin func()) (have feed.Holding, err error) {
	err = a.do(ctx, func() {
		begin()
		a.pods.asked = asked{}
		a.disk.updates, a.disk.saved = nil, 0
		have.Revision, have.Epoch = a.rules.revision, a.rules.epoch
		for key, r := range a.rules.rules {
			have.Held = append(have.Held, wire.Held{Key: key, Hash: r.Hash()})
		}
		for id, set := range a.rules.groups.All() {
			have.Held = append(have.Held, wire.Held{Group: id.Kind, Key: id.Key, Hash: set.Hash()})
		}
		for _, p := range a.pods.byID {
			a.pods.asked.announce(lifeOf(&p.endpoint))
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
		a.disk.save(change{epoch: epoch})
	})
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
		a.disk.diskChanged()
	})
	return errors.Join(err, deposed)
}

func (a *agent) update(ctx context.Context, u policy.NodeUpdate) []wire.RuleError {
	began := time.Now()
	begins := !a.rules.known
	a.counting.handOver(ctx, &u)
	stored := a.rules.apply(u)
	a.counting.ledger.Rules(began, u.Rules)
	a.compiler.Apply(u)
	opened := a.pods.openSettled(u.Settled)
	mods, ids := a.compiler.Take()
	number := a.disk.save(change{update: &stored, ids: ids})
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

// take returns the mods that are due, and has the ids that were assigned or released written.
func (a *agent) take() []ofctl.FlowMod {
	mods, ids := a.compiler.Take()
	a.disk.saveIDs(ids)
	return mods
}

func (d *disk) saveIDs(ids []pipeline.Assignment) {
	if len(ids) > 0 {
		d.save(change{ids: ids})
	}
}

// commitTime bounds how long the owner waits for the switch to take a change: it takes 100,000 flows in a second.
const commitTime = time.Minute

// commit sends mods. Without a switch it does nothing: the next connection compares everything.
func (a *agent) commit(ctx context.Context, mods []ofctl.FlowMod) error {
	if a.session == nil {
		return errors.New("Open vSwitch is away")
	}
	if mods = append(a.wrong.again(mods), a.dropLog.meteredFlows()...); len(mods) == 0 && !a.pods.limits.limitsChanged() {
		return nil
	}
	bounded, cancel := context.WithTimeout(ctx, commitTime)
	defer cancel()
	var refused []datapath.Refusal
	err := a.pods.limits.addLimits(bounded)
	if err == nil {
		refused, err = datapath.CommitAll(bounded, a.session, mods, without)
	}
	if err == nil {
		err = a.pods.limits.removeLimits(bounded)
	}
	a.metrics.flowMods.Add(float64(len(mods) - len(refused)))
	a.logRefused(refused)
	a.wrong.committed(mods, refused, err, a.compiler.Describe)
	a.dropLog.resendMetered = a.dropLog.resendMetered && err != nil
	if err == nil {
		if more := a.translation.withoutRefused(refused); len(more) > 0 {
			return a.commit(ctx, more)
		}
	}
	a.dropLog.clearDryRunProblem()
	if err != nil {
		a.log.Error("could not change the switch's flows; reconnecting to compare all", "error", err)
		go a.session.Close()
		a.detach()
		return err
	}
	a.vswitchd.purge(ctx)
	return nil
}

// without returns the consequence of leaving a flow out. A flow that denies, or leads to one that does, cannot be left
// out.
func without(f *ofctl.Flow) datapath.Without {
	switch pipeline.PurposeOf(f) {
	case pipeline.DryRun:
		return datapath.CountsLess
	case pipeline.Grant:
		return datapath.DeniesMore
	case pipeline.Serve:
		return datapath.RejectsMore
	case pipeline.Infrastructure, pipeline.Deny:
	}
	return datapath.Fails
}

// logRefused logs each refused flow whose absence denies more, and one of the dry runs' flows, which may be many.
func (a *agent) logRefused(refused []datapath.Refusal) {
	uncounted := 0
	for _, r := range refused {
		a.metrics.refused.Inc()
		if pipeline.PurposeOf(&r.Flow) == pipeline.Serve { // refuseServices logs the Services
			continue
		}
		n := a.compiler.Describe(&r.Flow)
		if pipeline.TellsOfDryRuns(r.Flow.Table) {
			a.dropLog.setDryRunProblem(r.Err.Error())
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
		infos = withLinks(infos, a.rules.nodes)
		a.rules.nodes = infos
		a.disk.save(change{nodes: &infos})
		select { // the newest counts
		case <-a.node.infos:
		default:
		}
		a.node.infos <- infos
	})
}
