package agent

import (
	"context"
	"encoding/json"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/ofctl/ovstest"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// tracing starts an agent with pods shop/0 to shop/2, at 10.0.0.7 to 10.0.0.9, on a real switch.
func tracing(t *testing.T) *translator {
	t.Helper()
	sw := ovstest.Start(t, 1)
	x := translating(t, t.TempDir(), nil)
	t.Cleanup(x.close)
	x.cfg.Bridge, x.cfg.OVSRunDir = sw.Bridge, sw.Dir
	s, err := ofctl.Connect(t.Context(), sw.Management())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	x.attached(7, 8, 9)
	x.node.configure(t.Context())
	x.translation.beginServices(t.Context())
	if err := x.attach(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	return x
}

// traceTo returns where a UDP packet of shop/2 is led.
func (x *translator) traceTo(ctx context.Context, to string, port uint16) inspect.ServiceTrace {
	x.Helper()
	packet := policy.Packet{
		From:     netip.MustParseAddr("10.0.0.9"),
		To:       netip.MustParseAddr(to),
		Protocol: policy.UDP,
		Port:     port,
	}
	body, err := newTracer(x.agent).Services(ctx, []policy.Packet{packet})
	var out inspect.NodeServiceTraces
	if err == nil {
		err = json.Unmarshal(body, &out)
	}
	if err != nil || len(out.Traces) != 1 || out.TranslatedBy != inspect.TranslatedByOVS {
		x.Fatalf("%s: %v", body, err)
	}
	return out.Traces[0]
}

func tablesOf(steps []inspect.TraceStep) (tables []uint8) {
	for i := range steps {
		tables = append(tables, steps[i].Table)
	}
	return tables
}

// TestTraceService: a real switch leads packets to the endpoint, or to the group that chooses one of several. A trace
// ends before policies: it would never end there.
func TestTraceService(t *testing.T) {
	t.Parallel()
	x := tracing(t)
	x.web(7, 8)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	go x.loop(ctx)
	web := func(last ...byte) {
		t.Helper()
		if err := x.do(ctx, func() { x.web(last...) }); err != nil {
			t.Fatal(err)
		}
	}
	got := x.traceTo(ctx, "10.96.0.1", 53)
	if got.Problem != "" || got.Outcome != inspect.ServiceTranslated || got.Service != "shop/web" ||
		got.Endpoint.IsValid() ||
		len(got.Endpoints) != 2 || got.Endpoints[0].Slots != got.Endpoints[1].Slots || got.Endpoints[1].Pod != "shop/1" ||
		!slices.Contains(tablesOf(got.Steps), pipeline.TableServiceChoice) {
		t.Errorf("two endpoints: %+v", got)
	}
	web(7)
	got = x.traceTo(ctx, "10.96.0.1", 53)
	if got.Endpoint != netip.MustParseAddrPort("10.0.0.7:5353") || len(got.Endpoints) != 1 ||
		got.Endpoints[0].Slots != 1 ||
		tablesOf(got.Steps)[len(got.Steps)-1] != pipeline.TableServiceTranslated {
		t.Errorf("one endpoint: %+v", got)
	}
	for i := range got.Steps {
		if s := &got.Steps[i]; s.Kind == "frontend" && s.Note != "frontend of Service shop/web" {
			t.Errorf("%+v", s)
		}
	}
	if got := x.traceTo(ctx, "10.96.0.1", 54); got.Outcome == inspect.ServiceTranslated || got.Service != "" {
		t.Errorf("another port: %+v", got)
	}
	if got := x.traceTo(ctx, "198.51.100.1", 53); got.Outcome != inspect.ServiceUntranslated || got.Service != "" {
		t.Errorf("an address outside: %+v", got)
	}
	web()
	if got := x.traceTo(ctx, "10.96.0.1", 53); got.Outcome == inspect.ServiceTranslated ||
		got.Outcome == inspect.ServiceUntranslated || got.Service != "shop/web" {
		t.Errorf("no endpoint: %+v", got)
	}
}

// TestTrace_OfExternalAddressEnds: a trace of a packet to a node port, which netctl explain requests too, ends before
// the connection is committed. Behind it, ovs-vswitchd would go on for ever.
func TestTrace_OfExternalAddressEnds(t *testing.T) {
	t.Parallel()
	x := tracing(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	x.nodePort(30053, 7)
	go x.loop(ctx)
	packet := policy.Packet{
		From:     netip.MustParseAddr("10.0.0.9"),
		To:       netip.MustParseAddr("192.0.2.2"),
		Protocol: policy.UDP,
		Port:     30053,
	}
	got := x.traceTo(ctx, "192.0.2.2", 30053)
	if got.Outcome != inspect.ServiceTranslated || got.Service != "shop/web" || len(got.Endpoints) != 1 {
		t.Errorf("%+v", got)
	}
	body, err := newTracer(x.agent).Packets(ctx, []policy.Packet{packet})
	var out inspect.NodeTraces
	if err == nil {
		err = json.Unmarshal(body, &out)
	}
	if err != nil || len(out.Traces) != 1 || out.Traces[0].Problem != "" || len(out.Traces[0].Steps) < 3 {
		t.Errorf("%s: %v", body, err)
	}
}

// TestQueryServiceTrace_Refused: too many packets, and a node that translates nothing.
func TestQueryServiceTrace_Refused(t *testing.T) {
	a, _, _ := running(t)
	if _, err := newTracer(a).Services(t.Context(), make([]policy.Packet, inspect.MostTraces+1)); err == nil {
		t.Error("very many packets")
	}
	body, err := a.inspector.Query(t.Context(), []byte(`{"kind":"service-trace","packets":[{}]}`))
	var out inspect.NodeServiceTraces
	if err == nil {
		err = json.Unmarshal(body, &out)
	}
	if err != nil || out.TranslatedBy != inspect.TranslatedByKubeProxy || len(out.Traces) > 0 {
		t.Errorf("%s: %v", body, err)
	}
}
