package hostnet

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/flowkeep/flowkeep/api/wellknown"
	"github.com/flowkeep/flowkeep/internal/testkit/netns"
)

// otherProgram is the environment variable with which this test's program is another one: after each line of its
// input it deletes the policy rule 60 by a socket that it keeps.
const otherProgram = "FLOWKEEP_TEST_OTHER_PROGRAM"

func init() {
	kind := os.Getenv(otherProgram)
	if kind == "" {
		return
	}
	for range kind { // a letter for each socket, of which the first has the process id as its port id
		socket, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			panic(err)
		}
		if kind = kind[1:]; kind != "" {
			defer socket.Close()
			continue
		}
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			r := netlink.NewRule()
			r.Family, r.Priority = netlink.FAMILY_V4, 60
			fmt.Println(socket.RuleDel(r))
		}
	}
	os.Exit(0)
}

// watchedPrograms starts Watch in a network namespace, and returns the changes with programs that it reports.
func watchedPrograms(t *testing.T, h *netns.Namespace) <-chan Change {
	t.Helper()
	watched := func() Watched {
		return Watched{Table: serviceTable, Priority: wellknown.RulePriority, Addresses: nodeConfig().Self.Addresses}
	}
	ctx, cancel := context.WithCancel(t.Context())
	begun, changes, ended := make(chan struct{}, 1000), make(chan Change, 1000), make(chan error, 1)
	reports := Reports{
		Changed: func() { begun <- struct{}{} },
		By:      func(c Change) { changes <- c },
		IsKnown: func(Change) bool { return true },
	}
	go h.Do(func() { ended <- Watch(ctx, watched, new(Kept), reports) })
	<-begun
	go func() {
		for range begun {
			continue
		}
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return changes
}

// awaitChange makes a change again and again, with Setup in between, until Watch reports a program for an object. A
// process may end before its sockets could be read.
func awaitChange(t *testing.T, h *netns.Namespace, changes <-chan Change, change func(), want Change) {
	t.Helper()
	const maxRounds = 60
	for range maxRounds {
		in(t, h, func() error { change(); return Setup(nodeConfig()) })
		for timeout := time.After(200 * time.Millisecond); ; {
			select {
			case got := <-changes:
				if got == want {
					return
				}
				if short, _, _ := strings.Cut(want.Program, ","); got.Program != short { // it had ended
					t.Fatalf("reported %+v, want %+v", got, want)
				}
				continue
			case <-timeout:
			}
			break
		}
	}
	t.Errorf("not reported in %d changes: %+v", maxRounds, want)
}

// testProgram is the name of this test's program as the kernel has it.
func testProgram(t *testing.T) string {
	t.Helper()
	name, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(name))
}

// TestWatch_NamesPrograms: Watch names a program that ends at once and the one that started it, and never this one,
// which repairs.
func TestWatch_NamesPrograms(t *testing.T) {
	parents := ", started by sh, started by " + testProgram(t)
	for name, c := range map[string]struct {
		command string
		want    Change
	}{
		"rule":    {"ip rule del pref 60", Change{"rule", "60", "ip" + parents}},
		"route":   {"ip route del 10.244.2.0/24", Change{"route", "10.244.2.0/24 in table 254", "ip" + parents}},
		"address": {"ip addr del 10.244.1.1/32 dev fk-gw", Change{"address", "10.244.1.1", "ip" + parents}},
		"tables":  {"nft delete table inet flowkeep", Change{ObjectNftables, TableName, "nft" + parents}},
	} {
		t.Run(name, func(t *testing.T) {
			h := host(t)
			in(t, h, func() error { return Setup(nodeConfig()) })
			changes := watchedPrograms(t, h)
			awaitChange(t, h, changes, func() { shell(t, c.command+"; true") }, c.want)
		})
	}
}

// TestWatch_NamesLongLivedPrograms: a program is named also where its port id is not its process id here: that of
// another PID namespace, or a random one.
func TestWatch_NamesLongLivedPrograms(t *testing.T) {
	for name, c := range map[string]struct {
		sockets string
		flags   uintptr
	}{
		"process id":            {"1", 0},
		"random port id":        {"12", 0},
		"another PID namespace": {"1", unix.CLONE_NEWPID},
	} {
		t.Run(name, func(t *testing.T) {
			h := host(t)
			in(t, h, func() error { return Setup(nodeConfig()) })
			// by a shell: processes that this one starts are its own
			other := exec.Command("sh", "-c", `"$0"; true`, "/proc/self/exe")
			exe, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(t.TempDir(), "other")
			if err := os.Symlink(exe, path); err != nil {
				t.Fatal(err)
			}
			other.Args[3] = path
			other.Env = append(os.Environ(), otherProgram+"="+c.sockets)
			other.SysProcAttr = &syscall.SysProcAttr{Cloneflags: c.flags}
			lines, err := other.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			out, err := other.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			in(t, h, other.Start)
			t.Cleanup(func() { lines.Close(); _ = other.Wait() })
			results, changes := bufio.NewReader(out), watchedPrograms(t, h)
			awaitChange(t, h, changes, func() {
				fmt.Fprintln(lines)
				if text, err := results.ReadString('\n'); err != nil || text != "<nil>\n" {
					t.Errorf("delete the rule: %q, %v", text, err)
				}
			}, Change{"rule", "60", "other, started by sh, started by " + testProgram(t)})
		})
	}
}

// TestWatch_OwnChanges: Watch names no program for what Setup writes itself or by nft.
func TestWatch_OwnChanges(t *testing.T) {
	h := host(t)
	in(t, h, func() error { return Setup(nodeConfig()) })
	changes := watchedPrograms(t, h)
	in(t, h, func() error {
		for range 5 {
			if err := Teardown(DefaultNumbers); err != nil {
				return err
			}
			if err := Setup(nodeConfig()); err != nil {
				return err
			}
		}
		return nil
	})
	select {
	case c := <-changes:
		t.Errorf("reported %+v", c)
	case <-time.After(2 * time.Second):
	}
}

// fakeProc is a directory as of proc(5). A process has its name, its parent and the inode numbers of its sockets.
func fakeProc(t *testing.T, processes map[int][]string) string {
	t.Helper()
	dir := t.TempDir()
	for pid, p := range processes {
		fd := filepath.Join(dir, strconv.Itoa(pid), "fd")
		if err := os.MkdirAll(fd, 0o700); err != nil {
			t.Fatal(err)
		}
		status := fmt.Sprintf("Name:\t%s\nUmask:\t0022\nPPid:\t%s\nUid:\t0\n", p[0], p[1])
		if err := os.WriteFile(filepath.Join(filepath.Dir(fd), "status"), []byte(status), 0o600); err != nil {
			t.Fatal(err)
		}
		for i, inode := range p[2:] {
			if err := os.Symlink("socket:["+inode+"]", filepath.Join(fd, strconv.Itoa(i))); err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir
}

// netlinkTable is /proc/net/netlink with sockets of the inode numbers 500 and so on.
func netlinkTable(ports ...string) string {
	text := "sk               Eth Pid        Groups   Rmem     Wmem     Dump  Locks    Drops    Inode\n"
	text += "0000000000000000 12  77         00000000 0        0        0     2        0        499\n"
	for i, port := range ports {
		const format = "0000000000000000 0   %-10s 00000000 0        0        0     2        0        %d\n"
		text += fmt.Sprintf(format, port, 500+i)
	}
	return text
}

func TestPrograms_OfPort(t *testing.T) {
	proc := fakeProc(t, map[int][]string{
		1:  {"systemd", "0"},
		10: {"netplugin", "1", "507", "500"},
		20: {"sshd", "1", "900"},
		21: {"keepalived", "1", "501"},
		22: {"ip", "24", "502"},
		23: {"nft", "10", "503"},
		24: {"sh", "21"},
		25: {"felix", "26", "504", "505"},
		26: {"containerd-shim", "1"},
		27: {"a;b\"c", "1", "506"},
	})
	table := netlinkTable("10", "21", "22", "23", "20", "4000000000", "27", "4000000001")
	for name, c := range map[string]struct {
		port uint32
		want string
	}{
		"holder":                      {21, "keepalived"},
		"shell between":               {22, "ip, started by sh, started by keepalived"},
		"this process":                {10, ""},
		"another socket of this":      {4000000001, ""},
		"started by this process":     {23, ""},
		"another holds it":            {20, "felix, started by containerd-shim"},
		"random":                      {4000000000, "felix, started by containerd-shim"},
		"socket closed":               {24, ""},
		"of another netlink protocol": {77, ""},
		"kernel":                      {0, ""},
		"unprintable":                 {27, "a?b?c"},
	} {
		t.Run(name, func(t *testing.T) {
			p := &programs{
				proc:    proc,
				self:    10,
				table:   strings.NewReader(table),
				lookups: budget{limit: 1, interval: time.Hour},
				scans:   budget{limit: 1, interval: time.Hour},
			}
			if got := p.ofPort(c.port); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
			if got := p.ofPort(c.port); got != "" {
				t.Errorf("%q without a budget", got)
			}
		})
	}
	if got := (*programs)(nil).ofPort(21); got != "" {
		t.Errorf("%q without a /proc", got)
	}
}

// TestPrograms_OfThread: the kernel's name of a thread counts, and /proc only where it has the same name and the same
// PID namespace.
func TestPrograms_OfThread(t *testing.T) {
	proc := fakeProc(t, map[int][]string{
		10: {"netplugin", "1"},
		21: {"nft", "22"},
		22: {"foo", "1"},
		23: {"nft", "10"},
	})
	for name, c := range map[string]struct {
		thread  uint32
		comm    string
		isFirst bool
		want    string
	}{
		"parent":                {21, "nft", true, "nft, started by foo"},
		"ended":                 {30, "nft", true, "nft"},
		"another process":       {21, "firewalld", true, "firewalld"},
		"another PID namespace": {21, "nft", false, "nft"},
		"own":                   {23, "nft", true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := &programs{proc: proc, self: 10, isFirst: c.isFirst, lookups: budget{limit: 1, interval: time.Hour}}
			if got := p.ofThread(c.thread, c.comm); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

func TestBudget(t *testing.T) {
	b, now := budget{limit: 2, interval: time.Second}, time.Now()
	for i, want := range []bool{true, true, false, false} {
		if b.take(now.Add(time.Duration(i))) != want {
			t.Errorf("%d in a second: %v", i+1, !want)
		}
	}
	if !b.take(now.Add(time.Second)) {
		t.Error("refused a second later")
	}
}

// TestChildren: the port ids of processes are kept for a while, and random ones are doubtful meanwhile.
func TestChildren(t *testing.T) {
	var c children
	const random = 4000000000
	if c.mayHave(random, time.Now()) {
		t.Error("a random port id without a process")
	}
	cmd := exec.Command("true")
	cmd.Stdout = io.Discard
	if err := c.run(cmd); err != nil {
		t.Fatal(err)
	}
	pid := uint32(cmd.Process.Pid)
	for _, s := range []struct {
		port  uint32
		after time.Duration
		want  bool
	}{
		{pid, 0, true},
		{pid + 1, 0, false},
		{random, 0, true},
		{pid, 2 * endedExpiry, false},
		{random, 2 * endedExpiry, false},
	} {
		if c.mayHave(s.port, time.Now().Add(s.after)) != s.want {
			t.Errorf("port id %d after %v: %v", s.port, s.after, !s.want)
		}
	}
	if err := c.run(exec.Command("/does/not/exist")); err == nil {
		t.Error("no error")
	}
}
