package agent

import (
	"context"
	"encoding/json"
	"net/netip"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl"
)

// opens has the switch count packets for flows that lead to endpoints of Services.
func (s *pickySwitch) opens(packets uint64, led func(*ofctl.Counted) bool) {
	for k, f := range s.holds {
		c := ofctl.Counted{Table: k.table, Priority: k.priority, Match: k.match, Cookie: f.Cookie}
		if led(&c) {
			f.Packets += packets
			s.holds[k] = f
		}
	}
}

// TestReportService: what pods open is counted by endpoint, and a Service without endpoints counts what it refuses.
func TestReportService(t *testing.T) {
	sw := newPickySwitch()
	x := translating(t, t.TempDir(), sw)
	defer x.close()
	x.attached(7, 8)
	x.begin()
	x.web(7, 8)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go x.loop(ctx)
	report := func() (out inspect.ServiceReport) {
		t.Helper()
		x.counting.opened.took = 0
		x.counting.readOpened(ctx, time.Now())
		x.counting.opened.wanted = make(chan chan struct{}, 1)
		go func() { close(<-x.counting.opened.wanted) }()
		body, err := x.inspector.Query(ctx, []byte(`{"kind":"service-report","service":"shop/web"}`))
		if err == nil {
			err = json.Unmarshal(body, &out)
		}
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	if got := report(); got.TranslatedBy != inspect.TranslatedByOVS || !got.Held || got.Opened != 0 || got.Since.IsZero() {
		t.Errorf("before anything: %+v", got)
	}
	slots := uint64(0)
	sw.opens(3, func(c *ofctl.Counted) bool {
		led, ok := x.compiler.Led(c)
		ok = ok && led.Endpoint == netip.MustParseAddrPort("10.0.0.7:5353")
		if ok {
			slots++
		}
		return ok
	})
	if got := report(); slots == 0 || got.Opened != 3*slots || got.Unserved != 0 || len(got.Endpoints) != 1 ||
		got.Endpoints[0].Address != netip.MustParseAddr("10.0.0.7") || got.Endpoints[0].Opened != got.Opened {
		t.Errorf("%d slots: %+v", slots, got)
	}
	if err := x.do(ctx, func() { x.web() }); err != nil {
		t.Fatal(err)
	}
	sw.opens(2, func(c *ofctl.Counted) bool { return c.Table == pipeline.TableServiceFrontend && c.Match.IPProto == 17 })
	if got := report(); got.Unserved != 2 || got.Opened != 3*slots {
		t.Errorf("without endpoints: %+v", got)
	}
}

// TestReportService_KubeProxy: a node whose switch translates nothing counts nothing.
func TestReportService_KubeProxy(t *testing.T) {
	a, _, _ := running(t)
	if err := a.translation.services.Apply(web(t)); err != nil {
		t.Fatal(err)
	}
	body, err := a.inspector.Query(t.Context(), []byte(`{"kind":"service-report","service":"shop/web"}`))
	if err != nil {
		t.Fatal(err)
	}
	var got inspect.ServiceReport
	if err := json.Unmarshal(body, &got); err != nil || got.TranslatedBy != inspect.TranslatedByKubeProxy || !got.Held ||
		!got.Since.IsZero() || got.Problem != "" {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestReadOpened_Rests: a reading that took long is not repeated at once.
func TestReadOpened_Rests(t *testing.T) {
	c := newOpenedCounting()
	now := time.Now()
	c.read, c.took = now, time.Second
	if !c.rests(now.Add((openedRest - 1) * time.Second)) {
		t.Error("does not rest")
	}
	if c.rests(now.Add(openedRest * time.Second)) {
		t.Error("rests for longer than its share")
	}
}
