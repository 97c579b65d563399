package verdicts

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"testing"

	apifeed "github.com/flowkeep/flowkeep/api/feed"
	"github.com/flowkeep/flowkeep/internal/wire"
	masterfeed "github.com/flowkeep/flowkeep/netmaster/feed"
	"github.com/flowkeep/flowkeep/netmaster/resolve"
	nodefeed "github.com/flowkeep/flowkeep/netplugin/feed"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/policy/policytest"
)

// newest is one that no build speaks yet.
const newest = apifeed.MaxVersion + 1

// pair is a node and a netmaster that speak these versions.
type pair struct {
	*master
	*holder
	client *nodefeed.Client
	world  *policy.World
}

func joined(t *testing.T, node, of wire.Versions, h *holder) *pair {
	p := &pair{holder: h, world: policytest.New(7).StagedWorld(12, 12)}
	p.master = startMaster(t, func(m *master) { m.config = func(c *masterfeed.Config) { c.Versions = of } })
	name := policytest.Nodes[0]
	p.client = nodefeed.New(nodefeed.Config{Servers: []string{p.addr}, TLS: func() (*tls.Config, error) { return files(p.dir, name).ClientConfig() },
		Node: name, Version: "test", Versions: node, Logger: slog.New(slog.DiscardHandler), Handler: h})
	p.apply(worldBatch(p.world))
	p.master.feed.Ready()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); p.client.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return p
}

// inForce is what the node should hold, speaking a version.
func (p *pair) inForce(version uint32) *holder {
	want := wanted(worldBatch(p.world), policytest.Nodes[0])
	if version < apifeed.DryRuns {
		maps.DeleteFunc(want.rules, func(_ policy.Key, r *policy.Rule) bool { return r.DryRun })
	}
	return want
}

// upTo is what a build speaks whose newest version this is; the next one has given up all but its own and the one before.
func upTo(version uint32) wire.Versions {
	if version == newest {
		return wire.Versions{Min: newest - 1, Max: newest}
	}
	return wire.Versions{Min: apifeed.MinVersion, Max: version}
}

// TestEveryPairOfVersions: whichever versions node and netmaster speak, the same rules are in force, and stay so when policies change.
func TestEveryPairOfVersions(t *testing.T) {
	dryRuns, pairs := 0, 0
	for of := uint32(apifeed.MinVersion); of <= newest; of++ {
		for node := uint32(apifeed.MinVersion); node <= newest; node++ {
			spoken, ok := upTo(of).Common(upTo(node))
			if !ok || spoken == newest {
				continue
			}
			pairs++
			t.Run(fmt.Sprintf("netmaster %d, node %d", of, node), func(t *testing.T) {
				p := joined(t, upTo(node), upTo(of), newHolder())
				want := p.inForce(spoken)
				p.until(t, "the node's span", func() bool { return p.same(want) })
				p.changeAll(uint64(10*of + node))
				want = p.inForce(spoken)
				p.until(t, "the span after changes", func() bool { return p.same(want) })
				dryRuns += len(p.inForce(newest).rules) - len(p.inForce(apifeed.MinVersion).rules)
			})
		}
	}
	if pairs != 27 || dryRuns == 0 {
		t.Errorf("%d pairs, %d rules of dry runs: that is not all", pairs, dryRuns)
	}
}

// changeAll has all policies be others.
func (p *pair) changeAll(seed uint64) {
	g := policytest.New(seed)
	for i := range p.world.Policies {
		changed := g.Staged(i)
		p.world.Policies[i] = changed
		p.apply(resolve.Batch{Policies: []*policy.Policy{changed}})
	}
}

// refused waits until the node says why it is not connected, and holds that it kept what it had.
func (p *pair) refused(t *testing.T, why string) {
	t.Helper()
	before := len(p.rules)
	p.until(t, "a refusal that says: "+why, func() bool { return strings.Contains(p.client.Problem(), why) })
	p.holder.mu.Lock()
	defer p.holder.mu.Unlock()
	if before == 0 || len(p.rules) != before || p.received > 0 {
		t.Errorf("%d rules of %d are left, %d came", len(p.rules), before, p.received)
	}
}

// TestVersionsTooFarApart: a node keeps what it has, and says why, whichever of the two is the older one.
func TestVersionsTooFarApart(t *testing.T) {
	for _, c := range []struct{ node, of wire.Versions }{
		{wire.Versions{Min: newest, Max: newest + 1}, wire.Own()},
		{wire.Own(), wire.Versions{Min: newest, Max: newest + 1}},
	} {
		h := newHolder()
		h.rules = wanted(worldBatch(policytest.New(3).World(12, 5)), policytest.Nodes[0]).rules
		joined(t, c.node, c.of, h).refused(t, "upgrade the older of the two")
	}
}

// TestANetmasterOfBeforeEpochs does not get a node to obey it that has obeyed a leader: it may be one that was forgotten. So nodes are downgraded first.
func TestANetmasterOfBeforeEpochs(t *testing.T) {
	h := newHolder()
	h.rules = wanted(worldBatch(policytest.New(3).World(12, 5)), policytest.Nodes[0]).rules
	h.epoch = 5
	joined(t, wire.Own(), wire.Versions{Min: apifeed.MinVersion, Max: apifeed.Beats - 1}, h).refused(t, "--obey-unelected")
}
