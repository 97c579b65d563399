package ovsdb_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/ofctl/ovsdb"
	"github.com/flowkeep/flowkeep/ofctl/ovstest"
)

// TestFlowLimit: EnsureBridge bounds megaflows where nothing else has, and DeleteBridge removes that bound alone.
func TestFlowLimit(t *testing.T) {
	for _, c := range []struct {
		name, before, between, ensured, deleted string
	}{
		{"none was set", "", "", "50000", ""},
		{"an administrator had set one", "70000", "", "70000", "70000"},
		{"an administrator had set the same", "50000", "", "50000", "50000"},
		{"an administrator sets another later", "", "90000", "90000", "90000"},
	} {
		t.Run(c.name, func(t *testing.T) {
			sw := ovstest.Start(t, 0)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			set := func(value string) {
				if value != "" {
					sw.VSCtl(t, "set", "Open_vSwitch", ".", "other_config:flow-limit="+value)
				}
			}
			expect := func(when, want string) {
				t.Helper()
				got := strings.Trim(strings.TrimSpace(
					sw.VSCtl(t, "--if-exists", "get", "Open_vSwitch", ".", "other_config:flow-limit")), `"`)
				if got != want {
					t.Errorf("%s: the bound is %q, want %q", when, got, want)
				}
			}
			set(c.before)
			db, err := ovsdb.Open(ctx, sw.OVSDB())
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			spec := ovsdb.BridgeSpec{Name: "fk0", DatapathType: "dummy", FlowLimit: 50000}
			ensure := func() {
				t.Helper()
				if _, err := db.EnsureBridge(ctx, spec); err != nil {
					t.Fatal(err)
				}
			}
			ensure()
			ensure() // keeps the note of who has set it
			set(c.between)
			ensure()
			expect("after EnsureBridge", c.ensured)
			if err := db.DeleteBridge(ctx, "fk0"); err != nil {
				t.Fatal(err)
			}
			expect("after DeleteBridge", c.deleted)
		})
	}
}

// TestFlowLimit_OfAnEarlierVersion: a bound that an earlier EnsureBridge has set is replaced.
func TestFlowLimit_OfAnEarlierVersion(t *testing.T) {
	sw := ovstest.Start(t, 0)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	db, err := ovsdb.Open(ctx, sw.OVSDB())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, limit := range []int{100000, 50000} {
		changes, err := db.EnsureBridge(ctx, ovsdb.BridgeSpec{Name: "fk0", DatapathType: "dummy", FlowLimit: limit})
		if err != nil || len(changes) > 0 {
			t.Fatalf("bound %d: changes of other programs %v, %v", limit, changes, err)
		}
	}
	if got := strings.TrimSpace(sw.VSCtl(t, "get", "Open_vSwitch", ".", "other_config:flow-limit")); got != `"50000"` {
		t.Errorf("the bound is %s, want 50000", got)
	}
	if err := db.DeleteBridge(ctx, "fk0"); err != nil {
		t.Fatal(err)
	}
	if got := strings.TrimSpace(sw.VSCtl(t, "get", "Open_vSwitch", ".", "other_config")); got != "{}" {
		t.Errorf("after DeleteBridge there is %s", got)
	}
}
