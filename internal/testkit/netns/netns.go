// Package netns creates network namespaces for tests.
//
//	netns.New(t).Enter(t) // the rest of the test runs in a network namespace of its own
//
//	pod := netns.NewNamed(t, "pod") // with a path below /run/netns
//	pod.Do(func() { l, err = net.Listen("tcp", "192.0.2.2:80") })
//
// A network namespace belongs to an operating system thread. Enter and Do therefore lock the goroutine to its thread.
// A goroutine that runs in a namespace starts others, subtests among them, outside of it. Programs that it starts run
// inside.
package netns

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Dir holds the names of network namespaces, as ip-netns(8) has it.
const Dir = "/run/netns"

// init keeps the process's first thread for the main goroutine. The kernel shows the namespaces of that thread as
// those of the process (/proc/self/ns), and the runtime cannot end it.
func init() { runtime.LockOSThread() }

// Namespace is a network namespace whose loopback interface is up. It ends with the test.
type Namespace struct {
	t      testing.TB
	name   string // below Dir, or empty
	handle vnetns.NsHandle
	remove func() error
}

// New creates a network namespace without a name. The test is skipped where it may not create one.
func New(t testing.TB) *Namespace {
	t.Helper()
	return create(t, "")
}

// NewNamed creates a network namespace with a unique name below Dir, for programs that need a path. The name ends in
// the given part. The test's cleanup removes it, unless Delete did.
func NewNamed(t testing.TB, part string) *Namespace {
	t.Helper()
	return create(t, fmt.Sprintf("flowkeep-test-%d-%08x-%s", os.Getpid(), rand.Uint32(), part))
}

func create(t testing.TB, name string) *Namespace {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: it creates network namespaces")
	}
	handle, err := add(name)
	if errors.Is(err, unix.EPERM) {
		t.Skipf("cannot create a network namespace here: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	n := &Namespace{t: t, name: name, handle: handle}
	n.remove = sync.OnceValue(func() error {
		err := n.handle.Close()
		if name != "" {
			err = errors.Join(err, Delete(name))
		}
		return err
	})
	t.Cleanup(func() {
		if err := n.remove(); err != nil {
			t.Errorf("delete a network namespace: %v", err)
		}
	})
	return n
}

// Delete ends a namespace before the test does, as a container runtime does: its path goes, and the namespace goes
// with its last user.
func (n *Namespace) Delete() {
	n.t.Helper()
	if err := n.remove(); err != nil {
		n.t.Fatalf("delete a network namespace: %v", err)
	}
}

// Name returns the name below Dir, for `ip -n`; it is empty after New.
func (n *Namespace) Name() string { return n.name }

// Path returns a path of the namespace for this process and for others. The path of an unnamed namespace ends with
// this process.
func (n *Namespace) Path() string {
	if n.name == "" {
		return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n.FD())
	}
	return filepath.Join(Dir, n.name)
}

// FD returns the file descriptor that keeps the namespace.
func (n *Namespace) FD() int { return int(n.handle) }

// Enter runs the rest of the test in the namespace, its cleanup functions included. The goroutine's thread ends with
// the test.
func (n *Namespace) Enter(t testing.TB) {
	t.Helper()
	runtime.LockOSThread() // never unlocked: the runtime ends the thread
	if err := vnetns.Set(n.handle); err != nil {
		t.Fatalf("enter a network namespace: %v", err)
	}
}

// EnterWithMounts is Enter with a private mount namespace, in which /sys shows the interfaces of the network namespace.
func (n *Namespace) EnterWithMounts(t testing.TB) {
	t.Helper()
	n.Enter(t)
	err := unix.Unshare(unix.CLONE_NEWNS)
	if errors.Is(err, unix.EPERM) {
		t.Skipf("cannot create a mount namespace here: %v", err)
	}
	if err == nil {
		err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	}
	if err == nil {
		err = unix.Mount("sysfs", "/sys", "sysfs", 0, "")
	}
	if err != nil {
		t.Fatalf("create a mount namespace: %v", err)
	}
}

// Do runs f in the namespace, on the goroutine of the caller. It may be nested, and f may end the test.
func (n *Namespace) Do(f func()) {
	n.t.Helper()
	runtime.LockOSThread()
	home, err := vnetns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		n.t.Fatalf("open the thread's network namespace: %v", err)
	}
	if err := vnetns.Set(n.handle); err != nil {
		err = errors.Join(err, home.Close())
		runtime.UnlockOSThread()
		n.t.Fatalf("enter a network namespace: %v", err)
	}
	defer func() {
		if err := errors.Join(vnetns.Set(home), home.Close()); err != nil {
			n.t.Errorf("leave a network namespace: %v", err)
			return // the thread stays locked: the runtime ends it with the goroutine
		}
		runtime.UnlockOSThread()
	}()
	f()
}

// Add creates a network namespace with a name below Dir, its loopback interface up. It is for programs; tests have
// NewNamed.
func Add(name string) error {
	handle, err := add(name)
	if err != nil {
		return err
	}
	return handle.Close()
}

// Delete removes a name below Dir. One that does not exist is fs.ErrNotExist.
func Delete(name string) error {
	path := filepath.Join(Dir, name)
	err := unix.Unmount(path, unix.MNT_DETACH)
	if err != nil && !errors.Is(err, unix.EINVAL) { // EINVAL: a name without a namespace
		return &os.PathError{Op: "unmount", Path: path, Err: err}
	}
	return os.Remove(path)
}

// add creates a network namespace on a thread that ends with it.
func add(name string) (handle vnetns.NsHandle, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the runtime ends the thread
		if handle, err = vnetns.New(); err != nil {
			err = fmt.Errorf("create a network namespace: %w", err)
			return
		}
		err = setUp()
		if err == nil && name != "" {
			err = keep(name)
		}
		if err != nil {
			err = errors.Join(fmt.Errorf("create a network namespace: %w", err), handle.Close())
		}
	}()
	<-done
	return handle, err
}

// setUp brings the loopback interface up.
func setUp() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(lo)
}

// keep gives the thread's network namespace a name.
func keep(name string) error {
	if err := os.MkdirAll(Dir, 0o755); err != nil {
		return err
	}
	unlock, err := lockDir()
	if err != nil {
		return err
	}
	defer unlock()
	path := filepath.Join(Dir, name)
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o444)
	if err != nil {
		return err
	}
	file.Close()
	if err := unix.Mount("/proc/thread-self/ns/net", path, "none", unix.MS_BIND, ""); err != nil {
		return errors.Join(&os.PathError{Op: "mount", Path: path, Err: err}, os.Remove(path))
	}
	return nil
}

// lockDir makes Dir a shared mount, as `ip netns add` does and under the same lock: a later one would hide what is
// mounted below.
func lockDir() (unlock func(), err error) {
	dir, err := os.Open(Dir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
		dir.Close()
		return nil, &os.PathError{Op: "lock", Path: Dir, Err: err}
	}
	err = unix.Mount("", Dir, "none", unix.MS_SHARED|unix.MS_REC, "")
	if errors.Is(err, unix.EINVAL) { // no mount point
		if err = unix.Mount(Dir, Dir, "none", unix.MS_BIND|unix.MS_REC, ""); err == nil {
			err = unix.Mount("", Dir, "none", unix.MS_SHARED|unix.MS_REC, "")
		}
	}
	if err != nil {
		dir.Close()
		return nil, &os.PathError{Op: "share", Path: Dir, Err: err}
	}
	return func() { dir.Close() }, nil
}
