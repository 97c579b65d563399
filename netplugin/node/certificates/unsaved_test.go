package certificates

import (
	"strings"
	"syscall"
	"testing"

	"github.com/flowkeep/flowkeep/internal/mtls"
)

// TestKeeper_UsesACertificateThatTheDiskDoesNotTake: it is in memory until the disk takes it, which Run tries again.
func TestKeeper_UsesACertificateThatTheDiskDoesNotTake(t *testing.T) {
	n := newNode(t, newMaster(t))
	k := New(n.Config)
	k.write = func(string, []byte) error { return syscall.ENOSPC }
	n.renew(k)
	got, err := k.Current()
	if err != nil || k.due() != "" || !k.isUnsaved() {
		t.Errorf("%v, due: %q, unsaved %v", err, k.due(), k.isUnsaved())
	}
	if _, err := New(n.Config).Current(); err == nil || !strings.Contains(n.log.String(), "no space left on device") {
		t.Errorf("a restart has it: %v; log: %s", err, n.log.String())
	}
	k.write = mtls.WriteFile
	k.save()
	again, err := New(n.Config).Current()
	if err != nil || !again.Own.Leaf.Equal(got.Own.Leaf) || k.isUnsaved() {
		t.Errorf("when the disk takes it: %v, unsaved %v", err, k.isUnsaved())
	}
}

// TestKeeper_DoesNotWaitForADiskThatHangs: one write is under way at most.
func TestKeeper_DoesNotWaitForADiskThatHangs(t *testing.T) {
	n := newNode(t, newMaster(t))
	k := New(n.Config)
	gate, writes := make(chan struct{}), make(chan struct{}, 9)
	k.write = func(string, []byte) error { writes <- struct{}{}; <-gate; return nil }
	n.renew(k)
	n.renew(k)
	if _, err := k.Current(); err != nil || len(writes) != 1 {
		t.Errorf("%v; %d writes are under way", err, len(writes))
	}
	close(gate)
	for k.save(); k.isUnsaved(); k.save() {
	}
}
