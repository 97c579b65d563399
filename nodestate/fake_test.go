package nodestate

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/api/wellknown"
	"github.com/flowkeep/flowkeep/internal/process"
	v1 "github.com/flowkeep/flowkeep/nodestate/api/v1"
	"github.com/flowkeep/flowkeep/nodestate/nmstate"
	"github.com/prometheus/client_golang/prometheus"
)

// fakeNode is a Backend in memory that holds what it is told, and fails as tests say.
type fakeNode struct {
	mu       sync.Mutex
	state    nmstate.State
	showErr  error
	hangs    bool          // reading it does not end by itself
	applyErr error         // before anything is changed
	halfway  error         // after the change began
	ignores  bool          // takes changes and does not make them
	verifies bool          // compares the node with the desired state itself
	blind    bool          // sees nothing to change
	slow     time.Duration // how long a change takes
	rollErr  error
	// repairErr is the error of a change that is continued.
	repairErr error
	learns    bool // something of a change as it is made
	undone    json.RawMessage
	applied   []time.Time
	addresses []netip.Addr // of the Node, as the last order had them
	repaired  atomic.Int32 // times that a change was continued

	afterCommit func()
	open        atomic.Bool // a change is

	shown, committed, rolled atomic.Int32
}

func newNode(t *testing.T) *fakeNode {
	return &fakeNode{state: parse(t, `{interfaces: [{name: eth0, type: ethernet, state: up, mtu: 1500}, {name: dummy0, type: dummy, state: up, mtu: 1500}]}`)}
}

func parse(t *testing.T, text string) nmstate.State {
	t.Helper()
	s, err := nmstate.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (n *fakeNode) Name() string           { return "fake" }
func (n *fakeNode) Capabilities() []string { return []string{"dummy", "ethernet"} }

func (n *fakeNode) Show(ctx context.Context) (nmstate.State, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.hangs {
		n.mu.Unlock()
		<-ctx.Done()
		n.mu.Lock()
		return nil, ctx.Err()
	}
	n.shown.Add(1)
	return nmstate.Canonical(n.state), n.showErr
}

func (n *fakeNode) Apply(ctx context.Context, desired nmstate.State, order Order) (Change, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if order.Since != nil {
		return n.repair(desired, order)
	}
	n.applied = append(n.applied, time.Now())
	if order.Addresses != nil {
		n.addresses = order.Addresses(ctx)
	}
	c := Change{Backend: "fake"}
	if n.applyErr != nil {
		return c, n.applyErr
	}
	for _, d := range nmstate.Diff(desired, n.state) {
		c.Steps = append(c.Steps, d.String())
	}
	if len(c.Steps) == 0 || n.blind {
		return Change{Backend: "fake"}, nil
	}
	var err error
	if c.Before, err = json.Marshal(n.state); err != nil {
		return c, err
	}
	if err := order.Journal(c); err != nil {
		return c, err
	}
	n.open.Store(true)
	n.mu.Unlock()
	select {
	case <-ctx.Done():
		err = ctx.Err()
	case <-time.After(n.slow):
	}
	n.mu.Lock()
	if !n.ignores {
		n.state = nmstate.Overlay(n.state, desired)
	}
	if n.learns {
		before := nmstate.State{}
		err = errors.Join(err, json.Unmarshal(c.Before, &before))
		before["learned"] = true
		c.Before, _ = json.Marshal(before)
	}
	c.Verified = n.verifies
	return c, errors.Join(err, n.halfway)
}

// repair continues an open change. The lock is held.
func (n *fakeNode) repair(desired nmstate.State, order Order) (Change, error) {
	c := *order.Since
	missing := nmstate.Diff(desired, n.state)
	if len(missing) == 0 || n.blind || n.ignores {
		return c, nil
	}
	if n.repairErr != nil {
		return c, n.repairErr
	}
	n.repaired.Add(1)
	c.Steps = slices.Clone(c.Steps)
	for _, d := range missing {
		c.Steps = append(c.Steps, "again "+d.String())
	}
	if err := order.Journal(c); err != nil {
		return c, err
	}
	n.state = nmstate.Overlay(n.state, desired)
	return c, nil
}

func (n *fakeNode) Commit(context.Context, Change) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.committed.Add(1)
	n.open.Store(false)
	if n.afterCommit != nil {
		n.afterCommit()
	}
	return nil
}

func (n *fakeNode) Rollback(ctx context.Context, c Change) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := errors.Join(n.rollErr, ctx.Err()); err != nil {
		return err
	}
	n.rolled.Add(1)
	n.open.Store(false)
	n.undone = c.Before
	return json.Unmarshal(c.Before, &n.state)
}

func (n *fakeNode) set(change func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	change()
}

func (n *fakeNode) mtu(t *testing.T, name string) int64 {
	t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	i, ok := nmstate.Canonical(n.state).Interface(name)
	if !ok {
		return 0
	}
	mtu, _ := i["mtu"].(int64)
	return mtu
}

// times are when changes began.
func (n *fakeNode) times() []time.Time {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.applied)
}

func (n *fakeNode) has(name string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	_, there := n.state.Interface(name)
	return there
}

func (n *fakeNode) attempts() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.applied)
}

// fakeAPI holds the node's object as an API server would.
type fakeAPI struct {
	mu      sync.Mutex
	object  *Object
	node    *Node // nil: there is none
	away    error
	version int
	uid     int
	writes  int
	asked   int
	told    []v1.NodeNetworkStateStatus
	events  []string
	changed chan struct{}
}

func newAPI() *fakeAPI { return &fakeAPI{changed: make(chan struct{}, 1)} }

func (a *fakeAPI) Get(context.Context) (*Object, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked++
	if a.object == nil {
		return nil, a.away
	}
	o := *a.object
	o.Status = *a.object.Status.DeepCopy()
	return &o, nil
}

func (a *fakeAPI) Node(context.Context) (*Node, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.node, nil
}

func (a *fakeAPI) Own(_ context.Context, _ *Object, node Node) (*Object, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.object.Owner = node.UID
	now := *a.object
	return &now, a.away
}

func (a *fakeAPI) Create(_ context.Context, _ *Node, status v1.NodeNetworkStateStatus) (*Object, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.away != nil {
		return nil, a.away
	}
	if a.object != nil {
		return nil, ErrStale
	}
	a.make(nil)
	a.report(status)
	return a.object, nil
}

func (a *fakeAPI) make(desired nmstate.State) {
	a.uid++
	a.object = &Object{Name: "node1", UID: fmt.Sprint("uid", a.uid), Generation: 1, Managed: true}
	a.desire(desired)
}

func (a *fakeAPI) desire(desired nmstate.State) {
	text, err := json.Marshal(desired)
	if err != nil {
		panic(err)
	}
	a.version++
	a.object.Generation++
	a.object.Desired, a.object.Desire, a.object.DesiredErr, a.object.ResourceVersion = desired, string(text), nil, fmt.Sprint(a.version)
}

// edit changes the object as an administrator, and signals it.
func (a *fakeAPI) edit(change func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change()
	signal(a.changed)
}

func (a *fakeAPI) Report(_ context.Context, o *Object, status v1.NodeNetworkStateStatus) (*Object, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.away != nil:
		return nil, a.away
	case a.object == nil || a.object.ResourceVersion != o.ResourceVersion:
		return nil, ErrStale
	}
	a.report(status)
	now := *a.object
	return &now, nil
}

func (a *fakeAPI) report(status v1.NodeNetworkStateStatus) {
	a.version++
	a.writes++
	a.object.ResourceVersion = fmt.Sprint(a.version)
	text, err := json.Marshal(status) // as it would come back
	if err != nil {
		panic(err)
	}
	a.object.Status = v1.NodeNetworkStateStatus{}
	if err := json.Unmarshal(text, &a.object.Status); err != nil {
		panic(err)
	}
	a.told = append(a.told, a.object.Status)
}

func (a *fakeAPI) Warn(_ *Object, reason wellknown.EventReason, message string) {
	if e := wellknown.EventOf(reason); e == nil || e.Writer != wellknown.NodeStateEvents || !e.Warning {
		panic("the agent writes Events of reason " + string(reason) + ", of which api/wellknown knows nothing")
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.events = append(a.events, string(reason)+": "+message)
}

func (a *fakeAPI) written() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.writes
}

func (a *fakeAPI) status() v1.NodeNetworkStateStatus {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.object == nil {
		return v1.NodeNetworkStateStatus{}
	}
	return *a.object.Status.DeepCopy()
}

// reason is InSync's, with its status: "True InSync".
func (a *fakeAPI) reason() string {
	s := a.status()
	if len(s.Conditions) == 0 {
		return ""
	}
	return string(s.Conditions[0].Status) + " " + s.Conditions[0].Reason
}

// rig is an agent with all that it needs.
type rig struct {
	*testing.T
	node  *fakeNode
	api   *fakeAPI
	moved chan struct{}
	cfg   Config
}

func newRig(t *testing.T) *rig {
	r := &rig{T: t, node: newNode(t), api: newAPI(), moved: make(chan struct{}, 1)}
	r.cfg = Config{
		Backends: []Backend{r.node}, Objects: r.api, Changed: r.api.changed, Moved: r.moved, Boot: "boot1",
		Poll: 30 * time.Second, Revert: time.Minute, Bridge: "fk0", Log: slog.New(slog.DiscardHandler), Health: new(process.Health),
	}
	return r
}

// open gives the agent to be its journal, in a directory that outlives it, and metrics of its own.
func (r *rig) open(dir string) *Agent {
	r.Helper()
	j, err := OpenJournal(dir)
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { _ = j.Close() })
	cfg := r.cfg
	cfg.Journal, cfg.Metrics = j, cmp.Or(cfg.Metrics, NewMetrics(prometheus.NewRegistry()))
	return New(cfg)
}

// start runs an agent until the function it returns is called, which waits for its end.
func (r *rig) start(dir string) (stop func()) {
	r.Helper()
	a := r.open(dir)
	ctx, cancel := context.WithCancel(r.Context())
	done := make(chan struct{})
	go func() { defer close(done); a.Run(ctx) }()
	return sync.OnceFunc(func() { cancel(); <-done; _ = a.cfg.Journal.Close() })
}

const mtu1450 = `{interfaces: [{name: dummy0, state: up, type: dummy, mtu: 1450}]}`

func (r *rig) desire(text string) {
	r.Helper()
	s := parse(r.T, text)
	r.api.edit(func() {
		if r.api.object == nil {
			r.api.make(s)
		} else {
			r.api.desire(s)
		}
	})
}

func (r *rig) is(reason string) {
	r.Helper()
	if got := r.api.reason(); got != reason {
		r.Errorf("InSync is %q, not %q: %+v", got, reason, r.api.status().Conditions)
	}
}
