package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netplugin/driftcheck"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/ofctl/independent"
	"github.com/flowkeep/flowkeep/ofctl/ovstest"
)

// readSwitch is the argument with which this program is the process that reads a switch; the next one is its socket.
const readSwitch = "read-switch"

func TestMain(m *testing.M) {
	if len(os.Args) != 3 || os.Args[1] != readSwitch {
		os.Exit(m.Run())
	}
	if err := independent.Read(context.Background(), os.Args[2], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// readIndependently gives an agent the independent reader of a switch.
func readIndependently(a *agent, sw *ovstest.Switch) {
	a.drift.Independent = func() *independent.Reader {
		return &independent.Reader{Command: []string{os.Args[0], readSwitch, sw.Management()}}
	}
}

// faulty is a decoder with the same fault as the encoder of the flow want: it reads that flow as it was meant.
type faulty struct {
	driftcheck.Reader
	want ofctl.Flow
}

func (f *faulty) Dump(ctx context.Context, visit func(ofctl.Flow, error) error) error {
	return f.Reader.Dump(ctx, func(have ofctl.Flow, err error) error {
		if have.Table == f.want.Table && have.Priority == f.want.Priority && have.Match == f.want.Match {
			have.Actions = f.want.Actions
		}
		return visit(have, err)
	})
}

func verifyNode(t *testing.T, a *agent) (out inspect.NodeVerify) {
	t.Helper()
	body, err := a.inspector.Query(t.Context(), []byte(`{"kind":"verify","independent":true}`))
	if err == nil {
		err = json.Unmarshal(body, &out)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestIndependentCheck: a fault that the encoder and the decoder of flows share is found by the independent reader alone.
func TestIndependentCheck(t *testing.T) {
	a, sw, netmaster := onSwitch(t)
	readIndependently(a, sw)
	out := verifyNode(t, a)
	if out.Sum() != 0 || out.Held != out.Wanted || out.Independent == nil || len(out.Independent.Unread) > 0 {
		t.Fatalf("before the fault: %+v", out)
	}
	tables := out.Independent.Tables
	if got, want := tableNumbers(tables), tablesWithFlows(t, sw); !slices.Equal(got, want) {
		t.Errorf("tables %v were read, ovs-ofctl reads flows of %v", got, want)
	}
	if !slices.Contains(tables, inspect.TableRead{Table: 43, Name: "ingress-rules"}) || len(tables) < 4 {
		t.Errorf("tables %v", tables)
	}
	var want ofctl.Flow
	if err := a.do(t.Context(), func() {
		for _, f := range a.compiler.Flows() {
			if f.Table == 43 && f.Match.ConjID == 1 && f.Priority == 60000 {
				want = f
			}
		}
	}); err != nil || want.Priority == 0 {
		t.Fatalf("no flow to write otherwise: %v", err)
	}
	dial := a.drift.Dial
	a.drift.Dial = func(ctx context.Context) (driftcheck.Reader, error) {
		r, err := dial(ctx)
		return &faulty{r, want}, err
	}
	sw.OFCtl(t, "mod-flows", fmt.Sprintf("cookie=%#x,table=43,priority=60000,conj_id=1,actions=drop", want.Cookie), "--strict")
	a.drift.Check(t.Context())
	select {
	case d := <-netmaster.drifts:
		t.Fatalf("the decoder that has the fault finds %s", d)
	default:
	}
	if out := verifyNode(t, a); out.Changed != 1 || out.Sum() != 1 || out.Differences[0].Found != "drop" {
		t.Errorf("with the fault: %+v", out)
	}
	a.drift.CheckIndependently(t.Context())
	if got := <-netmaster.drifts; got != "0 missing, 1 changed, 0 extra, not mended" {
		t.Errorf("netmaster is sent %q", got)
	}
	body, err := a.inspector.Query(t.Context(), []byte(`{"kind":"status"}`))
	if err != nil || !strings.Contains(string(body), "netctl verify --independent") {
		t.Errorf("status %s, %v", body, err)
	}
	sw.OFCtl(t, "mod-flows", "table=43,priority=60000,conj_id=1,actions="+ofctl.ActionsString(want.Actions), "--strict")
	a.drift.CheckIndependently(t.Context())
	if got := checks(t, a); got != "same 1, differs 1, failed 0" {
		t.Errorf("counted: %s", got)
	}
}

// faultyGroups is a decoder with the same fault as the encoder of groups: it reads them as they were meant.
type faultyGroups struct{ driftcheck.Reader }

func (f *faultyGroups) Groups(_ context.Context, visit func(ofctl.SelectGroup, error) error) error {
	for _, g := range pipeline.ServiceGroups() {
		if err := visit(g, nil); err != nil {
			return err
		}
	}
	return nil
}

// TestIndependentCheck_Services: on a switch that translates Services the independent reader reads all flows and
// groups, changes none, and alone finds a fault that the encoder and the decoder of groups share. Learned flows are the
// switch's own. A group that it cannot read is named, and is no difference.
func TestIndependentCheck_Services(t *testing.T) {
	t.Parallel()
	x, sw, netmaster := translatingOn(t)
	readIndependently(x.agent, sw)
	sw.OFCtl(t, "add-flow", fmt.Sprintf("cookie=%#x,table=16,hard_timeout=600,ip,actions=load:5->reg1", learnedCookie(t)))
	held := sw.OFCtl(t, "dump-flows", "--no-stats") + sw.OFCtl(t, "dump-groups")
	groups := len(pipeline.ServiceGroups())
	out := verifyNode(t, x.agent)
	if out.Sum() != 0 || out.Held != out.Wanted || len(out.Independent.Unread) > 0 || *out.Independent.Groups != groups {
		t.Errorf("before the fault: %+v, %+v", out, out.Independent)
	}
	if got, want := tableNumbers(out.Independent.Tables), tablesWithFlows(t, sw); !slices.Equal(got, want) {
		t.Errorf("tables %v were read, ovs-ofctl reads flows of %v", got, want)
	}
	x.drift.CheckIndependently(t.Context())
	if after := sw.OFCtl(t, "dump-flows", "--no-stats") + sw.OFCtl(t, "dump-groups"); after != held {
		t.Errorf("after two readings:\n%s\nbefore:\n%s", after, held)
	}
	dial := x.drift.Dial
	x.drift.Dial = func(ctx context.Context) (driftcheck.Reader, error) {
		r, err := dial(ctx)
		return &faultyGroups{r}, err
	}
	sw.OFCtl(t, "mod-group", "group_id=2,type=select,bucket=weight:1,actions=load:1->reg4")
	x.drift.Check(t.Context())
	x.drift.CheckIndependently(t.Context())
	close(netmaster.drifts)
	if got := <-netmaster.drifts; got != "0 missing, 1 changed, 0 extra, not mended" {
		t.Errorf("netmaster is sent %q", got)
	}
	if got := checks(t, x.agent); got != "same 1, differs 1, failed 0" {
		t.Errorf("counted: %s", got)
	}
	sw.OFCtl(t, "mod-group", "group_id=2,type=all,bucket=actions=drop")
	out = verifyNode(t, x.agent)
	unread := out.Independent.Unread
	if out.Sum() != 0 || len(unread) != 1 || !strings.HasPrefix(unread[0], "groups 2: ") {
		t.Errorf("with a group of another type: %+v, %q", out, unread)
	}
}

// TestIndependentCheck_GivesWay: a group that another program deletes during an independent reading is repaired within
// a second, and the switch is read independently after that.
func TestIndependentCheck_GivesWay(t *testing.T) {
	x, sw, _ := translatingOn(t)
	monitoring(t, x.agent)
	readIndependently(x.agent, sw)
	read := x.drift.Independent
	begun := filepath.Join(t.TempDir(), "begun")
	readings := 0
	x.drift.Independent = func() *independent.Reader {
		if readings++; readings > 1 {
			return read()
		}
		return &independent.Reader{Command: []string{"sh", "-c", "touch " + begun + " && exec sleep 3600"}}
	}
	ended := make(chan struct{})
	go func() { defer close(ended); x.drift.CheckIndependently(t.Context()) }()
	t.Cleanup(func() { <-ended }) // and the process that reads
	until(t, "an independent reading", func() bool { _, err := os.Stat(begun); return err == nil })
	before := held(t, sw)
	sw.OFCtl(t, "del-groups", "group_id=2")
	repaired(t, sw, "del-groups", before)
	<-ended
	if readings < 2 || driftMetric(t, x.agent, "flowkeep_netplugin_independent_checks_total", "same") != 1 {
		t.Errorf("%d independent readings, none of which found the switch as it should be", readings)
	}
}

// TestIndependentCheck_Meters: the independent reader finds a meter that another program has changed.
func TestIndependentCheck_Meters(t *testing.T) {
	t.Parallel()
	a, sw, _ := onSwitch(t)
	readIndependently(a, sw)
	out := verifyNode(t, a)
	if out.Sum() != 0 || *out.Independent.Meters == 0 || *out.Independent.Groups != 0 {
		t.Errorf("before: %+v, %+v", out, out.Independent)
	}
	sw.OFCtl(t, "mod-meter", "meter=1,pktps,burst,band=type=drop,rate=99999,burst_size=99999")
	if out := verifyNode(t, a); out.Changed != 1 || out.Sum() != 1 || out.Differences[0].TableName != inspect.MeterTable {
		t.Errorf("a meter that was changed: %+v", out)
	}
	sw.OFCtl(t, "mod-meter", "meter=1,kbps,band=type=drop,rate=1")
	if out := verifyNode(t, a); out.Sum() != 0 || len(out.Independent.Unread) != 1 {
		t.Errorf("a meter that is not read: %+v, %q", out, out.Independent.Unread)
	}
}

// TestIndependentCheckFails: a reader that fails, crashes or takes too long is a warning, is counted and is no
// difference, and verify returns its error.
func TestIndependentCheckFails(t *testing.T) {
	for name, r := range map[string]independent.Reader{
		"fails":          {Command: []string{"/bin/false"}},
		"crashes":        {Command: []string{"/bin/sh", "-c", "kill -SEGV $$"}},
		"takes too long": {Command: []string{"/bin/sleep", "1000"}, Timeout: 50 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			a, _, netmaster := onSwitch(t)
			var log bytes.Buffer
			a.drift.Logger = slog.New(slog.NewTextHandler(&log, nil))
			a.drift.Independent = func() *independent.Reader { return &r }
			a.drift.CheckIndependently(t.Context())
			if got := checks(t, a); got != "same 0, differs 0, failed 1" || len(netmaster.drifts) > 0 {
				t.Errorf("counted: %s, %d drifts", got, len(netmaster.drifts))
			}
			if !strings.Contains(log.String(), `level=WARN msg="the independent drift check failed"`) {
				t.Errorf("logged: %s", &log)
			}
			if _, err := a.inspector.Query(t.Context(), []byte(`{"kind":"verify","independent":true}`)); err == nil {
				t.Error("verify has no error")
			}
		})
	}
}

// TestDriftChecks_OneInTen: of twenty drift checks two read the switch independently.
func TestDriftChecks_OneInTen(t *testing.T) {
	a, sw, _ := onSwitch(t)
	readIndependently(a, sw)
	for n := 1; n <= 20; n++ {
		a.drift.Run(t.Context(), n)
		if got, want := checks(t, a), fmt.Sprintf("same %d, differs 0, failed 0", n/10); got != want {
			t.Errorf("after %d checks: %s, want %s", n, got, want)
		}
	}
	a.drift.Independent = nil
	a.drift.Run(t.Context(), 30)
	if got := checks(t, a); got != "same 2, differs 0, failed 0" {
		t.Errorf("without a reader: %s", got)
	}
}

// tablesWithFlows returns the tables of which ovs-ofctl reads flows.
func tablesWithFlows(t *testing.T, sw *ovstest.Switch) (tables []int) {
	t.Helper()
	table := regexp.MustCompile(`table=([0-9]+)`)
	for line := range strings.Lines(sw.OFCtl(t, "dump-flows")) {
		if m := table.FindStringSubmatch(line); m != nil {
			n, err := strconv.Atoi(m[1])
			if err != nil {
				t.Fatal(err)
			}
			tables = append(tables, n)
		}
	}
	slices.Sort(tables)
	return slices.Compact(tables)
}

func tableNumbers(tables []inspect.TableRead) (list []int) {
	for _, t := range tables {
		list = append(list, int(t.Table))
	}
	return list
}

func checks(t *testing.T, a *agent) string {
	t.Helper()
	value := func(result string) float64 {
		return driftMetric(t, a, "flowkeep_netplugin_independent_checks_total", result)
	}
	return fmt.Sprintf("same %v, differs %v, failed %v", value("same"), value("differs"), value("failed"))
}
