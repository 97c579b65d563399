package native

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/internal/testkit/netns"
	"github.com/flowkeep/flowkeep/nodestate/nmstate"
)

// devices are the interfaces that the examples expect on a node: pairs of veth, which every kernel has.
const devices = `interfaces:
- {name: eth0, type: veth, state: up, veth: {peer: peer0}}
- {name: eth1, type: veth, state: up, veth: {peer: peer1}}
- {name: eth2, type: veth, state: down, veth: {peer: peer2}}
- {name: eth7, type: veth, state: up, veth: {peer: peer7}}`

// TestKernelExamples applies each example that is not refused to the real kernel, and to Open vSwitch where it names a
// bridge of it. The state is read back and compared, rolled back, applied again, and removed by a document.
func TestKernelExamples(t *testing.T) {
	applied, accepted := 0, 0
	for _, c := range allExamples(t) {
		if c.Says != "" {
			continue
		}
		accepted++
		t.Run(c.Name, func(t *testing.T) {
			onKernel(t, c)
			applied++
		})
	}
	t.Logf("%d of %d documents were applied", applied, accepted)
}

func onKernel(t *testing.T, c example) {
	netns.New(t).Enter(t)
	cfg := Config{ResolvConf: filepath.Join(t.TempDir(), "resolv.conf")}
	if err := os.WriteFile(cfg.ResolvConf, []byte("nameserver 192.0.2.99\nsearch example.org\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if c.Needs == typeOVSBridge {
		cfg.OVSDB = openVSwitch(t)
	}
	b := newBench(t, cfg)
	if !b.has(t, c.Needs) {
		t.Skipf("this kernel has no %s (scripts/kernel runs this test on one that has)", c.Needs)
	}
	b.apply(devices)
	if c.Before != "" {
		b.apply(c.Before)
	}
	before := b.show()
	desired := c.desiredState(t, before)
	change := b.apply(indent(desired))
	c.shown(t, cfg)
	t.Logf("%d steps: %q", len(change.Steps), change.Steps)
	b.rolledBack(change, before)
	if c.Before != "" {
		return
	}
	b.apply(indent(desired))
	b.apply(removal(before, b.show(), desired))
	after := b.show()
	if left := arrivals(before, after); len(left) > 0 {
		t.Errorf("%v are still there", left)
	}
	routing := func(s nmstate.State) nmstate.State {
		return nmstate.State{"routes": s["routes"], "route-rules": s["route-rules"]}
	}
	b.same(routing(before), routing(after))
}

// shown compares what other programs show of the kernel, or of Open vSwitch, with the example.
func (c example) shown(t *testing.T, cfg Config) {
	t.Helper()
	cmd := exec.Command("sh", "-c", c.Shows.Command)
	cmd.Env = append(os.Environ(), "RESOLV="+cfg.ResolvConf, "OVSDB="+cfg.OVSDB)
	out, _ := cmd.CombinedOutput()
	for _, text := range c.Shows.Has {
		if !strings.Contains(string(out), text) {
			t.Errorf("%s: %q is missing in\n%s", c.Shows.Command, text, out)
		}
	}
}

// removal returns a document that removes the new interfaces, and the desired routes and rules.
func removal(before, after, desired nmstate.State) string {
	gone := nmstate.State{"interfaces": arrivals(before, after)}
	for _, section := range []string{"routes", "route-rules"} {
		var entries []any
		for _, e := range desired.Config(section) {
			e["state"] = nmstate.Absent
			entries = append(entries, e)
		}
		gone[section] = map[string]any{"config": entries}
	}
	return indent(gone)
}

// arrivals returns absent entries for the interfaces of a report that an earlier one does not have.
func arrivals(before, after nmstate.State) (list []any) {
	for _, i := range after.Interfaces() {
		if !slices.ContainsFunc(before.Interfaces(), func(o nmstate.Interface) bool { return o.Key() == i.Key() }) {
			list = append(list, map[string]any{"name": i.Name(), "type": i.Type(), "state": nmstate.Absent})
		}
	}
	return list
}
