package vswitch

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// child is a program that is to run all the time.
type child struct {
	*runner
	name string
	args []string
	// before comes before each start, and up is asked after it until it fails no more; first says that it is the first.
	before, up func(ctx context.Context, first bool) error
}

func (r *runner) child(name string, args ...string) *child {
	return &child{runner: r, name: name, args: append(args, "--pidfile="+filepath.Join(r.RunDir, name+".pid"), "-vconsole:"+r.LogLevel, "-vsyslog:off", "-vfile:off")}
}

// A program that ends is started again at once; one that ends again and again, after pauses that double up to a limit.
const (
	shortLife    = 10 * time.Second
	firstPause   = 100 * time.Millisecond
	longestPause = 5 * time.Second
)

// pauseAfter returns the pause before the next start, from how long the process lived and from the pause before.
func pauseAfter(lived, before time.Duration) time.Duration {
	if lived >= shortLife {
		return 0
	}
	return min(max(2*before, firstPause), longestPause)
}

// run keeps the program running until ctx ends, and then ends it. The first time that it is up it closes isUp, if there is one.
func (c *child) run(ctx context.Context, isUp chan struct{}) {
	// the kernel ends children with the thread that made them, so this one stays as long as they do
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var pause time.Duration
	for first := true; ctx.Err() == nil; first = false {
		c.Health.SetReady(c.name, "starting")
		began := time.Now()
		err := c.once(ctx, first, &isUp)
		if ctx.Err() != nil {
			return
		}
		c.Health.SetReady(c.name, "ended")
		pause = pauseAfter(time.Since(began), pause)
		c.Logger.Error("a program of Open vSwitch has ended; starting it again", "program", c.name, "error", err, "lived", time.Since(began), "in", pause)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// once runs the process once, until it exits.
func (c *child) once(ctx context.Context, first bool, isUp *chan struct{}) error {
	if c.before != nil {
		if err := c.before(ctx, first); err != nil {
			return err
		}
	}
	cmd := exec.Command(c.name, c.args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = c.environment(), os.Stdout, os.Stderr
	// a group of its own: a terminal's ^C is for us alone; and it never outlives us, else the next one would find it in the way
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	if err := c.start(cmd); err != nil {
		return err
	}
	c.starts.WithLabelValues(c.name).Inc()
	c.Logger.Info("started", "program", c.name, "pid", cmd.Process.Pid)
	living, ended := context.WithCancel(ctx)
	done := make(chan struct{})
	var died error
	go func() { defer close(done); died = cmd.Wait(); ended() }()
	asked := make(chan struct{})
	go func() { defer close(asked); c.ask(living, first, isUp) }()
	defer func() { ended(); <-asked }()
	select {
	case <-done:
		return died
	case <-ctx.Done():
	}
	_ = cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-done:
	case <-time.After(settleTime / 2):
		c.Logger.Error("a program of Open vSwitch does not end; killing it", "program", c.name)
		_ = cmd.Process.Kill()
		<-done
	}
	return nil
}

// niceness is what Open vSwitch's own scripts give its programs: packets that wait for a processor while others have it are lost when the
// sockets are full (ovs-ctl(8), --ovs-vswitchd-priority).
const niceness = -10

// start starts the program with that niceness. It takes it over from the calling thread, which is locked, as its own threads do from it.
func (c *child) start(cmd *exec.Cmd) error {
	before, err := unix.Getpriority(unix.PRIO_PROCESS, unix.Gettid()) // 20 less the niceness (getpriority(2), of the system call)
	if err == nil {
		err = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), niceness)
	}
	if err != nil {
		c.Logger.Warn("the switch has no precedence over other programs, and may lose packets while they are busy", "program", c.name, "error", err)
		return cmd.Start()
	}
	defer func() { _ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), 20-before) }() // nobody is denied less precedence
	return cmd.Start()
}

// ask polls until the process is up.
func (c *child) ask(ctx context.Context, first bool, isUp *chan struct{}) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := c.up(ctx, first)
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			return
		}
		c.Health.SetReady(c.name, err.Error())
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
	c.Health.SetReady(c.name, "")
	if *isUp != nil {
		close(*isUp)
		*isUp = nil
	}
}
