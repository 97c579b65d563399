package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	nmstatev1 "github.com/flowkeep/flowkeep/nodestate/api/v1"
	"github.com/flowkeep/flowkeep/nodestate/nodeconfig"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// Objects is the API server. Updates fail with a conflict when the object is another by now.
type Objects interface {
	UpdateState(ctx context.Context, o *nmstatev1.NodeNetworkState) (*nmstatev1.NodeNetworkState, error)
	UpdatePolicyStatus(ctx context.Context, o *nmstatev1.NodeNetworkConfigurationPolicy) (*nmstatev1.NodeNetworkConfigurationPolicy, error)
	// NodeExists asks for a Node that this handler does not watch.
	NodeExists(ctx context.Context, name string) (bool, error)
	// Central names the instance that handles all nodes, or is empty.
	Central(ctx context.Context) (string, error)
}

// Cache is what is known of the API server's objects. They are not to be changed.
type Cache interface {
	Nodes() []*corev1.Node // those to handle
	State(node string) *nmstatev1.NodeNetworkState
	Policies() []*nmstatev1.NodeNetworkConfigurationPolicy
}

// Config is what a handler needs.
type Config struct {
	Cache   Cache
	Objects Objects
	// Central: this handler is for all nodes, and Cache has all there are.
	Central bool
	// Patience is how long a report to a policy may wait for reports of other nodes, to share one update.
	Patience time.Duration
	Now      func() time.Time
	Log      *slog.Logger
	Metrics  *Metrics
}

// Handler brings policies to nodes. One goroutine uses it. What it keeps from one pass to the next only saves work: a new
// one goes on where another ended.
type Handler struct {
	Config
	policies map[types.UID]*policy
	states   map[string]*state
	waiting  map[string][]string // nodes by the policy for which they wait
	asked    map[string]time.Time
	refused  map[string]*refusal // by node
	pending  map[types.UID]pending
	now      time.Time // when the pass began: what is due does not change while it writes
}

// pending is a report that is not in the policy's status yet.
type pending struct {
	report *nodeconfig.Report
	since  time.Time
}

// policy is an object and what was made of it.
type policy struct {
	object   *nmstatev1.NodeNetworkConfigurationPolicy
	policy   *nodeconfig.Policy
	standing nodeconfig.Standing
}

// state is an object, what was made of it, and what is remembered of the node.
type state struct {
	object *nmstatev1.NodeNetworkState
	state  *nodeconfig.State
	memory *nodeconfig.Memory
}

// after is the same node with another object.
func (s *state) after(o *nmstatev1.NodeNetworkState) *state {
	if s == nil {
		s = &state{memory: nodeconfig.NewMemory()}
	}
	return &state{o, s.memory.ReadState(o), s.memory}
}

// New makes a handler.
func New(cfg Config) *Handler {
	return &Handler{Config: cfg, policies: map[types.UID]*policy{}, states: map[string]*state{}, waiting: map[string][]string{}, asked: map[string]time.Time{}, refused: map[string]*refusal{}, pending: map[types.UID]pending{}}
}

// ErrStandsBack is returned while another instance handles all nodes.
var ErrStandsBack = errors.New("another instance handles all nodes")

// Waiting returns the nodes that wait for their turn with a policy.
func (h *Handler) Waiting(policy string) []string { return h.waiting[policy] }

// Pass decides for these nodes and writes the outcome: first policies' statuses, with the turns that nodes take, then
// nodes. It returns the nodes for which a write failed, with the error; they need another pass.
func (h *Handler) Pass(ctx context.Context, nodes map[string]bool) (again map[string]bool, err error) {
	h.now = h.Now()
	defer h.Metrics.pass(h.now)
	round := h.round()
	if h.Central {
		round.Forget(h.exists())
	}
	list := h.Cache.Nodes()
	slices.SortFunc(list, func(a, b *corev1.Node) int { return cmp.Compare(a.Name, b.Name) })
	for _, n := range list {
		if nodes[n.Name] {
			h.decide(round, n)
		}
	}
	if h.Central {
		h.passTurnsOn(round, list)
	}
	h.rememberWaiting(round)
	if err := h.mayWrite(ctx, round); err != nil {
		return nodes, err
	}
	again = map[string]bool{}
	h.releaseIdle(round, again)
	unwritten, err := h.tellPolicies(ctx, round, again)
	err = errors.Join(err, h.writeNodes(ctx, round, unwritten, again))
	gone, goneErr := h.forgetBlockers(ctx, round)
	maps.Copy(again, gone)
	return again, errors.Join(err, goneErr)
}

func (h *Handler) decide(round *nodeconfig.Round, n *corev1.Node) nodeconfig.Decision {
	node, begin := h.nodeOf(n), time.Now()
	defer h.Metrics.decided(begin)
	return round.Decide(node)
}

// passTurnsOn decides for nodes that wait for turns that are given back now, so that one update has both.
func (h *Handler) passTurnsOn(round *nodeconfig.Round, list []*corev1.Node) {
	byName := h.byName()
	for _, name := range slices.Sorted(maps.Keys(round.Reports)) {
		if !round.GivesBack(name) || h.tellAt(round, byName[name]).After(h.now) {
			continue
		}
		for _, n := range list {
			if _, decided := round.Decisions[n.Name]; decided || !slices.Contains(h.waiting[name], n.Name) {
				continue
			}
			if d := h.decide(round, n); len(d.Blockers[name]) > 0 {
				break // there is no turn left for those after it either
			}
		}
	}
}

func (h *Handler) byName() map[string]*policy {
	found := make(map[string]*policy, len(h.policies))
	for _, p := range h.policies {
		found[p.object.Name] = p
	}
	return found
}

// tellAt returns the time at which a policy's status is due.
func (h *Handler) tellAt(round *nodeconfig.Round, p *policy) time.Time {
	return round.TellAt(p.object.Name, h.untoldSince(p), h.Patience)
}

func (h *Handler) untoldSince(p *policy) time.Time {
	if u, ok := h.pending[p.object.UID]; ok {
		return u.since
	}
	return h.now
}

// Due returns the time at which the next pending report is due, by a pass for no nodes; ok is false if there is none.
func (h *Handler) Due() (at time.Time, ok bool) {
	for _, u := range h.pending {
		if due := u.since.Add(h.Patience); !ok || due.Before(at) {
			at, ok = due, true
		}
	}
	return at, ok
}

// round takes the objects as they are, and what was made of those that are as they were.
func (h *Handler) round() *nodeconfig.Round {
	var policies []*nodeconfig.Policy
	standings := map[string]nodeconfig.Standing{}
	live := map[types.UID]*policy{}
	for _, o := range h.Cache.Policies() {
		if o.DeletionTimestamp != nil {
			continue // gone but for a finalizer
		}
		p := h.policies[o.UID]
		switch {
		case p == nil || p.object.Generation < o.Generation:
			p = &policy{o, nodeconfig.NewPolicy(o), nodeconfig.StandingOf(o)}
		case newer(o, p.object):
			p = &policy{o, p.policy, nodeconfig.StandingOf(o)}
		}
		live[o.UID] = p
		policies = append(policies, p.policy)
		standings[o.Name] = p.standing
	}
	h.policies = live
	round := nodeconfig.NewRound(policies, standings)
	for uid, u := range h.pending {
		if p := live[uid]; p != nil {
			round.Resume(p.object.Name, u.report)
		} else {
			delete(h.pending, uid)
		}
	}
	return round
}

func (h *Handler) stateOf(node string) *nodeconfig.State {
	o := h.Cache.State(node)
	if o == nil {
		delete(h.states, node)
		return nodeconfig.NoState
	}
	s := h.states[node]
	if s == nil || s.object.UID != o.UID || newer(o, s.object) {
		s = s.after(o)
		h.states[node] = s
	}
	return s.state
}

// newer reports whether a watched object is newer than one that the API server returned.
func newer(watched, known metav1.Object) bool {
	c, err := resourceversion.CompareResourceVersion(watched.GetResourceVersion(), known.GetResourceVersion())
	return err != nil || c > 0
}

func (h *Handler) exists() func(string) bool {
	nodes := h.Cache.Nodes()
	names := make(map[string]bool, len(nodes))
	for _, n := range nodes {
		names[n.Name] = true
	}
	for name := range h.states {
		if !names[name] {
			delete(h.states, name)
			delete(h.refused, name)
		}
	}
	return func(name string) bool { return names[name] }
}

// rememberWaiting notes for which policies' statuses nodes are to be decided again.
func (h *Handler) rememberWaiting(round *nodeconfig.Round) {
	for name, nodes := range h.waiting {
		h.waiting[name] = slices.DeleteFunc(nodes, func(n string) bool { _, decided := round.Decisions[n]; return decided })
		if len(h.waiting[name]) == 0 {
			delete(h.waiting, name)
		}
	}
	for _, node := range slices.Sorted(maps.Keys(round.Decisions)) {
		for name := range round.Decisions[node].Blockers {
			h.waiting[name] = append(h.waiting[name], node)
		}
	}
	h.Metrics.waits(len(h.waiting))
}

// mayWrite asks, if there is something to write, whether an instance for all nodes is there.
func (h *Handler) mayWrite(ctx context.Context, round *nodeconfig.Round) error {
	if h.Central || !writes(round) {
		return nil
	}
	holder, err := h.Objects.Central(ctx)
	if err != nil {
		return fmt.Errorf("ask whether another instance handles all nodes: %w", err)
	}
	if holder != "" {
		return fmt.Errorf("%w: %s", ErrStandsBack, holder)
	}
	return nil
}

func writes(round *nodeconfig.Round) bool {
	if len(round.Reports) > 0 {
		return true
	}
	for _, d := range round.Decisions {
		if d.Write != nil {
			return true
		}
	}
	return false
}

// tellPolicies writes policies' statuses that are due, and returns the names of those that could not be written.
func (h *Handler) tellPolicies(
	ctx context.Context, round *nodeconfig.Round, again map[string]bool,
) (unwritten map[string]bool, failed error) {
	unwritten = map[string]bool{}
	byName := h.byName()
	for _, name := range slices.Sorted(maps.Keys(round.Reports)) {
		report, p := round.Reports[name], byName[name]
		if h.tellAt(round, p).After(h.now) {
			h.pending[p.object.UID] = pending{report, h.untoldSince(p)}
			continue
		}
		delete(h.pending, p.object.UID)
		status, changed := report.Update(p.object, metav1.NewTime(h.Now().Truncate(time.Second)))
		if !changed {
			continue
		}
		o := *p.object
		o.Status = status
		stored, err := h.Objects.UpdatePolicyStatus(ctx, &o)
		h.Metrics.wrote("policy", err)
		if err != nil {
			unwritten[name], failed = true, cmp.Or(failed, wrapped("update the status of policy "+name, err))
			for _, node := range report.Nodes() {
				again[node] = true
			}
			continue
		}
		h.policies[p.object.UID] = &policy{stored, p.policy, nodeconfig.StandingOf(stored)}
	}
	return unwritten, failed
}

// writeNodes writes the desires of nodes whose turns are all stored.
func (h *Handler) writeNodes(
	ctx context.Context, round *nodeconfig.Round, unwritten, again map[string]bool,
) (failed error) {
	for _, node := range slices.Sorted(maps.Keys(round.Decisions)) {
		d := round.Decisions[node]
		if d.Write == nil || slices.ContainsFunc(d.Claims, func(policy string) bool { return unwritten[policy] }) {
			continue
		}
		o := *h.states[node].object
		d.Write.Set(&o.Spec)
		stored, err := h.Objects.UpdateState(ctx, &o)
		h.Metrics.wrote("node", err)
		if refuses(err) && h.refuse(node, d.Claims, err) {
			again[node] = true // to find the policy at fault
			continue
		}
		if err != nil {
			failed = cmp.Or(failed, wrapped("write the desired state of node "+node, err))
			again[node] = true
			continue
		}
		h.Log.Info("wrote a node's desired state", "node", node, "policies", len(d.Claims), "generation", stored.Generation)
		h.states[node] = h.states[node].after(stored)
		h.accepted(node, stored.Generation, again)
	}
	return failed
}

// wrapped is nil for a conflict: the newer object is on its way, and the pass that follows goes by it.
func wrapped(what string, err error) error {
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}

// askAgain is how long a node that others wait for is taken to exist.
const askAgain = time.Minute

// forgetBlockers takes nodes that are no more out of the way of those that wait for them. A handler of all nodes has done so.
func (h *Handler) forgetBlockers(ctx context.Context, round *nodeconfig.Round) (again map[string]bool, failed error) {
	again = map[string]bool{}
	if h.Central {
		return again, nil
	}
	gone := map[string]bool{}
	for node, d := range round.Decisions {
		for _, blockers := range d.Blockers {
			for _, name := range blockers {
				isGone, err := h.gone(ctx, name)
				failed = cmp.Or(failed, err)
				if isGone {
					gone[name], again[node] = true, true
				}
			}
		}
	}
	if name := h.askedLeast(round); name != "" {
		isGone, err := h.gone(ctx, name)
		failed = cmp.Or(failed, err)
		if isGone {
			gone[name] = true
		}
	}
	if len(gone) == 0 {
		return again, failed
	}
	after := h.round()
	after.Forget(func(node string) bool { return !gone[node] })
	_, err := h.tellPolicies(ctx, after, again)
	return again, errors.Join(failed, err)
}

// gone reports whether the node was deleted, unless it was queried recently.
func (h *Handler) gone(ctx context.Context, node string) (bool, error) {
	if h.Now().Sub(h.asked[node]) < askAgain {
		return false, nil
	}
	h.asked[node] = h.Now()
	there, err := h.Objects.NodeExists(ctx, node)
	return err == nil && !there, err
}

// askedLeast returns the node in policies' pending statuses whose last query is oldest: one at a time is checked, so
// that statuses keep no nodes that were deleted long ago.
func (h *Handler) askedLeast(round *nodeconfig.Round) (least string) {
	for policy := range round.Reports {
		for _, node := range round.Standings[policy].Nodes() {
			_, decided := round.Decisions[node]
			if !decided && (least == "" || cmp.Or(h.asked[node].Compare(h.asked[least]), cmp.Compare(node, least)) < 0) {
				least = node
			}
		}
	}
	return least
}
