package fleet

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/flowkeep/flowkeep/internal/testkit/slow"
)

// ending is how long a process has to end by itself.
var ending = slow.Stretch(10 * time.Second)

// processes are those of a fleet, by name. They are started by one thread that lives as long as they may, for the kernel ends them with it:
// also when this program is killed.
type processes struct {
	logs   string
	starts chan func()
	mu     sync.Mutex
	all    map[string]*process
}

type process struct {
	cmd   *exec.Cmd
	ended chan struct{}
	err   error // of its end
}

func newProcesses(logs string) *processes {
	p := &processes{logs: logs, starts: make(chan func()), all: map[string]*process{}}
	go func() {
		runtime.LockOSThread()
		for start := range p.starts {
			start()
		}
	}()
	return p
}

// Run starts a process in the background.
func (p *processes) Run(name string, args ...string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if old := p.all[name]; old != nil && old.alive() {
		return fmt.Errorf("%s runs", name)
	}
	if err := os.MkdirAll(p.logs, 0o755); err != nil {
		return err
	}
	log, err := os.OpenFile(p.log(name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	one := &process{cmd: exec.Command(args[0], args[1:]...), ended: make(chan struct{})}
	one.cmd.Stdout, one.cmd.Stderr = log, log
	one.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	p.starts <- func() { started <- one.cmd.Start() }
	if err := <-started; err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	p.all[name] = one
	go func() {
		one.err = one.cmd.Wait()
		close(one.ended)
	}()
	return nil
}

func (o *process) alive() bool {
	select {
	case <-o.ended:
		return false
	default:
		return true
	}
}

func (p *processes) get(name string) (*process, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if o := p.all[name]; o != nil {
		return o, nil
	}
	return nil, fmt.Errorf("nothing called %s was started", name)
}

// Alive tells why a process is not running.
func (p *processes) Alive(name string) error {
	o, err := p.get(name)
	if err == nil && !o.alive() {
		err = fmt.Errorf("%s has ended: %w\n%s", name, errors.Join(o.err, errors.New("its last words")), p.Tail(name))
	}
	return err
}

// Pid is a process' number.
func (p *processes) Pid(name string) (int, error) {
	o, err := p.get(name)
	if err != nil {
		return 0, err
	}
	return o.cmd.Process.Pid, nil
}

// Kill ends a process with signal 9.
func (p *processes) Kill(name string) error {
	o, err := p.get(name)
	if err == nil {
		_ = o.cmd.Process.Kill() // it may have ended
		<-o.ended
	}
	return err
}

// Stop ends a process as an administrator would.
func (p *processes) Stop(name string) error {
	o, err := p.get(name)
	if err != nil {
		return err
	}
	_ = o.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-o.ended:
		return nil
	case <-time.After(ending):
		return errors.Join(fmt.Errorf("%s did not end within %v", name, ending), p.Kill(name))
	}
}

// endAll kills all: nothing of a fleet outlives it, so nothing has to be put in order.
func (p *processes) endAll() {
	p.mu.Lock()
	names := slices.Collect(maps.Keys(p.all))
	p.mu.Unlock()
	for _, name := range names {
		_ = p.Kill(name) // all are known
	}
	close(p.starts)
}

func (p *processes) log(name string) string { return filepath.Join(p.logs, name) }

// Tail is the end of what a process wrote.
func (p *processes) Tail(name string) string {
	text, err := os.ReadFile(p.log(name))
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-20):], "\n")
}
