package clean

import (
	"os"
	"testing"

	"github.com/flowkeep/flowkeep/netplugin/hostnet"
)

// TestRecord_GoesWithoutTheState: the numbers of an installation do not outlive it, also where the state is kept.
func TestRecord_GoesWithoutTheState(t *testing.T) {
	cfg := &Config{StateDir: t.TempDir()}
	for range 2 {
		list, err := record(t.Context(), cfg)
		if len(list) > 0 || err != nil {
			t.Fatalf("without a record: %v (%v)", list, err)
		}
		if err := hostnet.WriteRecord(cfg.StateDir, hostnet.DefaultNumbers); err != nil {
			t.Fatal(err)
		}
		if list, err = record(t.Context(), cfg); len(list) != 1 || err != nil {
			t.Fatalf("with a record: %v (%v)", list, err)
		}
		if err := list[0].remove(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(hostnet.RecordPath(cfg.StateDir)); !os.IsNotExist(err) {
		t.Errorf("the record is still there (%v)", err)
	}
}
