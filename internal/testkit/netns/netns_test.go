package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// failing is set in the process of a test that fails in every way.
const failing = "FLOWKEEP_NETNS_TEST_FAILING"

// current returns the identity of the thread's network namespace.
func current(t testing.TB) string {
	t.Helper()
	id, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// process returns the identity of the process's network namespace, which is the first thread's.
func process(t testing.TB) string {
	t.Helper()
	id, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// hasThread reports whether the process has the thread.
func hasThread(id int) bool {
	_, err := os.Stat(fmt.Sprint("/proc/self/task/", id))
	return err == nil
}

// eventually waits until the condition holds.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	limit := time.After(time.Minute)
	for !is() {
		select {
		case <-limit:
			t.Fatal("waited in vain until " + what)
		default:
			runtime.Gosched()
		}
	}
}

func TestDo(t *testing.T) {
	t.Parallel()
	n, other := New(t), New(t)
	home, inside := current(t), ""
	n.Do(func() {
		inside = current(t)
		links, err := net.Interfaces()
		if err != nil || len(links) == 0 || links[0].Name != "lo" || links[0].Flags&net.FlagUp == 0 {
			t.Errorf("interfaces %v (%v), want lo, up", links, err)
		}
		out, err := exec.Command("readlink", "/proc/self/ns/net", n.Path()).Output()
		if want := inside + "\n" + inside + "\n"; err != nil || string(out) != want {
			t.Errorf("a program is in, and sees at the path, %q (%v), want %q", out, err, want)
		}
		other.Do(func() {
			if id := current(t); id == inside || id == home {
				t.Errorf("nested in %s", id)
			}
		})
		if id := current(t); id != inside {
			t.Errorf("after the nested Do in %s, want %s", id, inside)
		}
	})
	if id := current(t); id != home || inside == home || home != process(t) {
		t.Errorf("afterwards in %s, inside in %s, before in %s, the process in %s", id, inside, home, process(t))
	}
}

func TestDo_EndsByGoexit(t *testing.T) {
	t.Parallel()
	n, home := New(t), current(t)
	ended := make(chan string)
	go func() {
		defer func() { ended <- current(t) }()
		n.Do(runtime.Goexit)
	}()
	if id := <-ended; id != home {
		t.Errorf("afterwards in %s, want %s", id, home)
	}
}

// recorder is a test that only records whether it failed.
type recorder struct {
	testing.TB
	text string
}

func (r *recorder) Helper()                           {}
func (r *recorder) Errorf(format string, args ...any) { r.text = fmt.Sprintf(format, args...) }

// A thread without capabilities cannot return to its network namespace.
func TestDo_CannotReturn(t *testing.T) {
	t.Parallel()
	r := &recorder{TB: t}
	n := &Namespace{t: r, handle: New(t).handle}
	thread, home := make(chan int), current(t)
	go func() {
		n.Do(func() {
			header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			var none [2]unix.CapUserData
			if err := unix.Capset(&header, &none[0]); err != nil {
				t.Error(err)
			}
		})
		if current(t) == home {
			t.Error("the thread did return")
		}
		thread <- unix.Gettid()
	}()
	id := <-thread
	eventually(t, "the thread has ended", func() bool { return !hasThread(id) })
	if !strings.Contains(r.text, "operation not permitted") {
		t.Errorf("reported %q", r.text)
	}
}

func TestEnter_EndsWithItsThread(t *testing.T) {
	t.Parallel()
	threads := make([]int, 20)
	t.Run("group", func(t *testing.T) {
		for i := range threads {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				home := current(t)
				t.Cleanup(func() {
					if id := current(t); id == home {
						t.Error("a cleanup function runs outside")
					}
				})
				New(t).Enter(t)
				if threads[i] = unix.Gettid(); threads[i] == unix.Getpid() || home != process(t) || current(t) == home {
					t.Errorf("thread %d of process %d, in %s, before in %s", threads[i], unix.Getpid(), current(t), home)
				}
			})
		}
	})
	for _, id := range threads {
		eventually(t, "the thread has ended", func() bool { return !hasThread(id) })
	}
}

func TestEnterWithMounts(t *testing.T) {
	t.Parallel()
	n, dir := NewNamed(t, "mounts"), t.TempDir() // below a shared mount
	t.Run("inside", func(t *testing.T) {
		n.EnterWithMounts(t)
		mounts, err := os.ReadFile("/proc/thread-self/mountinfo")
		if err != nil || strings.Contains(string(mounts), " shared:") {
			t.Errorf("shared mounts (%v): %s", err, mounts)
		}
		links, err := os.ReadDir("/sys/class/net")
		if err != nil || slices.ContainsFunc(links, func(l fs.DirEntry) bool { return l.Name() == "eth0" }) {
			t.Errorf("sysfs shows %v (%v)", links, err)
		}
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "private"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	})
	if _, err := os.Stat(filepath.Join(dir, "private")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a mount is not private: %v", err)
	}
}

func TestNewNamed(t *testing.T) {
	t.Parallel()
	var paths []string
	t.Run("named", func(t *testing.T) {
		n, twin := NewNamed(t, "pod"), NewNamed(t, "pod")
		paths = []string{n.Path(), twin.Path()}
		n.Do(func() {
			if out, err := exec.Command("ip", "netns", "identify").CombinedOutput(); err != nil || string(out) != n.Name()+"\n" {
				t.Errorf("ip calls it %q (%v), want %q", out, err, n.Name())
			}
		})
		if n.Name() == twin.Name() || !strings.HasSuffix(n.Name(), "-pod") {
			t.Errorf("names %s and %s", n.Name(), twin.Name())
		}
		n.Delete()
		if _, err := os.Stat(n.Path()); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a path is left: %v", err)
		}
	})
	for _, path := range paths {
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("after the test: %v", err)
		}
	}
}

func TestAdd(t *testing.T) {
	t.Parallel()
	name := NewNamed(t, "add").Name() + "-2"
	t.Cleanup(func() { _ = Delete(name) })
	if err := Add(name); err != nil {
		t.Fatal(err)
	}
	if err := Add(name); !errors.Is(err, fs.ErrExist) {
		t.Errorf("added twice: %v", err)
	}
	out, err := exec.Command("ip", "-n", name, "link", "show", "up").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "lo:") {
		t.Errorf("ip shows %q (%v)", out, err)
	}
	if err := Delete(name); err != nil {
		t.Error(err)
	}
	if err := Delete(name); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("deleted twice: %v", err)
	}
}

// TestNamesAfterFailures runs itself in another process, whose tests fail with names of theirs.
func TestNamesAfterFailures(t *testing.T) {
	if os.Getenv(failing) != "" {
		for how, fail := range map[string]func(t *testing.T, n *Namespace){
			"fatal":   func(t *testing.T, n *Namespace) { n.Do(t.FailNow) },
			"skipped": func(t *testing.T, n *Namespace) { n.Do(t.SkipNow) },
			"entered": func(t *testing.T, n *Namespace) { n.Enter(t); t.FailNow() },
		} {
			t.Run(how, func(t *testing.T) {
				n := NewNamed(t, "failing")
				fmt.Println("created", n.Name())
				fail(t, n)
			})
		}
		return
	}
	t.Parallel()
	New(t) // skips where the other process would
	cmd := exec.Command(os.Args[0], "-test.run=^TestNamesAfterFailures$")
	cmd.Env = append(os.Environ(), failing+"=1")
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Errorf("the other process did not fail: %s", out)
	}
	created := 0
	for line := range strings.Lines(string(out)) {
		name, ok := strings.CutPrefix(strings.TrimSpace(line), "created ")
		if !ok {
			continue
		}
		created++
		if _, err := os.Stat(filepath.Join(Dir, name)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left: %v", name, err)
		}
	}
	if created != 3 {
		t.Errorf("%d names were created: %s", created, out)
	}
}
