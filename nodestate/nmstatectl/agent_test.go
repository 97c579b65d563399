package nmstatectl

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/api/wellknown"
	"github.com/flowkeep/flowkeep/internal/process"
	"github.com/flowkeep/flowkeep/nodestate"
	v1 "github.com/flowkeep/flowkeep/nodestate/api/v1"
	"github.com/flowkeep/flowkeep/nodestate/nmstate"
	"github.com/prometheus/client_golang/prometheus"
)

// object is the node's object as an agent's only client.
type object struct{ nodestate.Object }

func (o *object) Get(context.Context) (*nodestate.Object, error) {
	have := o.Object
	return &have, nil
}

func (o *object) Node(context.Context) (*nodestate.Node, error) { return nil, nil }

func (o *object) Own(context.Context, *nodestate.Object, nodestate.Node) (*nodestate.Object, error) {
	return nil, nodestate.ErrStale
}

func (o *object) Create(context.Context, *nodestate.Node, v1.NodeNetworkStateStatus) (*nodestate.Object, error) {
	return nil, nodestate.ErrStale
}

func (o *object) Report(
	ctx context.Context, _ *nodestate.Object, status v1.NodeNetworkStateStatus,
) (*nodestate.Object, error) {
	o.Status = status
	return o.Get(ctx)
}

func (o *object) Warn(*nodestate.Object, wellknown.EventReason, string) {}

// once has an agent with a revert time bring the node to a desired state, and returns the reason of
// InSync, the program's calls but for show, and its error.
func (n *node) once(text string, revert time.Duration, probes ...nodestate.Probe) (
	reason string, calls []string, err error,
) {
	n.Helper()
	desired, err := nmstate.Parse([]byte(text))
	if err != nil {
		n.Fatal(err)
	}
	o := &object{nodestate.Object{Name: "node1", UID: "u", Generation: 1, Managed: true, Desired: desired, Desire: text}}
	journal, err := nodestate.OpenJournal(n.TempDir())
	if err != nil {
		n.Fatal(err)
	}
	defer journal.Close()
	agent := nodestate.New(nodestate.Config{
		Backends: []nodestate.Backend{n.Backend},
		Objects:  o,
		Probes:   probes,
		Journal:  journal,
		Boot:     "boot1",
		Poll:     time.Minute,
		Revert:   revert,
		Bridge:   "fk0",
		Log:      slog.New(slog.DiscardHandler),
		Metrics:  nodestate.NewMetrics(prometheus.NewRegistry()),
		Health:   new(process.Health),
	})
	n.calls()
	err = agent.Once(n.Context())
	for _, c := range o.Status.Conditions {
		if c.Type == v1.ConditionInSync {
			reason = c.Reason
		}
	}
	calls = slices.DeleteFunc(n.calls(), func(c string) bool { return c == "show --json" })
	return reason, calls, err
}

const setCall = "set --no-commit --timeout 60 -"

// TestAgent_KeepsWhatNmstatectlReportsAsDone: nmstate shows what it was given in other words, or not at all. Its success
// is the agent's, and the change is committed.
func TestAgent_KeepsWhatNmstatectlReportsAsDone(t *testing.T) {
	for name, shown := range map[string]string{
		"another spelling": `{"interfaces": [{"name": "dummy0", "type": "dummy", "mtu": 1450, "wait-ip": "any"}]}`,
		"left out":         `{"interfaces": [{"name": "dummy0", "type": "dummy"}]}`,
		"a newer schema":   `{"version": "3", "interfaces": [{"name": "dummy0", "type": "dummy", "link": {"mtu": 1450}}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.put("shows-after-set", shown)
			reason, calls, err := n.once(`{interfaces: [{name: dummy0, mtu: 1450, wait-ip: ipv4}]}`, time.Minute)
			want := []string{setCall, "commit " + checkpointName}
			if err != nil || reason != v1.ReasonInSync || !slices.Equal(calls, want) {
				t.Errorf("%v, %s, %q", err, reason, calls)
			}
		})
	}
}

// TestAgent_RollsBackWhatCutsOff: a probe outweighs the success of nmstatectl.
func TestAgent_RollsBackWhatCutsOff(t *testing.T) {
	n := newNode(t)
	gateway := nodestate.Probe{Name: "the default gateway", Check: func(context.Context, nmstate.State) error {
		if n.mtu() != int64(1500) {
			return os.ErrDeadlineExceeded
		}
		return nil
	}}
	reason, calls, err := n.once(mtu1450, 5*time.Second, gateway)
	if err == nil || reason != v1.ReasonRolledBack || n.mtu() != int64(1500) {
		t.Errorf("%v, %s, %q", err, reason, calls)
	}
	if !slices.Contains(calls, "rollback "+checkpointName) || slices.ContainsFunc(calls, isCommit) {
		t.Errorf("calls %q", calls)
	}
}

func isCommit(call string) bool { return strings.HasPrefix(call, "commit") }

// TestAgent_ReportsWhatNmstatectlFailsWith: nothing is committed, and the status has the program's error.
func TestAgent_ReportsWhatNmstatectlFailsWith(t *testing.T) {
	for said, want := range map[string]string{
		"NmstateVerificationError: mtu is 1500":         v1.ReasonRolledBack,
		"NotSupportedError: infiniband is not for this": v1.ReasonFailing,
	} {
		n := newNode(t)
		n.put("fail-set", said)
		reason, calls, err := n.once(mtu1450, time.Minute)
		if err == nil || !strings.Contains(err.Error(), said) || slices.ContainsFunc(calls, isCommit) {
			t.Errorf("%s: %v, calls %q", said, err, calls)
		}
		if reason != want && want == v1.ReasonFailing || n.mtu() != int64(1500) {
			t.Errorf("%s: %s, mtu %v", said, reason, n.mtu())
		}
	}
}

// TestAgent_WithAnotherOutputOfNmstatectl: a report that is no JSON changes nothing, and a checkpoint without a name is
// committed as the last one.
func TestAgent_WithAnotherOutputOfNmstatectl(t *testing.T) {
	t.Run("show", func(t *testing.T) {
		n := newNode(t)
		n.put("state", "interfaces:\n- name: dummy0\n")
		reason, calls, err := n.once(mtu1450, time.Minute)
		if err == nil || !strings.Contains(err.Error(), "parse the output of nmstatectl show") || len(calls) > 0 {
			t.Errorf("%v, %s, %q", err, reason, calls)
		}
	})
	for name, line := range map[string]string{
		"no checkpoint": "Desired state applied",
		"JSON":          `{"applied": true, "checkpoint": 7}`,
		"nothing":       "",
	} {
		t.Run("set: "+name, func(t *testing.T) {
			n := newNode(t)
			n.put("prints-set", line)
			reason, calls, err := n.once(mtu1450, time.Minute)
			if err != nil || reason != v1.ReasonInSync || !slices.Equal(calls, []string{setCall, "commit"}) {
				t.Errorf("%v, %s, %q", err, reason, calls)
			}
			if raw, err := json.Marshal(n.mtu()); err != nil || string(raw) != "1450" {
				t.Errorf("mtu %s, %v", raw, err)
			}
		})
	}
}
