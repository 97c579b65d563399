package agent

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/internal/process"
	"github.com/flowkeep/flowkeep/ofctl/appctl"
)

// A switch that takes no packets is told from one that has none to take, one that loses some, and one whose datapath is new.
func TestLostUpcalls(t *testing.T) {
	for name, c := range map[string]struct {
		looks []appctl.Lookups
		want  uint64
	}{
		"none yet":                 {[]appctl.Lookups{{}, {}}, 0},
		"of before":                {[]appctl.Lookups{{Missed: 90, Lost: 90}, {Missed: 90, Lost: 90}}, 0},
		"all":                      {[]appctl.Lookups{{Missed: 9, Lost: 9}, {Missed: 14, Lost: 14}}, 5},
		"all, bit by bit":          {[]appctl.Lookups{{}, {Missed: 3, Lost: 3}, {Missed: 6, Lost: 6}}, 6},
		"too few to say":           {[]appctl.Lookups{{}, {Missed: 4, Lost: 4}}, 0},
		"all but one":              {[]appctl.Lookups{{}, {Missed: 100, Lost: 99}}, 0},
		"all after one was taken":  {[]appctl.Lookups{{}, {Missed: 100, Lost: 99}, {Missed: 120, Lost: 119}}, 20},
		"taken again":              {[]appctl.Lookups{{}, {Missed: 9, Lost: 9}, {Missed: 12, Lost: 9}}, 0},
		"led by the kernel's flow": {[]appctl.Lookups{{}, {Hit: 1000}}, 0},
		"told of in a flood":       {[]appctl.Lookups{{}, {Hit: 1000, Missed: 5, Lost: 800}}, 0},
		"all after some were led":  {[]appctl.Lookups{{}, {Hit: 9}, {Hit: 9, Missed: 6, Lost: 6}}, 6},
		"a new datapath, all":      {[]appctl.Lookups{{Missed: 100, Lost: 90}, {Missed: 8, Lost: 8}}, 8},
	} {
		var u upcalls
		var got uint64
		for _, l := range c.looks {
			got = u.lost(l)
		}
		if got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

// A node whose switch takes no packets says so and is not ready, until it takes them.
func TestUpcalls_NoneHandled(t *testing.T) {
	a, _, _ := running(t)
	a.cfg.Health, a.cfg.DatapathType, a.cfg.OVSControl = new(process.Health), "system", t.TempDir()+"/ctl"
	missed, lost := 0, 0
	asked := answering(t, a.cfg.OVSControl, func(string) string {
		return fmt.Sprintf("system@ovs-system:\n  lookups: hit:0 missed:%d lost:%d\n  flows: 0\n", missed, lost)
	})
	var u upcalls
	looks := func(now, of int, deaf bool) {
		t.Helper()
		lost, missed = now, of
		a.hearsPackets(t.Context(), &u)
		if line := <-asked; !strings.Contains(line, `"dpctl/show","params":["system@ovs-system"]`) {
			t.Errorf("asked %s", line)
		}
		body, err := a.inspector.Query(t.Context(), []byte(`{"kind":"status"}`))
		if err != nil {
			t.Fatal(err)
		}
		var st inspect.NodeStatus
		if err := json.Unmarshal(body, &st); err != nil {
			t.Fatal(err)
		}
		if got := a.cfg.Health.NotReady() != ""; got != deaf || (st.SwitchProblem != "") != deaf {
			t.Errorf("lost %d of %d: not ready %q, status %q", now, of, a.cfg.Health.NotReady(), st.SwitchProblem)
		}
	}
	looks(7, 7, false)
	looks(12, 12, true)
	looks(20, 20, true)
	looks(20, 21, false)
	looks(40, 41, true)
	if err := a.do(t.Context(), a.detach); err != nil {
		t.Fatal(err)
	}
	if a.inspector.status().SwitchProblem != "" {
		t.Error("a switch that is away is still said to take no packets")
	}
}

// Open vSwitch's own datapath hands packets over to nobody.
func TestUpcalls_UserspaceIsNotQueried(t *testing.T) {
	a, _, _ := running(t)
	a.cfg.DatapathType, a.cfg.OVSControl = "netdev", t.TempDir()+"/ctl"
	asked := control(t, a.cfg.OVSControl)
	a.hearsPackets(t.Context(), new(upcalls))
	if len(asked) != 0 {
		t.Error(<-asked)
	}
}
