// Package live plays the history of a seed on a cluster. After each change it waits until netmaster and all nodes have it in
// force, sends packets between pods, nodes, Services and a host outside, and compares what passes with what package soak says.
// Meanwhile connections live on: those that a change leaves allowed may lose nothing, the others must end.
package live

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
	"github.com/flowkeep/flowkeep/systemtests/soak"
)

// Config says what to play, and for how long: what ends first, For or Steps (0: no bound), counts.
type Config struct {
	Cluster *cluster.Cluster
	Seed    uint64
	For     time.Duration
	Steps   int
	Probes  int       // packets a round
	Streams int       // connections that live on
	Log     io.Writer // a line a round
}

// Report is what was seen.
type Report struct {
	Rounds, Allowed, Denied, Again int
	BeganStreams, Cut, Explained   int
	LongestCut, LongestGap         time.Duration
	Differences                    int
}

func (r Report) String() string {
	return fmt.Sprintf("%d rounds, %d probes (%d allowed, %d denied, %d asked again), %d live connections (%d cut, the slowest after %d ms; longest gap of the others %d ms), %d explained, %d differences",
		r.Rounds, r.Allowed+r.Denied, r.Allowed, r.Denied, r.Again, r.BeganStreams, r.Cut, r.LongestCut.Milliseconds(), r.LongestGap.Milliseconds(), r.Explained, r.Differences)
}

// Difference is a verdict of the cluster that is not the oracle's.
type Difference struct{ Text string }

func (d *Difference) Error() string { return d.Text }

// version is how a policy is, of those it has been.
type version struct {
	generation int64
	dryRun     bool // which raises no generation
}

// player holds a run's state; one goroutine uses it.
type player struct {
	Config
	Report
	api      *cluster.API
	state    *soak.State // policies with their symbols resolved
	versions map[string]version
	parity   map[string]string // of each namespace; see canary
	pods     map[string]*place
	starting []soak.Pod
	known    map[string]*place // pods that are or were there
	nodes    map[string]*place
	outside  *place
	services map[string][]netip.Addr
	streams  []*stream
	round    int
	ends     []func()
}

// Play runs until the time or the steps are over, or to the first Difference, which it describes with all there is to know.
// The error is a *Difference then; any other says that the cluster could not be played on.
func Play(ctx context.Context, c Config) (Report, error) {
	p := &player{Config: c, state: soak.NewState(), versions: map[string]version{}, parity: map[string]string{}, pods: map[string]*place{}, known: map[string]*place{},
		nodes: map[string]*place{}, services: map[string][]netip.Addr{}}
	defer p.end()
	if err := p.begin(ctx); err != nil {
		return p.Report, fmt.Errorf("prepare the cluster: %w", err)
	}
	started, history := time.Now(), soak.NewHistory(c.Seed)
	for ctx.Err() == nil && (c.For == 0 || time.Since(started) < c.For) && (c.Steps == 0 || p.Rounds < c.Steps) {
		setup := history.Setup()
		change := history.Next()
		err := p.play(ctx, change, !setup)
		if err == nil && setup && !history.Setup() {
			err = p.awaitPods(ctx)
		}
		if err != nil {
			return p.Report, p.describe(change, err)
		}
	}
	return p.Report, ctx.Err()
}

func (p *player) end() {
	for _, s := range p.streams {
		s.close()
	}
	for _, pod := range p.pods {
		pod.leave()
	}
	for _, f := range p.ends {
		f()
	}
}

// explainedARound is how many ways netctl is asked to explain after each change.
const explainedARound = 2

// play is one round.
func (p *player) play(ctx context.Context, change soak.Change, probe bool) error {
	p.round++
	began := time.Now()
	p.spare(change)
	if err := p.apply(ctx, change); err != nil {
		return fmt.Errorf("apply: %w", err)
	}
	if !probe {
		return nil
	}
	if err := errors.Join(p.awaitPods(ctx), p.awaitForce(ctx)); err != nil {
		return err
	}
	inForce := time.Now()
	p.Rounds++
	rng := rand.New(rand.NewPCG(p.Seed, uint64(p.round)))
	attempts := p.sample(rng, p.Probes)
	err := errors.Join(p.probe(attempts), p.watchStreams(inForce), p.explain(ctx, rng, attempts, explainedARound))
	if err == nil {
		err = p.openStreams(rng)
	}
	fmt.Fprintf(p.Log, "round %d: %v in force after %d ms, judged after %d ms\n", p.round, change, inForce.Sub(began).Milliseconds(), time.Since(inForce).Milliseconds())
	return err
}

// view is what the oracle judges by.
func (p *player) view() *soak.View {
	v := &soak.View{State: p.state, PodIPs: map[string][]netip.Addr{}, NodeIPs: map[string][]netip.Addr{}}
	for id, pod := range p.pods {
		v.PodIPs[id] = pod.ips
	}
	for name, node := range p.nodes {
		v.NodeIPs[name] = node.ips
	}
	return v
}
