package hostnet

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// maxLookups is the number of senders a second that are searched for: each takes 0.2 ms, of a process with few
	// descriptors.
	maxLookups = 50
	// scanInterval is the time between two searches among all processes.
	scanInterval = 10 * time.Second
	// maxPID is the kernel's maximum process id (proc_sys_kernel(5)). Greater port ids are random.
	maxPID = 1 << 22
	// maxDescriptors is the maximum number of file descriptors of a process that are read.
	maxDescriptors = 4096
	// maxScan is the time of a search among all processes, during which messages wait.
	maxScan = 50 * time.Millisecond
)

// programs finds the programs that send netlink messages. An rtnetlink message has the port id of the sender's socket:
// the process id of the sender in the PID namespace of the sender, or a random number, so that the number alone may be
// that of another process. A process counts as the sender if it holds the socket that has the port id when it is looked
// up. Without that there is no name. Where the sender has closed its socket and a process in another PID namespace has
// opened one with the same port id before the look-up, that one is named. It is safe for concurrent use; the nil
// pointer finds none.
type programs struct {
	proc    string        // a mount of proc(5)
	table   io.ReadSeeker // /proc/net/netlink of the watched network namespace
	self    int           // this process, as proc numbers it
	isFirst bool          // proc is of the kernel's first PID namespace

	mu      sync.Mutex
	lookups budget
	scans   budget
}

// openPrograms returns the programs of the thread's network namespace. It returns nil where they cannot be read.
func openPrograms(root string) *programs {
	p := &programs{
		proc:    filepath.Join("/", root, "proc"),
		lookups: budget{limit: maxLookups, interval: time.Second},
		scans:   budget{limit: 1, interval: scanInterval},
	}
	self, err := os.Readlink(filepath.Join(p.proc, "self"))
	if err != nil {
		return nil
	}
	if p.self, err = strconv.Atoi(self); err != nil {
		return nil
	}
	const kthreadd = 2 // exists in the first PID namespace only
	p.isFirst = p.read(kthreadd).name == "kthreadd"
	table, err := os.Open("/proc/thread-self/net/netlink")
	if err != nil {
		return nil
	}
	p.table = table
	return p
}

func (p *programs) close() {
	if p == nil {
		return
	}
	if c, ok := p.table.(io.Closer); ok {
		_ = c.Close()
	}
}

// ofPort returns the program that holds the rtnetlink socket with a port id. It is empty where that is not known, and
// for this process and those that it starts.
func (p *programs) ofPort(port uint32) string {
	const kernel = 0
	if p == nil || port == kernel {
		return ""
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.lookups.take(time.Now()) {
		return ""
	}
	var sender process // read before the table: a socket that is in both was there all the time
	var held []string
	if port <= maxPID {
		held, sender = p.sockets(int(port)), p.read(int(port))
	}
	own := p.sockets(p.self)
	inode := p.inode(port)
	switch {
	case inode == "" || slices.Contains(own, inode):
		return ""
	case slices.Contains(held, inode):
		return p.text(&sender)
	case p.scans.take(time.Now()):
		return p.scan(inode)
	}
	return ""
}

// scan searches all processes for the one that holds a socket: one in another PID namespace, or with another socket
// that has its process id as the port id.
func (p *programs) scan(inode string) string {
	entries, err := os.ReadDir(p.proc)
	if err != nil {
		return ""
	}
	deadline := time.Now().Add(maxScan)
	for _, e := range entries {
		if time.Now().After(deadline) {
			return ""
		}
		pid, err := strconv.Atoi(e.Name())
		if err != nil || !slices.Contains(p.sockets(pid), inode) {
			continue
		}
		found := p.read(pid)
		return p.text(&found)
	}
	return ""
}

// ofThread returns the program of a thread that the kernel named. It is empty for this process and those that it
// starts.
func (p *programs) ofThread(thread uint32, name string) string {
	if p == nil {
		return printable(name)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.isFirst && p.lookups.take(time.Now()) {
		if sender := p.read(int(thread)); sender.name == name {
			return p.text(&sender)
		}
	}
	return printable(name)
}

// process is a process or a thread, as proc(5) has it.
type process struct {
	parent int
	name   string
}

// read returns a process; without a name where there is none.
func (p *programs) read(id int) process {
	text, err := os.ReadFile(filepath.Join(p.proc, strconv.Itoa(id), "status"))
	if err != nil {
		return process{}
	}
	name, parent := parseStatus(string(text))
	return process{parent: parent, name: name}
}

// sockets returns the inode numbers of the sockets that a process holds.
func (p *programs) sockets(id int) (inodes []string) {
	dir, err := os.Open(filepath.Join(p.proc, strconv.Itoa(id), "fd"))
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(maxDescriptors) // the first that were read, also with an error
	for _, name := range names {
		target, _ := os.Readlink(filepath.Join(dir.Name(), name))
		if inode, ok := strings.CutPrefix(target, "socket:["); ok {
			inodes = append(inodes, strings.TrimSuffix(inode, "]"))
		}
	}
	return inodes
}

// inode returns the inode number of the rtnetlink socket with a port id; empty where there is none.
func (p *programs) inode(port uint32) string {
	if _, err := p.table.Seek(0, io.SeekStart); err != nil {
		return ""
	}
	text, err := io.ReadAll(p.table)
	if err != nil {
		return ""
	}
	return inodeOf(text, port)
}

// inodeOf parses /proc/net/netlink.
func inodeOf(text []byte, port uint32) string {
	const protocol, portID, inode = 1, 2, 9 // columns Eth, Pid and Inode
	want := strconv.FormatUint(uint64(port), 10)
	for line := range bytes.Lines(text) {
		f := strings.Fields(string(line))
		if len(f) > inode && f[protocol] == "0" && f[portID] == want { // NETLINK_ROUTE
			return f[inode]
		}
	}
	return ""
}

// parseStatus returns the name and the parent of a process from its file status in proc(5).
func parseStatus(text string) (name string, parent int) {
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(line, ":")
		switch value = strings.TrimSpace(value); key {
		case "Name":
			name = value
		case "PPid":
			parent, _ = strconv.Atoi(value)
			return name, parent
		}
	}
	return name, 0
}

// shells have the names of shells, of which the parent says more.
var shells = []string{"sh", "bash", "dash", "ash", "busybox"}

// text returns the name of a process and those of the processes that started it, but for the first process. It is
// empty for one that this process started.
func (p *programs) text(s *process) string {
	const first, maxParents = 1, 2
	if s.name == "" || s.parent == p.self {
		return ""
	}
	text, parent := printable(s.name), s.parent
	for range maxParents {
		by := p.read(parent)
		if parent <= first || by.name == "" {
			break
		}
		text += ", started by " + printable(by.name)
		if !slices.Contains(shells, by.name) {
			break
		}
		parent = by.parent
	}
	return text
}

// printable returns a process's name, which the process can set to any bytes, for logs and Events.
func printable(name string) string {
	const maxName = 15 // TASK_COMM_LEN (prctl(2), PR_SET_NAME)
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' || strings.ContainsRune("\"\\,;()", r) {
			return '?'
		}
		return r
	}, name[:min(len(name), maxName)])
}

// budget is a bound for the number of operations in an interval.
type budget struct {
	limit    int
	interval time.Duration
	start    time.Time // of the present interval
	count    int       // of operations in it
}

// take counts an operation, and reports whether it is within the bound.
func (b *budget) take(now time.Time) bool {
	if now.Sub(b.start) >= b.interval {
		b.start, b.count = now, 0
	}
	b.count++
	return b.count <= b.limit
}

// children is a set of the port ids of the netlink sockets of nft(8) processes that this one started: their process
// ids. They are kept for a while after the end, until their messages were received. The zero value is empty. It is safe
// for concurrent use.
type children struct {
	mu       sync.Mutex
	endTimes map[uint32]time.Time // zero while the process runs
}

// endedExpiry is the time for which ended processes are kept.
const endedExpiry = 10 * time.Second

// run runs a program. It holds mu while the process starts, so that mayHave knows the process id before the first
// message.
func (c *children) run(cmd *exec.Cmd) error {
	c.mu.Lock()
	err := cmd.Start()
	if err == nil {
		if c.endTimes == nil {
			c.endTimes = map[uint32]time.Time{}
		}
		c.endTimes[uint32(cmd.Process.Pid)] = time.Time{}
	}
	c.mu.Unlock()
	if err != nil {
		return err
	}
	err = cmd.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endTimes[uint32(cmd.Process.Pid)] = time.Now()
	return err
}

// mayHave reports whether a port id may be that of one of the processes: a random one may be, if the process id was in
// use as a port id.
func (c *children) mayHave(port uint32, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for pid, end := range c.endTimes {
		if !end.IsZero() && now.Sub(end) > endedExpiry {
			delete(c.endTimes, pid)
		}
	}
	_, ok := c.endTimes[port]
	return ok || port > maxPID && len(c.endTimes) > 0
}
