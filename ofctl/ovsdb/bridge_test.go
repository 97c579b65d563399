package ovsdb_test

import (
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/ofctl/ovsdb"
	"github.com/flowkeep/flowkeep/ofctl/ovstest"
)

// TestEnsurePort_OnAnotherBridge: the number of a port that another program moved is not taken for one of this bridge.
func TestEnsurePort_OnAnotherBridge(t *testing.T) {
	sw := ovstest.Start(t, 1)
	db, err := ovsdb.Open(t.Context(), sw.OVSDB())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.EnsureBridge(t.Context(), ovsdb.BridgeSpec{Name: "fk0", DatapathType: "dummy"}); err != nil {
		t.Fatal(err)
	}
	number, err := db.EnsurePort(t.Context(), ovsdb.PortSpec{Bridge: "fk0", Name: "p1"})
	if err == nil || !strings.Contains(err.Error(), "it is on bridge br0") {
		t.Errorf("number %d, %v", number, err)
	}
	number, err = db.EnsurePort(t.Context(), ovsdb.PortSpec{Bridge: sw.Bridge, Name: "p1"})
	if number == 0 || err != nil {
		t.Errorf("on its own bridge: number %d, %v", number, err)
	}
}
