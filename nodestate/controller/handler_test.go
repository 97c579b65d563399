package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	nmstatev1 "github.com/flowkeep/flowkeep/nodestate/api/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"
)

var errCrash = errors.New("the handler dies here")

// fakeAPI is an API server in memory: it refuses what is not as of the object's version, counts generations by the spec, and
// has handlers die before or after a write.
type fakeAPI struct {
	version  int
	nodes    map[string]*corev1.Node
	states   map[string]*nmstatev1.NodeNetworkState
	policies map[string]*nmstatev1.NodeNetworkConfigurationPolicy
	holder   string
	writes   map[string]int   // of nodes' specs, and of policies' statuses together as "policies"
	told     map[string]int   // of each policy's status
	sick     map[string]error // nodes whose agents fail
	die      func() (before, after bool)
	invalid  string // what no desired state may have in it
	limit    int    // how many bytes one may have, if there is a limit
}

func newFakeAPI() *fakeAPI {
	return &fakeAPI{nodes: map[string]*corev1.Node{}, states: map[string]*nmstatev1.NodeNetworkState{}, policies: map[string]*nmstatev1.NodeNetworkConfigurationPolicy{},
		writes: map[string]int{}, told: map[string]int{}, sick: map[string]error{}, die: func() (bool, bool) { return false, false }}
}

func (f *fakeAPI) stamp(m *metav1.ObjectMeta) {
	f.version++
	m.ResourceVersion = strconv.Itoa(f.version)
}

func (f *fakeAPI) addNode(name, current string) {
	f.nodes[name] = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	raw, err := yaml.YAMLToJSON([]byte(current))
	if err != nil {
		panic(err)
	}
	o := &nmstatev1.NodeNetworkState{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Generation: 1}}
	o.Spec.NodeName, o.Status.CurrentState = name, &nmstatev1.State{Raw: raw}
	f.stamp(&o.ObjectMeta)
	f.states[name] = o
	f.report(name, nil)
}

// report is the node's agent: it has enforced the object as it is, or failed to.
func (f *fakeAPI) report(name string, err error) {
	o := f.states[name].DeepCopy()
	c := metav1.Condition{Type: nmstatev1.ConditionInSync, Status: metav1.ConditionTrue, Reason: nmstatev1.ReasonInSync, ObservedGeneration: o.Generation}
	if err != nil {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, nmstatev1.ReasonFailing, err.Error()
	}
	o.Status.ObservedGeneration, o.Status.Conditions = o.Generation, []metav1.Condition{c}
	f.stamp(&o.ObjectMeta)
	f.states[name] = o
}

func (f *fakeAPI) setPolicy(name, spec string) {
	o := &nmstatev1.NodeNetworkConfigurationPolicy{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
	if old := f.policies[name]; old != nil {
		o = old.DeepCopy()
	}
	o.Spec = nmstatev1.NodeNetworkConfigurationPolicySpec{}
	if err := yaml.UnmarshalStrict([]byte(spec), &o.Spec); err != nil {
		panic(err)
	}
	o.Generation++
	f.stamp(&o.ObjectMeta)
	f.policies[name] = o
}

func (f *fakeAPI) write(stored, o metav1.Object, apply func()) error {
	before, after := f.die()
	if before {
		return errCrash
	}
	if stored == nil || reflect.ValueOf(stored).IsNil() || stored.GetResourceVersion() != o.GetResourceVersion() {
		return apierrors.NewConflict(schema.GroupResource{}, o.GetName(), errors.New("the object has been modified"))
	}
	apply()
	if after {
		return errCrash
	}
	return nil
}

func (f *fakeAPI) UpdateState(_ context.Context, o *nmstatev1.NodeNetworkState) (*nmstatev1.NodeNetworkState, error) {
	if d := o.Spec.DesiredState; f.invalid != "" && d != nil && strings.Contains(string(d.Raw), f.invalid) {
		return nil, apierrors.NewInvalid(schema.GroupKind{}, o.Name, field.ErrorList{field.Invalid(field.NewPath("spec"), strings.Repeat("ö", 5000), "no")})
	}
	if d := o.Spec.DesiredState; f.limit > 0 && d != nil && len(d.Raw) > f.limit {
		return nil, apierrors.NewRequestEntityTooLargeError("it is larger than may be")
	}
	old := f.states[o.Name]
	err := f.write(old, o, func() {
		o = o.DeepCopy()
		o.Status = old.Status
		o.Generation = old.Generation + 1
		f.stamp(&o.ObjectMeta)
		f.states[o.Name] = o
		f.writes[o.Name]++
	})
	return o, err
}

func (f *fakeAPI) UpdatePolicyStatus(_ context.Context, o *nmstatev1.NodeNetworkConfigurationPolicy) (*nmstatev1.NodeNetworkConfigurationPolicy, error) {
	old := f.policies[o.Name]
	err := f.write(old, o, func() {
		stored := old.DeepCopy()
		stored.Status = *o.Status.DeepCopy()
		f.stamp(&stored.ObjectMeta)
		f.policies[o.Name], o = stored, stored
		f.writes["policies"]++
		f.told[o.Name]++
	})
	return o, err
}

func (f *fakeAPI) NodeExists(_ context.Context, name string) (bool, error) {
	return f.nodes[name] != nil, nil
}
func (f *fakeAPI) Central(context.Context) (string, error) { return f.holder, nil }

func (f *fakeAPI) phase(policy, node string) nmstatev1.Phase {
	for _, e := range f.policies[policy].Status.Nodes {
		if e.Node == node {
			return e.Phase
		}
	}
	return ""
}

// view is a Cache: the API server as it was when the handler last looked.
type view struct {
	api      *fakeAPI
	node     string // empty: all
	nodes    []*corev1.Node
	states   map[string]*nmstatev1.NodeNetworkState
	policies []*nmstatev1.NodeNetworkConfigurationPolicy
}

func (v *view) refresh() {
	v.nodes, v.policies, v.states = nil, nil, map[string]*nmstatev1.NodeNetworkState{}
	for name, n := range v.api.nodes {
		if v.node == "" || v.node == name {
			v.nodes = append(v.nodes, n)
			v.states[name] = v.api.states[name]
		}
	}
	for _, p := range v.api.policies {
		v.policies = append(v.policies, p)
	}
}

func (v *view) Nodes() []*corev1.Node                                 { return v.nodes }
func (v *view) State(name string) *nmstatev1.NodeNetworkState         { return v.states[name] }
func (v *view) Policies() []*nmstatev1.NodeNetworkConfigurationPolicy { return v.policies }

// actor is a handler and what it sees.
type actor struct {
	*Handler
	view *view
}

func (f *fakeAPI) actor(node string) *actor {
	v := &view{api: f, node: node}
	v.refresh()
	cfg := Config{Cache: v, Objects: f, Central: node == "", Now: func() time.Time { return time.Unix(1e9, 0) }, Log: slog.New(slog.DiscardHandler)}
	return &actor{New(cfg), v}
}

func (a *actor) pass(t testing.TB) (crashed bool) {
	t.Helper()
	nodes := map[string]bool{}
	for _, n := range a.view.nodes {
		nodes[n.Name] = true
	}
	_, err := a.Pass(t.Context(), nodes)
	if err != nil && !errors.Is(err, errCrash) && !errors.Is(err, ErrStandsBack) {
		t.Fatal(err)
	}
	return errors.Is(err, errCrash)
}

const twoNICs = `{interfaces: [{name: eth0, type: ethernet, mtu: 1500}, {name: eth1, type: ethernet, mtu: 1500}]}`

func mtuPolicy(mtu int, more string) string {
	return fmt.Sprintf(`{match: [{name: eth1}], desiredState: {interfaces: [{mtu: %d}]}%s}`, mtu, more)
}

func (f *fakeAPI) wants(node, text string) bool {
	s := f.states[node].Spec.DesiredState
	return s != nil && strings.Contains(string(s.Raw), text)
}

// changing are the nodes that have a desire that their agents have not brought about.
func (f *fakeAPI) changing() (names []string) {
	for name, o := range f.states {
		if o.Status.ObservedGeneration < o.Generation || o.Status.Conditions[0].Status != metav1.ConditionTrue {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// TestRollOut plays a roll-out with handlers that see late, lose races and die before and after any write. There are never more
// nodes changing than maxUnavailable says, nor does any other begin after one has failed; and it comes to its end.
func TestRollOut(t *testing.T) {
	for _, central := range []bool{false, true} {
		t.Run(fmt.Sprintf("central=%v", central), func(t *testing.T) {
			for seed := range uint64(60) {
				play(t, seed, central, "")
				play(t, seed, central, "node3")
			}
		})
	}
}

func play(t *testing.T, seed uint64, central bool, bad string) {
	t.Helper()
	most := 1 + int(seed%3)
	g := newGame(t, seed, central, most)
	f := g.fakeAPI
	g.until(func() bool { return g.all("1400") })
	f.setPolicy("p", mtuPolicy(1450, fmt.Sprintf(", maxUnavailable: %d", most)))
	if bad == "" {
		g.until(func() bool { return g.all("1450") })
		return
	}
	g.bad = bad
	g.until(func() bool { return f.phase("p", bad) == nmstatev1.PhaseFailing })
	allowed := map[string]bool{}
	for name := range f.states {
		allowed[name] = f.wants(name, "1450") || f.phase("p", name) == nmstatev1.PhaseApplying
	}
	for range 300 {
		g.step()
		for name := range f.states {
			if f.wants(name, "1450") && !allowed[name] {
				t.Fatalf("seed %d: %s changed after %s had failed", seed, name, bad)
			}
		}
	}
	g.bad = ""
	f.setPolicy("p", mtuPolicy(1460, fmt.Sprintf(", maxUnavailable: %d", most)))
	g.until(func() bool { return g.all("1460") })
}

type game struct {
	*testing.T
	*fakeAPI
	r       *rand.Rand
	seed    uint64
	most    int
	central bool
	bad     string
	actors  map[string]*actor
	dies    map[string]int // nodes that do nothing any more after so many steps
	steps   int
}

// newGame has six nodes and a policy for all of them, with an MTU of 1400.
func newGame(t *testing.T, seed uint64, central bool, most int) *game {
	r := rand.New(rand.NewPCG(seed, 7))
	f := newFakeAPI()
	for n := range 6 {
		f.addNode(fmt.Sprintf("node%d", n), twoNICs)
	}
	f.setPolicy("p", mtuPolicy(1400, fmt.Sprintf(", maxUnavailable: %d", most)))
	f.die = func() (bool, bool) { return r.IntN(12) == 0, r.IntN(12) == 0 }
	return &game{T: t, fakeAPI: f, r: r, seed: seed, most: most, central: central, actors: map[string]*actor{}, dies: map[string]int{}}
}

func (g *game) dead(name string) bool {
	after, mortal := g.dies[name]
	return mortal && g.steps >= after
}

// ready is what Kubernetes says of a node.
func (f *fakeAPI) ready(name string, status corev1.ConditionStatus) {
	n := f.nodes[name].DeepCopy()
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}
	f.nodes[name] = n
}

// all: the nodes have it, and the policy's status says so.
func (g *game) all(text string) bool {
	for name := range g.states {
		if !g.wants(name, text) || g.phase("p", name) != nmstatev1.PhaseApplied {
			return false
		}
	}
	return true
}

// allLive is all, but for those that die.
func (g *game) allLive(text string) bool {
	for name := range g.states {
		if _, mortal := g.dies[name]; !mortal && (!g.wants(name, text) || g.phase("p", name) != nmstatev1.PhaseApplied) {
			return false
		}
	}
	return true
}

func (g *game) until(done func() bool) {
	g.Helper()
	for range 20000 {
		if done() {
			return
		}
		g.step()
	}
	g.Fatalf("seed %d: it does not end: %v, %+v", g.seed, g.changing(), g.policies["p"].Status.Nodes)
}

func (g *game) step() {
	g.Helper()
	g.steps++
	node := fmt.Sprintf("node%d", g.r.IntN(len(g.nodes)))
	who := node
	if g.dead(node) {
		return
	}
	if g.central {
		who = ""
	}
	if g.actors[who] == nil {
		g.actors[who] = g.actor(who)
		g.actors[who].Now = func() time.Time { return time.Unix(1e9, 0).Add(time.Duration(g.steps) * 50 * time.Millisecond) }
		if g.central && g.seed%2 == 0 {
			g.actors[who].Patience = patience
		}
	}
	switch g.r.IntN(4) {
	case 0:
		g.actors[who].view.refresh()
	case 1, 2:
		if g.actors[who].pass(g.T) {
			delete(g.actors, who)
		}
	case 3:
		if o := g.states[node]; node == g.bad && g.wants(node, "1450") {
			if o.Status.Conditions[0].Reason != nmstatev1.ReasonFailing {
				g.report(node, errors.New("no carrier"))
			}
		} else if o.Status.ObservedGeneration < o.Generation {
			g.report(node, nil)
		}
	}
	if changing := g.changing(); len(changing) > g.most {
		g.Fatalf("seed %d: %v are changing, of which there may be %d", g.seed, changing, g.most)
	}
}

// settle has all handlers and agents do what they do until nothing is written any more.
func settle(t testing.TB, f *fakeAPI, actors ...*actor) {
	t.Helper()
	for range 200 {
		before := f.version
		for _, a := range actors {
			a.view.refresh()
			a.pass(t)
		}
		for name, o := range f.states {
			if o.Status.ObservedGeneration < o.Generation {
				f.report(name, f.sick[name])
			}
		}
		if f.version == before {
			return
		}
	}
	t.Fatal("it does not come to rest")
}

// TestOneWriteANodeAndChange also holds that idle handlers, and new ones, write nothing.
func TestOneWriteANodeAndChange(t *testing.T) {
	for _, central := range []bool{false, true} {
		f := newFakeAPI()
		var actors []*actor
		for n := range 8 {
			name := fmt.Sprintf("node%d", n)
			f.addNode(name, twoNICs)
			if !central {
				actors = append(actors, f.actor(name))
			}
		}
		if central {
			actors = append(actors, f.actor(""))
		}
		for n := range 5 {
			f.setPolicy(fmt.Sprintf("p%d", n), fmt.Sprintf(`{match: [{name: eth1}], desiredState: {interfaces: [{x%d: 1}]}}`, n))
			settle(t, f, actors...)
			for name := range f.states {
				if f.writes[name] != n+1 {
					t.Errorf("central %v: %s was written %d times for %d changes", central, name, f.writes[name], n+1)
				}
			}
		}
		version := f.version
		for name := range f.nodes {
			settle(t, f, f.actor(name))
		}
		settle(t, f, f.actor(""))
		if f.version != version {
			t.Errorf("central %v: new handlers wrote %d times", central, f.version-version)
		}
	}
}

// TestBrokenPolicyHoldsNobodyElseUp: the nodes that wait with one policy get what others want, and keep what they had of it.
func TestBrokenPolicyHoldsNobodyElseUp(t *testing.T) {
	f := newFakeAPI()
	for n := range 4 {
		f.addNode(fmt.Sprintf("node%d", n), twoNICs)
	}
	f.setPolicy("p", mtuPolicy(1400, ", maxUnavailable: 1"))
	a := f.actor("")
	settle(t, f, a)
	f.setPolicy("p", mtuPolicy(1450, ", maxUnavailable: 1"))
	a.view.refresh()
	a.pass(t)
	f.sick["node0"] = errors.New("no carrier")
	settle(t, f, a)
	f.setPolicy("q", `{desiredState: {interfaces: [{name: eth0, mtu: 1300}, {name: eth1, z: 1}]}}`)
	settle(t, f, a)
	for name := range f.states {
		if !f.wants(name, "1300") || f.wants(name, "1450") != (name == "node0") || f.wants(name, "1400") == (name == "node0") {
			t.Errorf("%s: %s", name, f.states[name].Spec.DesiredState.Raw)
		}
	}
	if got := f.phase("p", "node2"); got != nmstatev1.PhaseWaiting {
		t.Error(got)
	}
}

// TestNodesThatLeft: policies' statuses don't keep nodes for ever that are no more, where nobody waits for them either.
func TestNodesThatLeft(t *testing.T) {
	f := newFakeAPI()
	var actors []*actor
	for n := range 6 {
		f.addNode(fmt.Sprintf("node%d", n), twoNICs)
		actors = append(actors, f.actor(fmt.Sprintf("node%d", n)))
	}
	f.setPolicy("p", mtuPolicy(1400, ""))
	settle(t, f, actors...)
	for n := 3; n < 6; n++ {
		delete(f.nodes, fmt.Sprintf("node%d", n))
		delete(f.states, fmt.Sprintf("node%d", n))
	}
	now := time.Unix(1e9, 0)
	for mtu := range 3 {
		now = now.Add(time.Hour)
		for _, a := range actors[:3] {
			a.Now = func() time.Time { return now }
		}
		f.setPolicy("p", mtuPolicy(1401+mtu, ""))
		settle(t, f, actors[:3]...)
	}
	if nodes := f.policies["p"].Status.Nodes; len(nodes) != 3 {
		t.Errorf("%v", nodes)
	}
}

// TestFurtherAttemptsAreNoNews: a node that fails the same way again and again costs no writes.
func TestFurtherAttemptsAreNoNews(t *testing.T) {
	f := newFakeAPI()
	f.addNode("node1", twoNICs)
	f.setPolicy("p", mtuPolicy(1400, ""))
	a := f.actor("node1")
	f.sick["node1"] = errors.New("attempt 1: no carrier")
	settle(t, f, a)
	before := f.writes["policies"]
	for n := 1; n < 5; n++ {
		f.states["node1"].Status.Attempt = int32(n)
		f.report("node1", fmt.Errorf("attempt %d: no carrier", n))
		a.view.refresh()
		a.pass(t)
	}
	if got := f.policies["p"].Status.Nodes[0].Message; got != "no carrier" || f.writes["policies"] > before+1 {
		t.Errorf("%q, %d writes", got, f.writes["policies"]-before)
	}
}

func TestWhatStopsARollOutGoes(t *testing.T) {
	stuck := func() (*fakeAPI, []*actor) {
		f := newFakeAPI()
		var actors []*actor
		for n := range 3 {
			f.addNode(fmt.Sprintf("node%d", n), twoNICs)
			actors = append(actors, f.actor(fmt.Sprintf("node%d", n)))
		}
		f.setPolicy("p", mtuPolicy(1400, ", maxUnavailable: 1"))
		actors[0].view.refresh()
		actors[0].pass(t)
		f.report("node0", errors.New("no carrier"))
		settle(t, f, actors...)
		if f.wants("node1", "1400") || f.wants("node2", "1400") || f.phase("p", "node1") != nmstatev1.PhaseWaiting {
			t.Fatal("the roll-out did not stop")
		}
		return f, actors
	}
	t.Run("the node recovers", func(t *testing.T) {
		f, actors := stuck()
		f.report("node0", nil)
		settle(t, f, actors...)
		if !f.wants("node2", "1400") {
			t.Error("node2 waits still")
		}
	})
	t.Run("the node is no more", func(t *testing.T) {
		f, actors := stuck()
		delete(f.nodes, "node0")
		delete(f.states, "node0")
		later := func() time.Time { return time.Unix(1e9+3600, 0) }
		actors[1].Now, actors[2].Now = later, later
		settle(t, f, actors[1:]...)
		if !f.wants("node2", "1400") || f.phase("p", "node0") != "" {
			t.Error("node2 waits still")
		}
	})
	t.Run("the node is left to itself", func(t *testing.T) {
		f, actors := stuck()
		no := false
		o := f.states["node0"].DeepCopy()
		o.Spec.Managed = &no
		o.Generation++
		f.stamp(&o.ObjectMeta)
		f.states["node0"] = o
		settle(t, f, actors...)
		if !f.wants("node2", "1400") || f.phase("p", "node0") != nmstatev1.PhaseUnmanaged {
			t.Error("node2 waits still")
		}
	})
}

func TestPass_WhileAnotherHandles(t *testing.T) {
	f := newFakeAPI()
	f.addNode("node1", twoNICs)
	f.setPolicy("p", mtuPolicy(1400, ""))
	a := f.actor("node1")
	f.holder = "central"
	again, err := a.Pass(t.Context(), map[string]bool{"node1": true})
	if !errors.Is(err, ErrStandsBack) || !again["node1"] || f.writes["node1"] != 0 || f.writes["policies"] != 0 {
		t.Errorf("%v, %v, %v", again, err, f.writes)
	}
	f.holder = ""
	settle(t, f, a)
	if f.writes["node1"] != 1 {
		t.Error("it did not go on")
	}
}

// TestInterfaceComesLater: nobody edits anything; a NIC is plugged in, and pulled again.
func TestInterfaceComesLater(t *testing.T) {
	f := newFakeAPI()
	f.addNode("node1", `{interfaces: [{name: eth0, type: ethernet}]}`)
	f.setPolicy("p", mtuPolicy(1400, ""))
	a := f.actor("node1")
	settle(t, f, a)
	if f.phase("p", "node1") != nmstatev1.PhaseNoMatch || f.writes["node1"] != 0 {
		t.Fatal(f.phase("p", "node1"))
	}
	see := func(current string) {
		o := f.states["node1"].DeepCopy()
		o.Status.CurrentState = &nmstatev1.State{Raw: []byte(current)}
		f.stamp(&o.ObjectMeta)
		f.states["node1"] = o
		settle(t, f, a)
	}
	see(`{"interfaces": [{"name": "eth0"}, {"name": "eth1"}]}`)
	if f.phase("p", "node1") != nmstatev1.PhaseApplied || !f.wants("node1", "1400") {
		t.Error(f.phase("p", "node1"))
	}
	see(`{"interfaces": [{"name": "eth0"}]}`)
	if f.phase("p", "node1") != nmstatev1.PhaseNoMatch || f.states["node1"].Spec.DesiredState != nil || f.states["node1"].Spec.FromPolicies != nil {
		t.Error(f.phase("p", "node1"), f.states["node1"].Spec)
	}
}

func TestPercentages(t *testing.T) {
	f := newFakeAPI()
	for n := range 7 {
		f.addNode(fmt.Sprintf("node%d", n), twoNICs)
	}
	f.setPolicy("p", mtuPolicy(1400, ""))
	a := f.actor("")
	settle(t, f, a)
	for most, want := range map[intstr.IntOrString]int{intstr.FromString("50%"): 4, intstr.FromString("1%"): 1, intstr.FromInt32(0): 1, intstr.FromInt32(3): 3, intstr.FromString("100%"): 7} {
		mtu := f.version
		f.setPolicy("p", mtuPolicy(mtu, ", maxUnavailable: "+most.String()))
		a.view.refresh()
		a.pass(t)
		if got := len(f.changing()); got != want {
			t.Errorf("%s: %d nodes change at once, not %d", most.String(), got, want)
		}
		settle(t, f, a)
	}
}
