// Package vswitch runs Open vSwitch on a node that has none of its own: ovsdb-server and ovs-vswitchd, as children. It makes the database and
// converts it to the programs' schema, starts again what has died, and has the kernel keep forwarding as it did while ovs-vswitchd is away.
package vswitch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/internal/process"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
)

// Config says where things are. Programs are found by PATH.
type Config struct {
	RunDir   string // of sockets and pid files, shared with whoever uses the switch
	Database string
	Schema   string
	LogLevel string // of Open vSwitch's own log on standard error
	// HoldFlows bounds how long the kernel keeps the former flows when ovs-vswitchd is started again; 0: not at all.
	HoldFlows  time.Duration
	Logger     *slog.Logger
	Health     *process.Health
	Registerer prometheus.Registerer

	vswitchd  []string      // more arguments, for tests
	oldEnough time.Duration // of the kernel, where tests have it otherwise
}

// runner is one Run.
type runner struct {
	*Config
	starts *prometheus.CounterVec
	// hold is whoever waits for flows; endHold ends that
	hold    sync.WaitGroup
	endHold context.CancelFunc
}

// settleTime is what the programs may take to start and to end.
const settleTime = 30 * time.Second

// Run runs the switch until ctx ends. The kernel's datapath stays as it is then, and forwards by the flows that it has.
func Run(ctx context.Context, cfg *Config) error {
	if err := cfg.prepare(ctx); err != nil {
		return err
	}
	r := &runner{Config: cfg, starts: newStarts(cfg.Registerer)}
	again, err := r.startedBefore()
	if err != nil {
		return err
	}
	server := r.child("ovsdb-server", cfg.Database, "--remote=punix:"+cfg.socket())
	server.up = func(ctx context.Context, _ bool) error { return r.configure(ctx) }
	forwarder := r.child("ovs-vswitchd", append([]string{"unix:" + cfg.socket()}, cfg.vswitchd...)...)
	forwarder.before = func(ctx context.Context, first bool) error {
		if err := r.awaitProcessors(ctx); err != nil {
			return err
		}
		return r.holdFlows(ctx, again || !first)
	}
	forwarder.up = r.isUp
	return r.both(ctx, server, forwarder)
}

// DeclareMetrics registers what is measured, for whoever lists it.
func DeclareMetrics(reg prometheus.Registerer) { newStarts(reg) }

func newStarts(reg prometheus.Registerer) *prometheus.CounterVec {
	starts := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "flowkeep_switch_starts_total", Help: "How often a program of Open vSwitch was started."}, []string{"program"})
	reg.MustRegister(starts)
	return starts
}

// both runs the database's server, and while that was up at least once the forwarder, which ends first.
func (r *runner) both(ctx context.Context, server, forwarder *child) error {
	serving, endServer := context.WithCancel(context.WithoutCancel(ctx))
	forwarding, endForwarder := context.WithCancel(ctx)
	serverUp, serverDone := make(chan struct{}), make(chan struct{})
	go func() { defer close(serverDone); server.run(serving, serverUp) }()
	select {
	case <-serverUp:
		forwarder.run(forwarding, nil)
	case <-ctx.Done():
	}
	endForwarder()
	r.hold.Wait()
	endServer()
	<-serverDone
	return nil
}

func (c *Config) socket() string { return filepath.Join(c.RunDir, "db.sock") }

// prepare makes directories and the database, unless another Open vSwitch is at work here.
func (c *Config) prepare(ctx context.Context) error {
	if err := os.MkdirAll(c.RunDir, 0o755); err != nil {
		return fmt.Errorf("make the directory of sockets: %w", err)
	}
	if conn, err := new(net.Dialer).DialContext(ctx, "unix", c.socket()); err == nil {
		conn.Close()
		return fmt.Errorf("a process responds at %s: Open vSwitch already runs on this node; use it without this container, or stop it", c.socket())
	}
	if err := os.MkdirAll(filepath.Dir(c.Database), 0o700); err != nil {
		return fmt.Errorf("make the directory of the database: %w", err)
	}
	var limit unix.Rlimit // ovs-vswitchd has several sockets a port
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err == nil {
		limit.Cur = limit.Max
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			c.Logger.Warn("could not raise the number of open files", "error", err)
		}
	}
	return c.makeDatabase(ctx)
}

// Started is a file in the directory of sockets that tells that a switch was run there.
const Started = "flowkeep-switch"

// startedBefore reports whether a switch has run here since the directory of sockets was empty, as it is after a boot.
func (r *runner) startedBefore() (bool, error) {
	f, err := os.OpenFile(filepath.Join(r.RunDir, Started), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if errors.Is(err, os.ErrExist) {
		return true, nil
	} else if err != nil {
		return false, err
	}
	return false, f.Close()
}

// tool runs one of Open vSwitch's programs that end by themselves.
func (c *Config) tool(ctx context.Context, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = c.environment()
	out, err := cmd.Output()
	var failed *exec.ExitError
	if errors.As(err, &failed) {
		err = fmt.Errorf("%w: %s", err, strings.TrimSpace(string(failed.Stderr)))
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	return strings.TrimSpace(string(out)), nil
}

func (c *Config) environment() []string {
	return append(os.Environ(), "OVS_RUNDIR="+c.RunDir, "OVS_LOGDIR="+c.RunDir, "OVS_DBDIR="+filepath.Dir(c.Database))
}

func (c *Config) vsctl(ctx context.Context, args ...string) (string, error) {
	return c.tool(ctx, "ovs-vsctl", append([]string{"--db=unix:" + c.socket(), fmt.Sprintf("--timeout=%d", int(settleTime.Seconds())), "--no-wait"}, args...)...)
}
