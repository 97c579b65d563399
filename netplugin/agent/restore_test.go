package agent

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/flowkeep/flowkeep/netplugin/endpoints"
	"github.com/flowkeep/flowkeep/netplugin/hostnet"
)

// After a restart the earlier sandbox of a pod, whose DEL has not come yet, takes nothing from the later one: neither the port nor the announcement.
func TestTheLaterSandboxIsRestored(t *testing.T) {
	for name, order := range map[string][2]uint64{"the first by name": {2, 1}, "the last by name": {1, 2}, "after one of an older version": {1, 0}} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			both := [2]endpoints.Endpoint{wired("1", "c1", 7), wired("1", "c2", 8)}
			later := both[0]
			for i := range both {
				if both[i].Order = order[i]; order[i] > order[1-i] {
					later = both[i]
				}
				keep(t, dir, both[i], true)
			}
			for range 10 { // they come in no order
				r := restored(t, dir)
				have, err := r.State(t.Context(), func() {})
				if err != nil || len(have.Announced) != 1 || have.Announced[0].Addresses[0] != later.Addresses[0] {
					t.Fatalf("announced %v (%v), want %v", have.Announced, err, later.Addresses)
				}
				if id := r.compiler.EndpointAt(later.Port); id != later.ID() {
					t.Errorf("the later one's port is %q's", id)
				}
				if id := r.compiler.EndpointAt(15 - later.Port); id != "" {
					t.Errorf("the earlier one's port is %q's", id)
				}
			}
		})
	}
}

// A sandbox that was being wired when netplugin died has taken the name: the one before has no rules any more.
func TestAnEarlierSandboxThanOneThatIsBeingWiredStaysShut(t *testing.T) {
	dir := t.TempDir()
	earlier, half := wired("1", "c1", 7), wired("1", "c2", 8)
	earlier.Order, half.Order = 1, 2
	keep(t, dir, earlier, true)
	keep(t, dir, half, false)
	if r := restored(t, dir); len(r.pods.byID) > 0 {
		t.Errorf("restored %v", r.pods.byID)
	}
}

// restored is an agent that has started with the pods that are kept in dir.
func restored(t *testing.T, dir string) *agent {
	t.Helper()
	m, err := endpoints.Open(endpoints.Config{StateDir: dir, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if len(m.List()) != 2 {
		t.Fatalf("kept are %v", m.List())
	}
	a, _, _ := running(t)
	if err := a.do(t.Context(), func() { a.pods.restorePods(m.List()) }); err != nil {
		t.Fatal(err)
	}
	return a
}

func hostIfName(container string) string {
	sum := sha256.Sum256([]byte(container + "/eth0"))
	return hostnet.PodPrefix + hex.EncodeToString(sum[:])[:12]
}

// keep writes a pod's file.
func keep(t *testing.T, dir string, e endpoints.Endpoint, realised bool) {
	t.Helper()
	e.HostIfName, e.Realised = hostIfName(e.ContainerID), realised
	text, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	dir = filepath.Join(dir, "endpoints")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, e.ContainerID+"@eth0.json"), text, 0o600); err != nil {
		t.Fatal(err)
	}
}
