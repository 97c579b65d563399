package inspect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netmaster/feed"
	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	// verifiers is how many nodes are verified at a time.
	verifiers = 32
	// comparing bounds what one node may work on a comparison, tracing on the packets of one query.
	comparing = 30 * time.Second
	tracing   = 10 * time.Second
	// mostUnsteady is how often in a row a node may change while packets are traced on it; each time fewer are.
	mostUnsteady = 20
	// nextLook is how long a node that changes is left alone.
	nextLook = 100 * time.Millisecond
	// confirmingTraces is the number of later traces in which a difference must show again before it is reported: a pod
	// starts and ends on its node earlier than in netmaster. confirmingInterval is the time before each of them.
	confirmingTraces   = 3
	confirmingInterval = 700 * time.Millisecond
	// mostWrong is how many wrong samples of a node are told.
	mostWrong = 50
	// mostTold is how many differences, of each kind, and wrong samples are told of all nodes together; each may tell a few.
	mostTold  = 2000
	leastTold = 3
)

// verify has the nodes compare their flows, and their switches judge packets.
func (s *Server) verify(ctx context.Context, q *inspect.Question) (any, error) {
	want := q.Verify
	if want == nil || want.Samples < 0 || want.Samples > inspect.MostSamples {
		return nil, status.Errorf(codes.InvalidArgument, "say what is to be verified, with 0 to %d samples a node", inspect.MostSamples)
	}
	names, err := s.nodeNames(want.Nodes)
	if err != nil {
		return nil, err
	}
	whole := ctx // the nodes may take all of the time but what is left for the answer
	ctx, cancel := inTime(ctx)
	defer cancel()
	v := &verifier{s: s, want: want}
	out := inspect.Verified{Seed: want.Seed, Nodes: make([]inspect.NodeResult, len(names)), Problems: append([]string{}, s.cfg.Problems()...)}
	places := make(chan struct{}, verifiers)
	var all sync.WaitGroup
	for i, name := range names {
		all.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			out.Nodes[i] = v.node(ctx, name)
		})
	}
	all.Wait()
	for i := range out.Nodes {
		shorten(&out.Nodes[i], max(mostTold/len(out.Nodes), leastTold))
	}
	return &out, s.cfg.Owner.Do(whole, func(e *resolve.Engine) { out.Revision = e.Revision() })
}

// shorten leaves the first most of each kind that a node tells of.
func shorten(n *inspect.NodeResult, most int) {
	n.Samples.Wrong = n.Samples.Wrong[:min(len(n.Samples.Wrong), most)]
	if n.Flows == nil {
		return
	}
	told := map[string]int{}
	n.Flows.Differences = slices.DeleteFunc(n.Flows.Differences, func(d inspect.Difference) bool {
		told[d.Kind]++
		return told[d.Kind] > most
	})
}

// nodeNames are those that are asked for, or all that netmaster has to do with.
func (s *Server) nodeNames(asked []string) ([]string, error) {
	var known []string
	for _, n := range s.cfg.Nodes.Nodes() {
		known = append(known, n.Name)
	}
	if len(asked) == 0 {
		return known, nil
	}
	for _, n := range s.cfg.Nodes.Infos() {
		known = append(known, n.Name)
	}
	for _, name := range asked {
		if !slices.Contains(known, name) {
			return nil, status.Errorf(codes.NotFound, "there is no node %s", name)
		}
	}
	asked = slices.Clone(asked)
	slices.Sort(asked)
	return slices.Compact(asked), nil
}

// verifier is one verification. Its scene is shared by the nodes that have not changed since. Safe for concurrent use.
type verifier struct {
	s    *Server
	want *inspect.VerifyWhat

	mu    sync.Mutex
	scene *scene
	taken time.Time     // when scene was
	took  time.Duration // how long that took
}

// stand is how far a node is: as long as it is the same, nothing of the node has changed.
type stand struct {
	since          time.Time
	sent, realised uint64
	steady         bool // all that the engine's revision brings the node is in force there
}

// standOf is to be called on the owner's goroutine: what the engine has resolved is due to the node by then.
func standOf(n *feed.NodeStatus) stand {
	return stand{n.Since, n.Sent, n.Realised, n.Connected && n.Pending == 0 && n.Realised >= n.Sent}
}

// sceneShare bounds what taking scenes costs: no more than one part in so many of the time.
const sceneShare = 5

// look gives what netmaster knows that the node enforces now; nil while what it enforces changes. The owner is held while the
// world is taken, now and then.
func (v *verifier) look(ctx context.Context, node string) (*scene, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	began := time.Now()
	var world *policy.World
	var revision uint64
	stands, current := map[string]stand{}, false
	infos := v.s.cfg.Nodes.Infos()
	if err := v.s.cfg.Owner.Do(ctx, func(e *resolve.Engine) {
		n := v.s.cfg.Nodes.Node(node)
		now := standOf(&n)
		current = now.steady && v.scene != nil && v.scene.stands[node] == now
		if current || !now.steady || time.Since(v.taken) < max(nextLook, sceneShare*v.took) {
			return
		}
		revision, world = e.Revision(), e.World()
		for _, n := range v.s.cfg.Nodes.Nodes() {
			stands[n.Name] = standOf(&n)
		}
	}); err != nil {
		return nil, err
	}
	switch {
	case current:
		return v.scene, nil
	case world == nil:
		return nil, nil
	}
	v.scene = newScene(revision, world, infos)
	v.scene.stands, v.taken, v.took = stands, time.Now(), time.Since(began)
	return v.scene, nil
}

// drop makes the next look take a scene that is younger than old.
func (v *verifier) drop(old *scene) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.scene == old {
		v.scene = nil
	}
}

// still tells whether the node enforces what it did when the scene was taken.
func (v *verifier) still(ctx context.Context, sc *scene, node string) (same bool, err error) {
	err = v.s.cfg.Owner.Do(ctx, func(*resolve.Engine) {
		n := v.s.cfg.Nodes.Node(node)
		same = standOf(&n) == sc.stands[node]
	})
	return same, err
}

// node verifies one.
func (v *verifier) node(ctx context.Context, name string) inspect.NodeResult {
	out := inspect.NodeResult{Node: name, Samples: inspect.SampleResults{Wanted: v.want.Samples, Wrong: []inspect.WrongSample{}}, Problems: []string{}}
	n := v.s.cfg.Nodes.Node(name)
	if !n.Connected {
		text := "it is not connected, and was not looked at; it enforces what it last had"
		if n.Refused != "" {
			text = "it is refused, and was not looked at; it enforces what it last had: " + n.Refused
		}
		out.Problems = append(out.Problems, text)
		return out
	}
	for i := range n.Errors {
		out.Problems = append(out.Problems, "not in force: "+errorText(&n.Errors[i]))
	}
	flows, err := v.compare(ctx, name)
	if out.Flows = flows; err != nil {
		out.Problems = append(out.Problems, "its flows were not compared: "+err.Error())
	}
	if v.want.Samples > 0 {
		x := sampling{verifier: v, node: name, out: &out.Samples}
		if err := x.run(ctx); err != nil {
			out.Problems = append(out.Problems, fmt.Sprintf("only %d of %d packets were traced: %v", out.Samples.Traced, out.Samples.Wanted, err))
		}
		if out.Samples.Traced == 0 && out.Samples.Skipped > 0 {
			out.Problems = append(out.Problems, "no packet could be traced: "+x.skipped)
		}
		if out.Samples.Unsettled > 0 {
			out.Problems = append(out.Problems, fmt.Sprintf("%d packets could not be judged: what the node enforces kept changing, or was not all in force, whenever they were traced", out.Samples.Unsettled))
		}
	}
	out.Fine = len(out.Problems) == 0 && out.Flows != nil && out.Flows.Sum() == 0 && out.Samples.Differing == 0
	return out
}

func (v *verifier) compare(ctx context.Context, node string) (*inspect.NodeVerify, error) {
	body, err := v.s.queryNode(ctx, node, inspect.NodeQuery{Kind: inspect.QueryVerify, Within: within(ctx, comparing)})
	if err != nil {
		return nil, err
	}
	flows := new(inspect.NodeVerify)
	if err := json.Unmarshal(body, flows); err != nil {
		return nil, fmt.Errorf("its answer: %w", err)
	}
	return flows, nil
}

// within is how long a node may work: no longer than most, and than somebody waits.
func within(ctx context.Context, most time.Duration) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		most = min(most, time.Until(deadline))
	}
	return max(most, time.Millisecond)
}

// sampling traces packets on one node. A packet is judged by the model of before its trace, and counts only if nothing of the node has
// changed until after it.
type sampling struct {
	*verifier
	node     string
	out      *inspect.SampleResults
	unsteady int // times in a row
	scene    *scene
	sampler  *sampler // of scene
	skipped  string   // why the last was that was skipped
	differs  bool     // a difference was confirmed, so later ones are reported at once
}

func (x *sampling) run(ctx context.Context) error {
	for number := 0; number < x.want.Samples; {
		n := min(x.want.Samples-number, max(inspect.MostTraces>>(2*min(x.unsteady, 3)), 1))
		if x.unsteady == mostUnsteady {
			x.out.Unsettled += x.want.Samples - number
			return nil
		}
		next, err := x.traced(ctx, number, n)
		if err != nil {
			return err
		}
		if next > number {
			number, x.unsteady = next, 0
			continue
		}
		x.unsteady++
		select {
		case <-time.After(nextLook):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// traced traces the samples of n numbers, and returns the first that is still to be traced: the same where something changed meanwhile.
func (x *sampling) traced(ctx context.Context, number, n int) (next int, err error) {
	scene, err := x.look(ctx, x.node)
	if err != nil || scene == nil {
		return number, err
	}
	if scene != x.scene {
		x.scene, x.sampler = scene, newSampler(scene, x.node, x.want.Seed)
	}
	var samples []sample
	query := inspect.NodeQuery{Kind: inspect.QueryTrace, Within: within(ctx, tracing)}
	for i := range n {
		if drawn, ok := x.sampler.draw(number + i); ok {
			samples = append(samples, drawn)
			query.Packets = append(query.Packets, drawn.packet)
		}
	}
	if len(samples) == 0 {
		return number + n, nil
	}
	var answer inspect.NodeTraces
	body, err := x.s.queryNode(ctx, x.node, query)
	if err == nil {
		err = json.Unmarshal(body, &answer)
	}
	if err != nil {
		return number, err
	}
	if same, err := x.still(ctx, scene, x.node); err != nil || !same {
		return number, err
	}
	switch most := len(samples); {
	case len(answer.Traces) == 0 || len(answer.Traces) > most:
		return number, fmt.Errorf("%d traces of %d packets", len(answer.Traces), most)
	case len(answer.Traces) < most: // its time was over
		samples = samples[:len(answer.Traces)]
		return samples[len(samples)-1].number + 1, x.judge(ctx, samples, answer.Traces)
	}
	return number + n, x.judge(ctx, samples, answer.Traces)
}

// judge compares the verdicts of the switch with those of the policies.
func (x *sampling) judge(ctx context.Context, samples []sample, traces []inspect.Trace) error {
	var doubtful []policy.Packet
	before := x.scene
	for i := range samples {
		w, t := &samples[i], &traces[i]
		switch {
		case t.OutOfScope:
			x.out.Skipped++
			x.skipped = t.Problem
		case t.Problem != "":
			return errors.New(t.Problem)
		case t.Passed != w.allowed && !x.differs:
			doubtful = append(doubtful, w.packet)
		default:
			x.count(w, t)
		}
	}
	return x.confirm(ctx, before, doubtful)
}

// count adds a traced packet to the results.
func (x *sampling) count(w *sample, t *inspect.Trace) {
	x.out.Traced++
	switch {
	case t.Passed != w.allowed:
		x.differs = true
		x.out.Differing++
		if len(x.out.Wrong) < mostWrong {
			x.out.Wrong = append(x.out.Wrong, x.wrong(w, t))
		}
	case t.Passed:
		x.out.Allowed++
	default:
		x.out.Denied++
	}
}

// confirm traces packets again that were found to differ, each time against what netmaster knows by then, and counts
// them. It skips packets of pods that have ended since before, and gives up on a node that keeps changing.
func (x *sampling) confirm(ctx context.Context, before *scene, packets []policy.Packet) error {
	for n := 1; n <= confirmingTraces && len(packets) > 0; n++ {
		samples, traces, err := x.traceLater(ctx, before, packets)
		if err != nil {
			return err
		}
		if samples == nil {
			x.out.Unsettled += len(packets)
			return nil
		}
		x.out.Skipped += len(packets) - len(samples)
		packets = nil
		for i := range samples {
			switch w, t := &samples[i], &traces[i]; {
			case t.OutOfScope:
				x.out.Skipped++
				x.skipped = t.Problem
			case t.Passed != w.allowed && n < confirmingTraces:
				packets = append(packets, w.packet)
			default:
				x.count(w, t)
			}
		}
	}
	return nil
}

// traceLater waits, then traces those of the packets that still have the pods that they had before, at a time when
// nothing of the node changes. It returns nil samples if there is no such time.
func (x *sampling) traceLater(
	ctx context.Context, before *scene, packets []policy.Packet,
) ([]sample, []inspect.Trace, error) {
	for range mostUnsteady {
		select {
		case <-time.After(confirmingInterval):
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
		x.drop(x.scene)
		scene, err := x.look(ctx, x.node)
		if err != nil {
			return nil, nil, err
		}
		if scene == nil {
			continue
		}
		x.scene, x.sampler = scene, newSampler(scene, x.node, x.want.Seed)
		samples := []sample{}
		query := inspect.NodeQuery{Kind: inspect.QueryTrace, Within: within(ctx, tracing)}
		for _, p := range packets {
			if scene.hasPod(p.From) == before.hasPod(p.From) && scene.hasPod(p.To) == before.hasPod(p.To) {
				samples = append(samples, x.sampler.judge(p))
				query.Packets = append(query.Packets, p)
			}
		}
		if len(samples) == 0 {
			return samples, nil, nil
		}
		traces, err := x.traces(ctx, query)
		if err != nil {
			return nil, nil, err
		}
		if same, err := x.still(ctx, scene, x.node); err != nil {
			return nil, nil, err
		} else if same {
			return samples, traces, nil
		}
	}
	return nil, nil, nil
}

// traces returns the node's traces of all packets of a query.
func (x *sampling) traces(ctx context.Context, query inspect.NodeQuery) ([]inspect.Trace, error) {
	body, err := x.s.queryNode(ctx, x.node, query)
	if err != nil {
		return nil, err
	}
	var answer inspect.NodeTraces
	if err := json.Unmarshal(body, &answer); err != nil {
		return nil, fmt.Errorf("traces of node %s: %w", x.node, err)
	}
	if len(answer.Traces) != len(query.Packets) {
		return nil, fmt.Errorf("%d traces of %d packets", len(answer.Traces), len(query.Packets))
	}
	for i := range answer.Traces {
		if t := &answer.Traces[i]; t.Problem != "" && !t.OutOfScope {
			return nil, errors.New(t.Problem)
		}
	}
	return answer.Traces, nil
}

func (x *sampling) wrong(w *sample, t *inspect.Trace) inspect.WrongSample {
	t.Node = x.node
	out := inspect.WrongSample{Packet: w.packet, From: x.scene.name(w.packet.From), To: x.scene.name(w.packet.To), Allowed: w.allowed, Passed: t.Passed,
		Policies: []string{}, Trace: *t}
	for _, end := range []struct {
		direction policy.Direction
		here      bool
		says      *policy.SideVerdict
	}{{policy.Egress, w.atSource, &w.verdict.Egress}, {policy.Ingress, w.atTarget, &w.verdict.Ingress}} {
		if !end.here {
			continue
		}
		out.Policies = append(out.Policies, end.says.Isolated...)
		if len(end.says.By) > 0 {
			out.By = append(out.By, policy.OriginsText(end.direction, end.says.By))
		}
	}
	slices.Sort(out.Policies)
	out.Policies = slices.Compact(out.Policies)
	return out
}
