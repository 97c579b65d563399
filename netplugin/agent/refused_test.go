package agent

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/netplugin/driftcheck"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/ofctl/ovstest"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/service"
)

// other sends a Service over TCP with an external address and the same endpoint as web has first.
func (x *translator) other(last byte) {
	x.Helper()
	value, err := wire.ServiceValue(&service.Service{
		Namespace:   "shop",
		Name:        "other",
		ClusterIPs:  []netip.Addr{netip.MustParseAddr("10.96.0.2")},
		ExternalIPs: []netip.Addr{netip.MustParseAddr("203.0.113.2")},
		Ports:       []service.Port{{Name: "http", Protocol: policy.TCP, Port: 80}},
	})
	if err != nil {
		x.Fatal(err)
	}
	x.source.Put(wire.ServiceKey("shop/other"), value)
	value, err = wire.SliceValue(&service.Slice{
		Namespace: "shop",
		Name:      "other-1",
		Service:   "other",
		Ports:     []service.SlicePort{{Name: "http", Protocol: policy.TCP, Port: 8080}},
		Endpoints: []service.Endpoint{{Address: netip.AddrFrom4([4]byte{10, 0, 0, last}), Ready: true}},
	})
	if err != nil {
		x.Fatal(err)
	}
	x.source.Put(wire.SliceKey("shop/other-1"), value)
	x.send()
}

// leads returns the actions of the flows that take packets to an address, in a table.
func (x *translator) leads(table uint8, to string) (out []string) {
	for _, f := range x.sw.holds {
		if f.Table == table && f.Match.NwDst.Addr() == netip.MustParseAddr(to) && f.Match.TpDst.Mask != 0 {
			out = append(out, ofctl.ActionsString(f.Actions))
		}
	}
	return out
}

// servesService reports whether a flow belongs to Services.
func servesService(f *ofctl.Flow) bool { return pipeline.PurposeOf(f) == pipeline.Serve }

// TestTranslation_RefusedFlowsReject: a Service of which the switch refuses a flow is rejected, or has fewer endpoints.
// It is shown and counted, all other flows are in force, and the session stays. The next session takes all flows.
func TestTranslation_RefusedFlowsReject(t *testing.T) {
	backend := func(f *ofctl.Flow) bool { // of 10.0.0.8
		return f.Table == pipeline.TableServiceCommit && f.Match.NwDst.Addr() == netip.MustParseAddr("10.0.0.8")
	}
	ofTable := func(table uint8) func(*ofctl.Flow) bool {
		return func(f *ofctl.Flow) bool { return f.Table == table }
	}
	leading := func(f *ofctl.Flow) bool {
		return f.Table == pipeline.TableServiceFrontend && servesService(f) && len(f.Actions) > 1
	}
	entry := func(f *ofctl.Flow) bool { return f.Table == pipeline.TableServiceFrontend && servesService(f) }
	for _, c := range []refusalCase{
		{"an endpoint", backend, []byte{7, 9}, "goto_table:17", "goto_table:17", "ct("},
		{"slots", ofTable(pipeline.TableServiceSlot), []byte{7}, "goto_table:75", "goto_table:17", "ct("},
		{"choice", ofTable(pipeline.TableServiceChoice), nil, "goto_table:75", "goto_table:75", "ct("},
		{"translation", ofTable(pipeline.TableServiceEndpoint), nil, "goto_table:75", "goto_table:75", "ct("},
		{"frontends' actions", leading, []byte{7, 8, 9}, "goto_table:75", "goto_table:75", "ct("},
		{"frontends' match", entry, []byte{7, 8, 9}, "", "", "goto_table:75"},
		{"all", servesService, nil, "", "", ""},
	} {
		for _, present := range []bool{true, false} { // when the session begins, or when they come
			t.Run(fmt.Sprintf("%s, present %v", c.name, present), func(t *testing.T) { refusedFlows(t, &c, present) })
		}
	}
}

// refusalCase is a switch that refuses flows of Services, and what becomes of these.
type refusalCase struct {
	name              string
	refuses           func(*ofctl.Flow) bool
	endpoints         []byte // of both Services
	web, other, outer string // actions of their frontends, and of the way to the external address; empty: no flow
}

func refusedFlows(t *testing.T, c *refusalCase, present bool) {
	x := translating(t, t.TempDir(), newPickySwitch())
	defer x.close()
	x.attached(7, 8, 9)
	refuses := c.refuses
	x.sw.refuses = func(f *ofctl.Flow) bool {
		return refuses(f) && (f.Table != pipeline.TableServiceChoice || servesService(f)) &&
			(f.Table != pipeline.TableServiceEndpoint || servesService(f))
	}
	x.begin()
	x.web(7, 8, 9)
	x.other(7)
	if present {
		x.detach()
		if err := x.attach(t.Context(), x.sw); err != nil {
			t.Fatal(err)
		}
	}
	if len(x.sw.closed) > 0 || x.session == nil {
		t.Fatal("the session was closed")
	}
	x.rejected(c.web, "10.96.0.1", pipeline.TableServiceFrontend)
	x.rejected(c.other, "203.0.113.2", pipeline.TableServiceFrontend)
	x.rejected(c.outer, "203.0.113.2", pipeline.TableService)
	if got := x.leadsTo(); c.web != "" && !slices.Equal(got, c.endpoints) {
		t.Errorf("flows lead to %v, want %v", got, c.endpoints)
	}
	if len(x.noted()["shop/web"]) == 0 {
		t.Error("nothing is shown")
	}
	x.checked("with refused flows")
	refuses = func(*ofctl.Flow) bool { return false }
	x.detach()
	if err := x.attach(t.Context(), x.sw); err != nil {
		t.Fatal(err)
	}
	x.expect("the switch takes all", 7, 8, 9)
	x.rejected("goto_table:17", "10.96.0.1", pipeline.TableServiceFrontend)
	if len(x.noted()) > 0 {
		t.Errorf("problems: %v", x.noted())
	}
}

// rejected fails the test unless the flow to an address has actions that contain a text; empty: there is no flow.
func (x *translator) rejected(want, to string, table uint8) {
	x.Helper()
	got := x.leads(table, to)
	if want == "" && len(got) > 0 || want != "" && (len(got) != 1 || !strings.Contains(got[0], want)) {
		x.Errorf("table %d, %s: %q, want %q", table, to, got, want)
	}
}

// checked fails the test where the switch does not hold the flows that are wanted.
func (x *translator) checked(why string) {
	x.Helper()
	d, err := x.translation.difference(x.Context(), x.sw, x.compiler.Flows())
	if err != nil || !d.Empty() {
		x.Errorf("%s: %d missing, %d changed, %d extra: %v", why, d.Missing, d.Changed, d.Extra, err)
	}
}

// TestTranslation_RefusedGroupsReject: Services that need a group which the switch refuses are rejected, until it takes
// the group.
func TestTranslation_RefusedGroupsReject(t *testing.T) {
	x := translating(t, t.TempDir(), newPickySwitch())
	defer x.close()
	x.attached(7, 8, 9)
	x.sw.refusesGroup = func(id uint32) bool { return id == 3 } // of 8 slots, for three endpoints
	x.begin()
	x.web(7, 8, 9)
	x.other(7)
	if len(x.sw.groups) != 7 || len(x.translation.groups()) != 7 {
		t.Errorf("%d groups on the switch, %d wanted", len(x.sw.groups), len(x.translation.groups()))
	}
	x.rejected("goto_table:75", "10.96.0.1", pipeline.TableServiceFrontend)
	x.rejected("goto_table:17", "203.0.113.2", pipeline.TableServiceFrontend)
	if problems := x.noted()["shop/web"]; len(problems) != 1 || !strings.Contains(problems[0], "group 3") {
		t.Errorf("problems: %q", problems)
	}
	x.web(7, 8)
	x.rejected("goto_table:17", "10.96.0.1", pipeline.TableServiceFrontend)
	x.web(7, 8, 9)
	x.sw.refusesGroup = nil
	x.detach()
	if err := x.attach(t.Context(), x.sw); err != nil {
		t.Fatal(err)
	}
	x.rejected("goto_table:17", "10.96.0.1", pipeline.TableServiceFrontend)
	if len(x.sw.groups) != 8 || len(x.noted()) > 0 {
		t.Errorf("%d groups; problems %v", len(x.sw.groups), x.noted())
	}
}

// TestTranslation_FullTableOfARealSwitch: a switch with too little room for slots rejects the Services that need more,
// and all others are in force.
func TestTranslation_FullTableOfARealSwitch(t *testing.T) {
	t.Parallel()
	sw := ovstest.Start(t, 1)
	sw.VSCtl(t, "--", "--id=@full", "create", "Flow_Table", "flow_limit=4", "overflow_policy=refuse",
		"--", "set", "Bridge", sw.Bridge, fmt.Sprintf("flow_tables:%d=@full", pipeline.TableServiceSlot))
	x := translating(t, t.TempDir(), nil)
	defer x.close()
	s, err := ofctl.Connect(t.Context(), sw.Management())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	x.drift.Dial = func(ctx context.Context) (driftcheck.Reader, error) { return ofctl.Connect(ctx, sw.Management()) }
	x.attached(7, 8, 9)
	x.node.configure(t.Context())
	x.translation.beginServices(t.Context())
	if err := x.attach(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	x.web(7, 8, 9) // 8 slots
	x.other(7)
	if x.session == nil {
		t.Fatal("the session was closed")
	}
	to := func(address string) string {
		return sw.OFCtl(t, "dump-flows", "--no-stats", fmt.Sprintf("table=%d,ip,nw_dst=%s",
			pipeline.TableServiceFrontend, address))
	}
	if got := to("10.96.0.1"); !strings.Contains(got, "53 actions=drop") && !strings.Contains(got, "goto_table:75") {
		t.Errorf("the Service without room: %s", got)
	}
	if got := to("203.0.113.2"); !strings.Contains(got, "goto_table:17") {
		t.Errorf("another Service: %s", got)
	}
	if problems := x.noted(); len(problems) != 1 || len(problems["shop/web"]) != 1 {
		t.Errorf("problems: %q", problems)
	}
	if d, err := x.translation.difference(t.Context(), s, x.compiler.Flows()); err != nil || !d.Empty() {
		t.Errorf("%d missing, %d changed, %d extra: %v", d.Missing, d.Changed, d.Extra, err)
	}
}
