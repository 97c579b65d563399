package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// heavyVariable has the pid of the run that holds the lock of heavy runs; see scripts/lib.sh. All programs of a run have
// it, but not those of sandbox clusters.
const heavyVariable = "FLOWKEEP_HEAVY"

// runSandboxes are the clusters of tests, which nothing but a run of tests boots.
var runSandboxes = []string{"test", "test-geneve", "test-install", "test-nodes", "test-quiet", "test-shape", "soak",
	"conformance", "cyclonus"}

// testNamespace is the name of a network namespace of a unit test, with the pid of the test program.
var testNamespace = regexp.MustCompile(`^(?:flowkeep-test-|fk-chrome-|fk-unit)(\d+)\b`)

// terminationTime is how long processes of ended runs may clean up after SIGTERM.
const terminationTime = 20 * time.Second

// A machine has the folders in which runs leave something.
type machine struct{ proc, netns, sandboxes, shm string }

var thisMachine = machine{"/proc", "/run/netns", "/var/lib/flowkeep-sandbox", "/dev/shm"}

// removeLeftovers removes the processes, clusters, network namespaces and links of ended runs.
func (g *gate) removeLeftovers(m machine) {
	g.endProcesses(func() []int { return m.leftProcesses(os.Getpid()) })
	for _, name := range m.leftSandboxes() {
		g.step("removing the sandbox %s, unless a run uses it", name)
		g.removeSandbox(name)
	}
	for _, name := range m.leftNamespaces() {
		g.step("removing the network namespace %s of an ended test", name)
		g.command("sh", "-c", `ip netns pids "$0" | xargs -r kill -9; ip netns del "$0"`, name)
	}
	for _, link := range m.leftLinks(interfaces()) {
		g.step("removing the link %s of an ended run", link)
		g.command("ip", "link", "del", link)
	}
}

// command runs a command and prints its failure.
func (g *gate) command(name string, args ...string) {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		g.step("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}

// endProcesses sends SIGTERM to the listed processes, and SIGKILL after terminationTime.
func (g *gate) endProcesses(list func() []int) {
	signal := func(pids []int, s syscall.Signal) {
		for _, pid := range pids {
			_ = syscall.Kill(pid, s) // it may have ended
		}
	}
	left := list()
	if len(left) == 0 {
		return
	}
	g.step("ending %d processes of ended runs", len(left))
	signal(left, syscall.SIGTERM)
	for end := time.Now().Add(terminationTime); len(left) > 0 && time.Now().Before(end); left = list() {
		time.Sleep(100 * time.Millisecond)
	}
	signal(left, syscall.SIGKILL)
}

// lives reports whether there is a process that has not ended; see proc(5).
func (m machine) lives(pid string) bool {
	fields := m.stat(pid)
	return len(fields) > 0 && fields[0] != "Z" && fields[0] != "X"
}

// stat returns the fields of /proc/PID/stat from the state on, none if there is no process.
func (m machine) stat(pid string) []string {
	if pid == "" {
		return nil
	}
	text, _ := os.ReadFile(filepath.Join(m.proc, pid, "stat"))
	return strings.Fields(string(text)[strings.LastIndex(string(text), ")")+1:])
}

// isRun reports whether a run lives that is given by its pid and, if known, by the time at which it started: a later
// process may have the same pid.
func (m machine) isRun(pid, started string) bool {
	const startTime = 19 // field 22 of the file
	fields := m.stat(pid)
	return m.lives(pid) && (started == "" || len(fields) <= startTime || fields[startTime] == started)
}

// sharesPIDs reports whether a process has its pid in the namespace of this one: the variables of others have other pids.
func (m machine) sharesPIDs(pid int) bool {
	namespace := func(process string) string {
		name, _ := os.Readlink(filepath.Join(m.proc, process, "ns", "pid")) // none of one that has ended
		return name
	}
	return namespace(strconv.Itoa(pid)) == namespace("self")
}

// leftProcesses returns the processes of runs that have ended. The process self and its ancestors are not among them.
func (m machine) leftProcesses(self int) (pids []int) {
	var spared []int
	for pid := self; pid > 1; pid = m.parent(pid) {
		spared = append(spared, pid)
	}
	folders, _ := filepath.Glob(filepath.Join(m.proc, "[0-9]*")) // the pattern is valid
	for _, folder := range folders {
		pid, _ := strconv.Atoi(filepath.Base(folder))
		text, _ := os.ReadFile(filepath.Join(folder, "environ")) // no text of one that has ended
		if run := runOf(string(text)); run != "" && !m.lives(run) && m.sharesPIDs(pid) && !slices.Contains(spared, pid) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// runOf returns the run's pid in the text of /proc/PID/environ, empty if there is none.
func runOf(environ string) string {
	for variable := range strings.SplitSeq(environ, "\x00") {
		run, found := strings.CutPrefix(variable, heavyVariable+"=")
		if _, err := strconv.Atoi(run); found && err == nil {
			return run
		}
	}
	return ""
}

// parent returns the parent of a process, 0 if there is none.
func (m machine) parent(pid int) int {
	fields := m.stat(strconv.Itoa(pid)) // state, parent
	if len(fields) < 2 {
		return 0
	}
	parent, _ := strconv.Atoi(fields[1])
	return parent
}

// leftSandboxes returns the clusters of runs that have ended.
func (m machine) leftSandboxes() []string {
	return slices.DeleteFunc(m.sandboxNames(), func(name string) bool { return !m.isLeft(name) })
}

// isLeft reports whether a run that has ended booted a cluster, and does not keep it.
func (m machine) isLeft(name string) bool {
	if _, err := os.Stat(filepath.Join(m.sandboxes, name, "kept")); err == nil || name == "demo" || name == "try" {
		return false
	}
	run, err := os.ReadFile(filepath.Join(m.sandboxes, name, "heavy"))
	if err != nil {
		return slices.Contains(runSandboxes, name)
	}
	fields := append(strings.Fields(string(run)), "", "")
	return !m.isRun(fields[0], fields[1])
}

// sandboxNames returns the names of clusters that have a folder, a network namespace or a folder of etcd; see
// systemtests/sandbox/lib.sh.
func (m machine) sandboxNames() (names []string) {
	names = list(m.sandboxes)
	for _, file := range list(m.netns) {
		if rest, found := strings.CutPrefix(file, "fk-"); found && strings.Contains(rest, "-") {
			names = append(names, rest[:strings.LastIndex(rest, "-")])
		}
	}
	for _, file := range list(m.shm) {
		name, found := strings.CutSuffix(strings.TrimPrefix(file, "flowkeep-"), "-etcd")
		if found && strings.HasPrefix(file, "flowkeep-") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// leftNamespaces returns the network namespaces of unit tests that have ended.
func (m machine) leftNamespaces() (names []string) {
	for _, name := range list(m.netns) {
		if match := testNamespace.FindStringSubmatch(name); match != nil && !m.lives(match[1]) {
			names = append(names, name)
		}
	}
	return names
}

// clusterLink is the name of the machine's link to the nodes of a cluster.
var clusterLink = regexp.MustCompile(`^fks\d+$`)

// leftLinks returns the links of clusters, if no cluster has a namespace for the other ends.
func (m machine) leftLinks(links []string) (left []string) {
	hasLink := func(file string) bool { return strings.HasPrefix(file, "fk-") && strings.HasSuffix(file, "-lan") }
	if slices.ContainsFunc(list(m.netns), hasLink) {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(links), func(link string) bool { return !clusterLink.MatchString(link) })
}

func interfaces() []string { return list("/sys/class/net") }

// list returns the names in a folder, none if it cannot be read.
func list(folder string) (names []string) {
	entries, _ := os.ReadDir(folder)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}
