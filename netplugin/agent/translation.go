package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/flowkeep/flowkeep/netplugin/datapath"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/netplugin/services"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/ofctl/dptype"
)

// Values of Config.Services: what translates pods' packets to Services.
const (
	ServicesKubeProxy = "kube-proxy" // the node's stack, by kube-proxy (docs/decisions/002)
	ServicesOVS       = "ovs"        // the switch (docs/decisions/036)
)

func checkServices(mode string) error {
	if mode != ServicesKubeProxy && mode != ServicesOVS {
		return fmt.Errorf("--services %q: use %s or %s", mode, ServicesOVS, ServicesKubeProxy)
	}
	return nil
}

// translates reports whether the switch translates Services.
func (c *Config) translates() bool { return c.Services == ServicesOVS }

// translation compiles the Services of a switch that translates them. Its fields belong to the owner goroutine.
type translation struct {
	a          *agent
	services   *services.Store
	affinities affinities          // of clients, as the switch had them last
	zone       string              // of this node, as compiled
	problems   map[string][]string // why parts of Services are not translated, by namespace/name
	unnoted    chan struct{}       // has an element where noteProblems may find others
	refused    []uint32            // groups that the switch does not take
	hostPorts  map[string]hostPort // of the node's pods, as compiled, by the ID of their Services
}

// servicesStep is how many Services are compiled while the owner is held.
const servicesStep = 256

// serviceConfig returns how the switch translates Services; zero where it does not.
func (tr *translation) serviceConfig() pipeline.Services {
	if !tr.a.cfg.translates() {
		return pipeline.Services{}
	}
	out := pipeline.Services{
		Translated: true,
		Node:       tr.a.cfg.Node,
		Zone:       tr.zone,
		SCTPPorts:  tr.a.cfg.DatapathType == dptype.System,
		Held:       tr.a.cfg.DatapathType == dptype.Netdev,

		WithoutGroups: tr.refused,
	}
	for i := range tr.a.rules.nodes {
		out.NodeAddrs = append(out.NodeAddrs, tr.a.rules.nodes[i].Addresses...)
		out.PodCIDRs = append(out.PodCIDRs, tr.a.rules.nodes[i].PodCIDRs...)
	}
	slices.SortFunc(out.NodeAddrs, netip.Addr.Compare)
	out.NodeAddrs = slices.Compact(out.NodeAddrs)
	slices.SortFunc(out.PodCIDRs, netip.Prefix.Compare)
	out.PodCIDRs = slices.Compact(out.PodCIDRs)
	return out
}

// beginServices compiles the Services from disk, after the node: the first comparison must find the flows that a
// restart left.
func (tr *translation) beginServices(ctx context.Context) {
	if tr.a.cfg.translates() {
		tr.services.Follow(tr.a.cfg.Node)
		for more := true; more; {
			more = tr.compileChanged(ctx, servicesStep)
		}
		tr.compileHostPorts()
	}
	tr.a.compiler.ForgetUnusedServices()
}

// keepServices brings Services to the switch as they change, until ctx ends.
func (tr *translation) keepServices(ctx context.Context) {
	if !tr.a.cfg.translates() {
		return
	}
	for {
		select {
		case <-tr.services.Changed():
		case <-ctx.Done():
			return
		}
		for more := true; more && ctx.Err() == nil; {
			_ = tr.a.do(ctx, func() { more = tr.updateServices(ctx, servicesStep) })
		}
	}
}

// updateServices brings the switch to Services that have changed, no more than most of them, in one bundle. It reports
// whether there are others.
func (tr *translation) updateServices(ctx context.Context, most int) (more bool) {
	more = tr.compileChanged(ctx, most)
	if tr.a.session == nil {
		return more // attach compares all flows
	}
	if tr.a.commit(ctx, tr.a.take()) == nil {
		tr.endStale()
	}
	tr.a.report()
	return more
}

// compileChanged compiles Services that have changed, no more than most, and reports whether there are others.
func (tr *translation) compileChanged(ctx context.Context, most int) (more bool) {
	ids, more := tr.services.TakeChanged(most)
	if zone := tr.services.Holding(tr.a.cfg.Node).Zone; zone != tr.zone {
		tr.zone = zone
		tr.a.node.configure(ctx)
	}
	tr.compileServices(ids)
	return more
}

// compileServices compiles Services as the node holds them, without endpoints of its own that have ended.
func (tr *translation) compileServices(ids []string) {
	if len(ids) == 0 || !tr.a.cfg.translates() {
		return
	}
	local := tr.local()
	for _, id := range ids {
		if h, known := tr.hostPorts[id]; known { // without flows that the switch refused
			tr.a.compiler.PutService(h.service, h.slices)
			continue
		}
		s, all := tr.services.Get(id, &local)
		if s == nil {
			tr.a.compiler.RemoveService(id)
			continue
		}
		tr.a.compiler.PutService(s, all)
	}
	tr.noteSoon()
}

// untranslated notes why parts of a Service are not translated, and logs new reasons.
func (tr *translation) untranslated(id string, problems []string) {
	if !slices.Equal(tr.problems[id], problems) && len(problems) > 0 {
		tr.a.log.Warn("a Service is not translated as a whole", "service", id, "problems", strings.Join(problems, "; "))
	}
	if len(problems) == 0 {
		delete(tr.problems, id)
		return
	}
	if tr.problems == nil {
		tr.problems = map[string][]string{}
	}
	tr.problems[id] = problems
}

// noteSoon requests noteProblems, after the configuration or some Services have changed: what is translated of one
// depends on the others.
func (tr *translation) noteSoon() {
	if !tr.a.cfg.translates() {
		return
	}
	select {
	case tr.unnoted <- struct{}{}:
	default: // it is requested
	}
}

// notesEvery is the shortest time between two calls of noteProblems, which goes through all Services while the owner is
// held.
const notesEvery = time.Second

// keepNoting notes problems as they change, until ctx ends.
func (tr *translation) keepNoting(ctx context.Context) {
	for {
		select {
		case <-tr.unnoted:
		case <-ctx.Done():
			return
		}
		_ = tr.a.do(ctx, tr.noteProblems)
		select {
		case <-time.After(notesEvery):
		case <-ctx.Done():
			return
		}
	}
}

// noteProblems notes the problems of all Services.
func (tr *translation) noteProblems() {
	now := tr.a.compiler.ServiceProblems()
	for id := range tr.problems {
		if now[id] == nil {
			tr.untranslated(id, nil)
		}
	}
	for id, problems := range now {
		tr.untranslated(id, problems)
	}
	tr.a.metrics.untranslated.Set(float64(len(tr.problems)))
}

// podChanged compiles the Services with endpoints at addresses whose pod has started or ended, and the hostPorts of
// pods. The next commit has them.
func (tr *translation) podChanged(addrs []netip.Addr) {
	if tr.a.cfg.translates() {
		tr.compileServices(tr.services.Behind(addrs))
		tr.compileHostPorts()
	}
}

// groups returns those that the switch should have.
func (tr *translation) groups() []ofctl.SelectGroup {
	if !tr.a.cfg.translates() {
		return nil
	}
	return slices.DeleteFunc(pipeline.ServiceGroups(), func(g ofctl.SelectGroup) bool {
		return slices.Contains(tr.refused, g.ID)
	})
}

// ensureGroups makes the groups of a switch that translates Services, before flows name them. Those that it refuses are
// left out, and with them the Services that need them.
func (tr *translation) ensureGroups(ctx context.Context, s session) error {
	if !tr.a.cfg.translates() {
		return nil
	}
	before := tr.refused
	tr.refused = nil
	err := s.EnsureGroups(ctx, tr.groups())
	if isRefused(err) {
		err = tr.ensureEach(ctx, s)
	}
	if !slices.Equal(tr.refused, before) && tr.a.node.configured {
		self := tr.a.node.self()
		tr.a.node.compileNode(&self)
	}
	return err
}

// ensureEach makes one group after another.
func (tr *translation) ensureEach(ctx context.Context, s session) error {
	var taken []ofctl.SelectGroup
	for _, g := range pipeline.ServiceGroups() {
		err := s.EnsureGroups(ctx, append(slices.Clip(taken), g))
		switch {
		case err == nil:
			taken = append(taken, g)
		case !isRefused(err):
			return err
		default:
			tr.refused = append(tr.refused, g.ID)
			tr.a.log.Error("the switch refused a group; Services that need it are rejected", "group", g.ID, "error", err)
		}
	}
	return s.EnsureGroups(ctx, taken)
}

func isRefused(err error) bool {
	_, refused := errors.AsType[*ofctl.SwitchError](err)
	return refused
}

// withoutRefused compiles the Services of flows that the switch has refused without them, and returns what changes.
func (tr *translation) withoutRefused(refused []datapath.Refusal) []ofctl.FlowMod {
	concerned := map[string]bool{}
	for i := range refused {
		if pipeline.PurposeOf(&refused[i].Flow) != pipeline.Serve {
			continue
		}
		for _, id := range tr.a.compiler.Refuse(&refused[i].Flow, refused[i].Err) {
			concerned[id] = true
		}
	}
	if len(concerned) == 0 {
		return nil
	}
	tr.compileServices(slices.Sorted(maps.Keys(concerned)))
	return tr.a.take()
}

// prefixes returns the prefix trees of the bridge's tables.
func (c *Config) prefixes() map[int][]string {
	out := pipeline.Prefixes()
	if c.translates() {
		maps.Copy(out, pipeline.ServicePrefixes())
	}
	return out
}

// unlearned is a switch without the flows that it has learned, which it collects.
type unlearned struct {
	datapath.Switch
	learned map[datapath.Key]bool
}

// Dump visits all flows but those that the switch has learned.
func (u unlearned) Dump(ctx context.Context, visit func(ofctl.Flow, error) error) error {
	return u.Switch.Dump(ctx, func(f ofctl.Flow, unknown error) error {
		if pipeline.IsLearned(&f) {
			u.learned[datapath.KeyOf(&f)] = true
			return nil
		}
		return visit(f, unknown)
	})
}

// difference compares a switch with the flows that it should hold. Where it translates Services, flows that it has
// learned are its own, and those that it has lost are missing.
func (tr *translation) difference(
	ctx context.Context, s datapath.Switch, want []ofctl.Flow,
) (datapath.Difference, error) {
	if !tr.a.cfg.translates() {
		return datapath.Compare(ctx, s, want)
	}
	u := unlearned{s, map[datapath.Key]bool{}}
	d, err := datapath.Compare(ctx, u, want)
	lost := tr.affinities.missing(u.learned, time.Now())
	d.Mods = append(d.Mods, lost...)
	if err == nil && len(lost) > 0 {
		tr.a.log.Info("the switch has lost which endpoints clients are kept with; restored", "clients", len(lost))
	}
	return d, err
}

// endStale requests the deletion of connections to endpoints over UDP that serve no more, once the switch leads no new
// ones there.
func (tr *translation) endStale() { tr.a.ended.Unserved(tr.a.compiler.TakeStale()) }
