package endpoints

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"
	"golang.org/x/sys/unix"
)

// newNetNS makes a network namespace that lives as long as its path is mounted, and the test at most.
func newNetNS(t *testing.T, name string) ns.NetNS {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("network namespaces need root")
	}
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() { // its thread ends with it
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- err
			return
		}
		done <- unix.Mount(fmt.Sprintf("/proc/%d/task/%d/ns/net", os.Getpid(), unix.Gettid()), path, "none", unix.MS_BIND, "")
	}()
	if err := <-done; err != nil {
		t.Skipf("cannot make a network namespace: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) })
	handle, err := ns.GetNS(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { handle.Close() })
	return handle
}

// destroy ends a namespace as a runtime does: its path goes, and with the last user the namespace.
func destroy(t *testing.T, n ns.NetNS) {
	t.Helper()
	if err := unix.Unmount(n.Path(), unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(n.Path()); err != nil {
		t.Fatal(err)
	}
	n.Close()
}
