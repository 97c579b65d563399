package ovsdb_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/ofctl/ovsdb"
	"github.com/flowkeep/flowkeep/ofctl/ovstest"
)

func open(t *testing.T) (*ovsdb.DB, context.Context) {
	t.Helper()
	sw := ovstest.Start(t, 0)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	t.Cleanup(cancel)
	db, err := ovsdb.Open(ctx, sw.OVSDB())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	return db, ctx
}

func TestPortsComeAndGo(t *testing.T) {
	db, ctx := open(t)
	for i := range 2 { // the second call changes nothing
		changes, err := db.EnsureBridge(ctx, ovsdb.BridgeSpec{Name: "fk0", DatapathType: "dummy"})
		if err != nil || len(changes) > 0 {
			t.Fatalf("time %d: corrected %v, %v", i, changes, err)
		}
	}
	seen := map[uint32]string{}
	for i := range 20 {
		name := fmt.Sprintf("port%d", i)
		n, err := db.EnsurePort(ctx, ovsdb.PortSpec{Bridge: "fk0", Name: name, Internal: true, ExternalIDs: map[string]string{"pod": name}})
		if err != nil {
			t.Fatal(err)
		}
		if seen[n] != "" {
			t.Fatalf("%s and %s both have the number %d", name, seen[n], n)
		}
		seen[n] = name
		if again, err := db.EnsurePort(ctx, ovsdb.PortSpec{Bridge: "fk0", Name: name, Internal: true}); err != nil || again != n {
			t.Fatalf("asked again, %s has the number %d, not %d: %v", name, again, n, err)
		}
	}
	ports, err := db.Ports(ctx, "fk0")
	if err != nil || len(ports) != 20 {
		t.Fatalf("%d ports listed: %v", len(ports), err)
	}
	for _, p := range ports {
		if err := db.DeletePort(ctx, "fk0", p.Name); err != nil {
			t.Fatal(err)
		}
		if err := db.DeletePort(ctx, "fk0", p.Name); err != nil {
			t.Fatalf("deleting %s twice: %v", p.Name, err)
		}
	}
}
