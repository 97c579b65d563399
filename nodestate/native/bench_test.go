package native

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/nodestate"
	"github.com/flowkeep/flowkeep/nodestate/nmstate"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// needKind skips where the kernel has no such interfaces.
func needKind(t *testing.T, l netlink.Link) {
	t.Helper()
	err := netlink.LinkAdd(l)
	if errors.Is(err, unix.EOPNOTSUPP) {
		t.Skipf("this kernel has no interfaces of type %s (scripts/kernel runs this test on one that has)", l.Type())
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkDel(l); err != nil {
		t.Fatal(err)
	}
}

func attrs(name string) netlink.LinkAttrs {
	a := netlink.NewLinkAttrs()
	a.Name = name
	return a
}

// volatile is an order that also allows a change of the only uplink.
var volatile = nodestate.Order{Volatile: true}

type bench struct {
	*Backend
	t *testing.T
}

func newBench(t *testing.T, cfg Config) *bench {
	t.Helper()
	cfg.Bridge = "fk0"
	b := &bench{Backend: New(cfg), t: t}
	t.Cleanup(b.Close)
	return b
}

func state(t testing.TB, yaml string) nmstate.State {
	t.Helper()
	s, err := nmstate.Parse([]byte(yaml))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (b *bench) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	b.t.Cleanup(cancel)
	return ctx
}

// apply has the desire applied and held against what the kernel then shows; a second time there is nothing to do.
func (b *bench) apply(yaml string) nodestate.Change {
	b.t.Helper()
	desired := state(b.t, yaml)
	change, err := b.Apply(b.ctx(), desired, volatile)
	if err != nil {
		b.t.Fatalf("apply: %v\nsteps: %s\n%s", err, strings.Join(change.Steps, "\n       "), b.ip())
	}
	b.inSync(desired)
	again, err := b.Plan(b.ctx(), desired)
	if err != nil || len(again) > 0 {
		b.t.Fatalf("once applied, there remains to %s, %v", texts(again), err)
	}
	return change
}

func (b *bench) inSync(desired nmstate.State) {
	b.t.Helper()
	have, err := b.Show(b.ctx())
	if err != nil {
		b.t.Fatal(err)
	}
	for _, d := range nmstate.Diff(desired, have) {
		b.t.Errorf("after apply: %s", d)
	}
	if b.t.Failed() {
		b.t.Fatal(b.ip())
	}
}

func (b *bench) show() nmstate.State {
	b.t.Helper()
	s, err := b.Show(b.ctx())
	if err != nil {
		b.t.Fatal(err)
	}
	return s
}

// refused has the desire refused with the text, and nothing changed.
func (b *bench) refused(yaml, text string) {
	b.t.Helper()
	before := b.show()
	change, err := b.Apply(b.ctx(), state(b.t, yaml), nodestate.Order{Volatile: true, Journal: func(nodestate.Change) error {
		b.t.Errorf("journalled, though to be refused: %s", yaml)
		return nil
	}})
	if !errors.Is(err, nodestate.ErrRefused) || !strings.Contains(err.Error(), text) {
		b.t.Errorf("%s\nwas to be refused with %q, and was: %v %v", yaml, text, err, change.Steps)
	}
	if after := b.show(); !nmstate.Equal(before, after) {
		b.t.Errorf("the refused %s changed something", yaml)
	}
}

// rolledBack undoes the change, and everything is as before.
func (b *bench) rolledBack(c nodestate.Change, before nmstate.State) {
	b.t.Helper()
	for range 2 { // the second time there is nothing to do
		if err := b.Rollback(b.ctx(), c); err != nil {
			b.t.Fatalf("roll back: %v\nof: %s\n%s", err, strings.Join(c.Steps, "\n    "), b.ip())
		}
	}
	b.same(before, b.show())
}

func (b *bench) same(before, after nmstate.State) {
	b.t.Helper()
	for _, d := range nmstate.Diff(before, after) {
		b.t.Errorf("not as before: %s", d)
	}
	for _, d := range nmstate.Diff(after, before) {
		b.t.Errorf("only afterwards: %s", d)
	}
	if b.t.Failed() {
		b.t.Fatal(b.ip())
	}
}

// ip is what iproute2 says, for messages.
func (b *bench) ip() string {
	var out strings.Builder
	for _, args := range [][]string{{"-d", "addr"}, {"route", "show", "table", "all"}, {"-6", "route"}, {"rule"}} {
		text, _ := exec.Command("ip", args...).CombinedOutput()
		out.WriteString("ip " + strings.Join(args, " ") + "\n" + string(text))
	}
	return out.String()
}

// A bridge without a MAC address of its own has the least of its ports: pods that come and go are no news.
func TestBridgeOfPodsStaysAsReported(t *testing.T) {
	f := newFake()
	b := onFake(f)
	f.Links["cni0"] = &link{Name: "cni0", Type: typeBridge, Up: true, MTU: 1500, Bridge: newBridge()}
	var reports []nmstate.State
	for _, mac := range []string{"02:00:00:00:00:09", "02:00:00:00:00:05"} {
		f.Links["cni0"].MAC = mac
		f.Links["cali"+mac[16:]] = &link{Name: "cali" + mac[16:], Type: typeVeth, Up: true, MTU: 1500, MAC: mac, Controller: "cni0", BridgePort: &bridgePortSpec{}, Protected: "a pod's"}
		s, err := b.Show(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		reports = append(reports, s)
	}
	if !nmstate.Equal(reports[0], reports[1]) {
		t.Errorf("a pod came: %v", nmstate.Diff(reports[0], reports[1]))
	}
	f.Links["cni0"].MAC = "02:00:00:00:00:01"
	if s, err := b.Show(t.Context()); err != nil || nmstate.Equal(s, reports[1]) {
		t.Errorf("its own MAC address is nowhere: %v", err)
	}
}
