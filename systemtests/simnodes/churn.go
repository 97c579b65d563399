package simnodes

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"
)

// What happens in a churn, and until when it is measured.
const (
	PodStarts     = "pod announced → its node may open its port"
	PodComes      = "pod announced → its address at a node with a peer"
	PodGoes       = "pod withdrawn → its address gone at a node"
	LabelChanges  = "label changed in the API → address at a node"
	PolicyChanges = "policy written to the API → rule at a node"
	// PolicyWatched is the part of PolicyChanges that any watcher of the API waits.
	PolicyWatched = "  of that, until a watcher of the API sees it"
)

// Kinds are in the order of the table.
var Kinds = []string{PodStarts, PodComes, PodGoes, LabelChanges, PolicyChanges, PolicyWatched}

// Churn is what happened, and how long it took: one duration for each node and group that it reached.
type Churn struct {
	Events int
	Took   map[string][]time.Duration
	// Missing is what reached no node.
	Missing []string
	// Late is by how much the events themselves were behind their time at most: the machine was too busy then.
	Late time.Duration
}

// Quantile of durations that are sorted.
func Quantile(took []time.Duration, q float64) time.Duration {
	if len(took) == 0 {
		return 0
	}
	return took[min(len(took)-1, int(q*float64(len(took))))]
}

// happening is an event that is to be seen.
type happening struct {
	kind string
	at   time.Time
}

// churn is one that goes on.
type churn struct {
	*Rig
	ctx context.Context
	// from and to are the namespaces that it happens in.
	from, to int

	mu     sync.Mutex
	rng    *rand.Rand
	asked  map[string]happening // by what is looked out for
	own    map[string]time.Time // when policies' ports were watched here
	left   []*pod               // pods of these namespaces with which nothing happened yet
	made   [][2]int             // policies that may be removed: namespace and number
	edited map[[2]int]bool
	failed error
	late   time.Duration
}

// Churn has events happen, so many a second, in all namespaces but the wide one, or in that.
func (r *Rig) Churn(ctx context.Context, rate int, lasting time.Duration, wide bool) (*Churn, error) {
	c := &churn{Rig: r, ctx: ctx, from: r.first(), to: r.namespaces(), rng: rand.New(rand.NewPCG(1, uint64(len(r.pods)))), asked: map[string]happening{}, own: map[string]time.Time{}, edited: map[[2]int]bool{}}
	if wide {
		c.from, c.to = 0, r.first()
	}
	for _, p := range r.pods {
		if p.namespace >= c.from && p.namespace < c.to && p.uid != "" {
			c.left = append(c.left, p)
		}
	}
	c.rng.Shuffle(len(c.left), func(i, j int) { c.left[i], c.left[j] = c.left[j], c.left[i] })
	watching, stop := context.WithCancel(ctx)
	var watcher sync.WaitGroup
	watcher.Go(func() { c.watch(watching) })
	events := c.run(rate, lasting)
	out := &Churn{Events: events, Late: c.late}
	err := c.failed
	if err == nil {
		err = c.collect(out)
	}
	stop()
	watcher.Wait()
	return out, err
}

// run makes the events, each in its time, and returns when all are made.
func (c *churn) run(rate int, lasting time.Duration) (events int) {
	var all sync.WaitGroup
	begin := time.Now()
	for every := time.Second / time.Duration(rate); time.Duration(events)*every < lasting && c.ctx.Err() == nil; events++ {
		due := begin.Add(time.Duration(events) * every)
		select {
		case <-time.After(time.Until(due)):
		case <-c.ctx.Done():
		}
		what := c.choose(events)
		all.Go(func() {
			late := time.Since(due)
			err := what()
			c.mu.Lock()
			defer c.mu.Unlock()
			c.failed, c.late = cmp.Or(c.failed, err), max(c.late, late)
		})
	}
	all.Wait()
	return events
}

// staying is how many of the policies that came are there at any time, so that none goes before it can have come to nodes.
const staying = 20

// choose gives the next event: of ten, three pods start, three go and two change their labels; a policy changes, and one comes or goes.
func (c *churn) choose(n int) func() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	namespace := c.from + c.rng.IntN(c.to-c.from)
	switch n % 10 {
	case 0, 3, 6:
		c.next++
		p := c.newPod(c.next, namespace)
		p.app = c.rng.IntN(apps)
		c.pods = append(c.pods, p)
		return func() error { return c.startPod(p) }
	case 1, 4, 7:
		if p := c.takePod(); p != nil {
			return func() error { return c.deletePod(p) }
		}
	case 2, 5:
		if p := c.takePod(); p != nil && !c.isWide(p.namespace) { // there no label counts
			return func() error { return c.relabel(p) }
		}
	case 8:
		port := c.port()
		if i := c.rng.IntN(c.policiesOf(namespace)); (i >= len(kinds) || c.isWide(namespace)) && !c.edited[[2]int{namespace, i}] {
			c.edited[[2]int{namespace, i}] = true
			return func() error { return c.editPolicy(namespace, i, port) }
		}
	case 9:
		if n%20 == 9 || len(c.made) < staying {
			number, port := c.next, c.port()
			return func() error { return c.makePolicy(namespace, number, port) }
		}
		gone := c.made[0]
		c.made = c.made[1:]
		return func() error {
			return c.Hub.Do(c.ctx, http.MethodDelete, policiesPath(gone[0])+"/"+policyName(gone[1]), nil)
		}
	}
	return func() error { return nil }
}

// port returns a port that no policy had before.
func (c *churn) port() int {
	c.next++
	return 10000 + c.next%50000
}

// takePod is one of a node that can say what becomes of it: what a node has wired it has until it says otherwise.
func (c *churn) takePod() *pod {
	for len(c.left) > 0 {
		p := c.left[0]
		if c.left = c.left[1:]; !c.stopped(p.node) {
			return p
		}
	}
	return nil
}

func (c *churn) stopped(node int) bool {
	return slices.ContainsFunc(c.sims, func(s *Sim) bool { return s.frozen && s.has(node) })
}

// sim is the process that a node is in; nil if it is in none.
func (c *churn) sim(node int) *Sim {
	for _, s := range c.sims {
		if s.has(node) && !s.frozen {
			return s
		}
	}
	return nil
}

// expect has all nodes look out for what is about to happen.
func (c *churn) expect(kinds map[string]string) error {
	var what []string
	for one := range kinds {
		what = append(what, one)
	}
	for _, s := range c.sims {
		if s.frozen {
			continue
		}
		if err := s.expect(c.ctx, what...); err != nil {
			return err
		}
	}
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	for one, kind := range kinds {
		c.asked[one] = happening{kind, now}
	}
	return nil
}

func (c *churn) startPod(p *pod) error {
	if err := c.create(c.ctx, p); err != nil {
		return err
	}
	if s := c.sim(p.node); s != nil {
		if err := c.expect(map[string]string{"settled " + p.id(): PodStarts, "+" + p.address: PodComes}); err != nil {
			return err
		}
		if err := s.post(c.ctx, "/pods", []wired{p.wired(false)}); err != nil {
			return err
		}
	}
	return c.Hub.Do(c.ctx, http.MethodPut, p.path()+"/status", []byte(p.running()))
}

func (c *churn) deletePod(p *pod) error {
	if err := c.expect(map[string]string{"-" + p.address: PodGoes}); err != nil {
		return err
	}
	if s := c.sim(p.node); s != nil {
		if err := s.post(c.ctx, "/pods", []wired{p.wired(true)}); err != nil {
			return err
		}
	}
	p.uid = "" // there is none any more
	return c.Hub.Do(c.ctx, http.MethodDelete, p.path(), []byte(`{"gracePeriodSeconds": 0}`))
}

func (c *churn) relabel(p *pod) error {
	if err := c.expect(map[string]string{"+" + p.address: LabelChanges}); err != nil {
		return err
	}
	p.app = (p.app + apps/2) % apps
	return c.Hub.Do(c.ctx, http.MethodPatch, p.path(), fmt.Appendf(nil, `[{"op": "replace", "path": "/metadata/labels/app", "value": "a%d"}]`, p.app))
}

func rulePort(namespace, policy, port int) string {
	return fmt.Sprintf("%s/%s:%d", namespaceName(namespace), policyName(policy), port)
}

func (c *churn) editPolicy(namespace, n, port int) error {
	if err := c.expect(map[string]string{rulePort(namespace, n, port): PolicyChanges}); err != nil {
		return err
	}
	return c.Hub.Do(c.ctx, http.MethodPatch, policiesPath(namespace)+"/"+policyName(n), fmt.Appendf(nil, `[{"op": "replace", "path": "/spec/ingress/0/ports/0/port", "value": %d}]`, port))
}

func (c *churn) makePolicy(namespace, n, port int) error {
	if err := c.expect(map[string]string{rulePort(namespace, n, port): PolicyChanges}); err != nil {
		return err
	}
	err := c.Hub.Do(c.ctx, http.MethodPost, policiesPath(namespace), []byte(c.policyObject(namespace, n, port)))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.made = append(c.made, [2]int{namespace, n})
	return err
}

// watch notes when it hears of policies itself.
func (c *churn) watch(ctx context.Context) {
	_ = c.Hub.Watch(ctx, "/apis/networking.k8s.io/v1/networkpolicies", func(_ string, object json.RawMessage) {
		now := time.Now()
		key := ruleOf(object)
		c.mu.Lock()
		defer c.mu.Unlock()
		if _, twice := c.own[key]; !twice {
			c.own[key] = now
		}
	}) // it ends with ctx; where it ends earlier, a line of the table is empty
}

// rest is for how long nothing has come when all has.
const rest = time.Second

// collect waits until nothing comes any more, and adds up how long it took.
func (c *churn) collect(out *Churn) error {
	all, last := map[string][]int64{}, time.Now()
	if err := c.until(c.ctx, func() error {
		more, err := c.look(all)
		if more {
			last = time.Now()
		}
		if err == nil && time.Since(last) < rest {
			err = errors.New("deltas go on coming")
		}
		return err
	}); err != nil {
		return err
	}
	out.Took = map[string][]time.Duration{}
	for one, h := range c.asked {
		if len(all[one]) == 0 {
			out.Missing = append(out.Missing, h.kind+": "+one)
		}
		for _, at := range all[one] {
			out.Took[h.kind] = append(out.Took[h.kind], time.Unix(0, at).Sub(h.at))
		}
		c.mu.Lock()
		if own, ok := c.own[one]; ok {
			out.Took[PolicyWatched] = append(out.Took[PolicyWatched], own.Sub(h.at))
		}
		c.mu.Unlock()
	}
	for _, took := range out.Took {
		slices.Sort(took)
	}
	return c.forget()
}

// look adds what has come to all.
func (c *churn) look(all map[string][]int64) (more bool, err error) {
	for _, s := range c.sims {
		if s.frozen {
			continue
		}
		seen, err := s.look(c.ctx)
		if err != nil {
			return more, err
		}
		for one, times := range seen {
			all[one] = append(all[one], times...)
			more = true
		}
	}
	return more, nil
}

func (c *churn) forget() error {
	for _, s := range c.sims {
		if s.frozen {
			continue
		}
		if err := s.post(c.ctx, "/forget", nil); err != nil {
			return err
		}
	}
	return nil
}
