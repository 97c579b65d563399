package query

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
	"github.com/flowkeep/flowkeep/netmaster/whatif"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	// maxVerifiers is the number of nodes that are verified at a time.
	maxVerifiers = 32
	// compareTimeout and tracing bound the time of a node for one comparison, and for the traces of one query.
	compareTimeout = 30 * time.Second
	traceTimeout   = 10 * time.Second
	// maxUnsteady is how often in a row a node may change during traces; each retry traces fewer packets.
	maxUnsteady = 20
	// retryInterval is the pause before a retry on a node that changes.
	retryInterval = 100 * time.Millisecond
	// confirmingTraces is the number of later traces in which a difference must show again before it is reported: a pod
	// starts and ends on its node earlier than in netmaster. confirmingInterval is the time before each of them.
	confirmingTraces   = 3
	confirmingInterval = 700 * time.Millisecond
	// maxWrong limits the wrong samples of a node in the response.
	maxWrong = 50
	// maxReported limits the differences of each kind, and the wrong samples, of all nodes; each node may report
	// minReported.
	maxReported = 2000
	minReported = 3
)

// verify compares the flows of nodes with their rules, and the verdicts of switches with those of the policies.
func (s *nodeQueries) verify(ctx context.Context, q *inspect.Question) (any, error) {
	want := q.Verify
	if want == nil || want.Samples < 0 || want.Samples > inspect.MostSamples {
		return nil, status.Errorf(codes.InvalidArgument, "a verification needs 0 to %d samples a node",
			inspect.MostSamples)
	}
	names, err := s.nodeNames(want.Nodes)
	if err != nil {
		return nil, err
	}
	whole := ctx // nodes may use all time except that for the response
	ctx, cancel := inTime(ctx)
	defer cancel()
	v := &verifier{s: s.sources, want: want}
	out := inspect.Verified{
		Seed:     want.Seed,
		Nodes:    make([]inspect.NodeResult, len(names)),
		Problems: append([]string{}, s.cfg.Problems()...),
	}
	places := make(chan struct{}, maxVerifiers)
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
		shorten(&out.Nodes[i], max(maxReported/len(out.Nodes), minReported))
	}
	return &out, s.cfg.Owner.Do(whole, func(e *resolve.Engine) { out.Revision = e.Revision() })
}

// shorten truncates the wrong samples, and the differences of each kind, to limit.
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

// nodeNames returns the requested nodes, or all.
func (s *sources) nodeNames(asked []string) ([]string, error) {
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

// verifier is one verification. Nodes share its scene until one of them changes. Safe for concurrent use.
type verifier struct {
	s    *sources
	want *inspect.VerifyWhat

	mu    sync.Mutex
	scene *scene
	taken time.Time     // when scene was copied
	took  time.Duration // how long copying scene took
}

// stand is the progress of a node. While it is equal, what the node enforces has not changed.
type stand struct {
	since          time.Time
	sent, realised uint64
	steady         bool // the node has acknowledged all that the engine's revision requires
}

// standOf returns the progress of a node. Call it on the owner goroutine, where the engine has no unsent changes.
func standOf(n *feed.NodeStatus) stand {
	return stand{n.Since, n.Sent, n.Realised, n.Connected && n.Pending == 0 && n.Realised >= n.Sent}
}

// sceneShare limits the cost of copying scenes to one part in sceneShare of the time.
const sceneShare = 5

// observe returns the state that the node enforces now; nil while it is changing.
func (v *verifier) look(ctx context.Context, node string) (*scene, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	began := time.Now()
	stands, revision, current, due := map[string]stand{}, uint64(0), false, false
	infos := v.s.cfg.Nodes.Infos()
	err := v.s.cfg.Owner.Do(ctx, func(*resolve.Engine) {
		n := v.s.cfg.Nodes.Node(node)
		now := standOf(&n)
		current = now.steady && v.scene != nil && v.scene.stands[node] == now
		due = now.steady && time.Since(v.taken) >= max(retryInterval, sceneShare*v.took)
	})
	switch {
	case err != nil:
		return nil, err
	case current:
		return v.scene, nil
	case !due:
		return nil, nil
	}
	world, err := whatif.World(ctx, v.s.cfg.Owner, func(e *resolve.Engine) {
		revision = e.Revision()
		for _, n := range v.s.cfg.Nodes.Nodes() {
			stands[n.Name] = standOf(&n)
		}
	})
	if err != nil {
		return nil, err
	}
	v.scene = newScene(revision, world, infos)
	v.scene.stands, v.taken, v.took = stands, time.Now(), time.Since(began)
	if !stands[node].steady {
		return nil, nil
	}
	return v.scene, nil
}

// discard makes the next look copy a scene newer than old.
func (v *verifier) discard(old *scene) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.scene == old {
		v.scene = nil
	}
}

// isUnchanged reports whether the node enforces the same as in the scene.
func (v *verifier) isUnchanged(ctx context.Context, sc *scene, node string) (same bool, err error) {
	err = v.s.cfg.Owner.Do(ctx, func(*resolve.Engine) {
		n := v.s.cfg.Nodes.Node(node)
		same = standOf(&n) == sc.stands[node]
	})
	return same, err
}

// node verifies one node.
func (v *verifier) node(ctx context.Context, name string) inspect.NodeResult {
	out := inspect.NodeResult{
		Node:     name,
		Samples:  inspect.SampleResults{Wanted: v.want.Samples, Wrong: []inspect.WrongSample{}},
		Problems: []string{},
	}
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
			out.Problems = append(out.Problems,
				fmt.Sprintf("only %d of %d packets were traced: %v", out.Samples.Traced, out.Samples.Wanted, err))
		}
		if out.Samples.Traced == 0 && out.Samples.Skipped > 0 {
			out.Problems = append(out.Problems, "no packet could be traced: "+x.skipped)
		}
		if out.Samples.Unsettled > 0 {
			out.Problems = append(out.Problems, fmt.Sprintf(
				"%d packets could not be judged: what the node enforces kept changing, or was not all in force, "+
					"whenever they were traced",
				out.Samples.Unsettled,
			))
		}
	}
	if out.Flows != nil && out.Flows.Independent != nil {
		for _, u := range out.Flows.Independent.Unread {
			out.Problems = append(out.Problems, "not read independently: "+u)
		}
	}
	out.Fine = len(out.Problems) == 0 && out.Flows != nil && out.Flows.Sum() == 0 && out.Samples.Differing == 0
	return out
}

func (v *verifier) compare(ctx context.Context, node string) (*inspect.NodeVerify, error) {
	body, err := v.s.queryNode(ctx, node, inspect.NodeQuery{
		Kind:        inspect.QueryVerify,
		Within:      within(ctx, compareTimeout),
		Independent: v.want.Independent,
	})
	if err != nil {
		return nil, err
	}
	flows := new(inspect.NodeVerify)
	if err := json.Unmarshal(body, flows); err != nil {
		return nil, fmt.Errorf("its answer: %w", err)
	}
	if v.want.Independent && flows.Independent == nil {
		return nil, errors.New("its netplugin is of an older version, which reads flows by one decoder only")
	}
	return flows, nil
}

// within returns how long a node may work: at most limit, and no longer than the client waits.
func within(ctx context.Context, most time.Duration) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		most = min(most, time.Until(deadline))
	}
	return max(most, time.Millisecond)
}

// sampling traces packets on one node. A packet is evaluated against the scene copied before its trace, and counts
// only if the node did not change until after it.
type sampling struct {
	*verifier
	node     string
	out      *inspect.SampleResults
	unsteady int // retries in a row
	scene    *scene
	sampler  *sampler // why the last skipped packet was skipped
	skipped  string   // why the last was that was skipped
	differs  bool     // a difference was confirmed: later ones are reported at once
}

func (x *sampling) run(ctx context.Context) error {
	for number := 0; number < x.want.Samples; {
		n := min(x.want.Samples-number, max(inspect.MostTraces>>(2*min(x.unsteady, 3)), 1))
		if x.unsteady == maxUnsteady {
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
		case <-time.After(retryInterval):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// traced traces n samples, and returns the number of the next one to trace: the same number if the node changed.
func (x *sampling) traced(ctx context.Context, number, n int) (next int, err error) {
	scene, err := x.look(ctx, x.node)
	if err != nil || scene == nil {
		return number, err
	}
	if scene != x.scene {
		x.scene, x.sampler = scene, newSampler(scene, x.node, x.want.Seed)
	}
	var samples []sample
	query := inspect.NodeQuery{Kind: inspect.QueryTrace, Within: within(ctx, traceTimeout)}
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
	if same, err := x.isUnchanged(ctx, scene, x.node); err != nil || !same {
		return number, err
	}
	switch most := len(samples); {
	case len(answer.Traces) == 0 || len(answer.Traces) > most:
		return number, fmt.Errorf("%d traces of %d packets", len(answer.Traces), most)
	case len(answer.Traces) < most: // the node ran out of time
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
		if len(x.out.Wrong) < maxWrong {
			x.out.Wrong = append(x.out.Wrong, x.wrongSample(w, t))
		}
	case t.Passed:
		x.out.Allowed++
	default:
		x.out.Denied++
	}
}

// confirm repeats traces that differ, each time against the latest state, and counts them. It skips packets of pods
// that have ended, and gives up on a node that keeps changing.
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

// traceLater waits, then repeats the traces of packets whose pods are still the same. It returns nil samples if the
// node keeps changing.
func (x *sampling) traceLater(
	ctx context.Context, before *scene, packets []policy.Packet,
) ([]sample, []inspect.Trace, error) {
	for range maxUnsteady {
		select {
		case <-time.After(confirmingInterval):
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
		x.discard(x.scene)
		scene, err := x.look(ctx, x.node)
		if err != nil {
			return nil, nil, err
		}
		if scene == nil {
			continue
		}
		x.scene, x.sampler = scene, newSampler(scene, x.node, x.want.Seed)
		samples := []sample{}
		query := inspect.NodeQuery{Kind: inspect.QueryTrace, Within: within(ctx, traceTimeout)}
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
		if same, err := x.isUnchanged(ctx, scene, x.node); err != nil {
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

func (x *sampling) wrongSample(w *sample, t *inspect.Trace) inspect.WrongSample {
	t.Node = x.node
	out := inspect.WrongSample{
		Packet:   w.packet,
		From:     x.scene.name(w.packet.From),
		To:       x.scene.name(w.packet.To),
		Allowed:  w.allowed,
		Passed:   t.Passed,
		Policies: []string{},
		Trace:    *t,
	}
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
