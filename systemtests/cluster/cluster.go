// Package cluster is the tests' hold on the sandbox: a real Kubernetes cluster on this machine with Flowkeep in it. It
// boots and ends it, runs pods on chosen nodes, sends packets from their network namespaces, kills and restarts the
// processes, and asks netctl, the switches and the metrics what they know.
package cluster

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Options say which sandbox to boot.
type Options struct {
	Name   string // FLOWKEEP_SANDBOX
	Nodes  int
	Family string // ipv4, ipv6 or dual
	Hook   string // CNI hook; empty: scripts/node-up
	// Traffic is the mode of traffic between nodes, route, geneve or auto; empty: what FLOWKEEP_TRAFFIC_MODE says,
	// else route.
	Traffic   string
	Services  string // what translates Services for pods, kube-proxy or ovs; empty: FLOWKEEP_SERVICES, else kube-proxy
	Shape     string // of the network and the nodes (systemtests/README.md); empty: plain
	Small     bool   // without what tests of packets do not need
	OwnMounts bool   // nodes have mounts of their own, and so the directories that a machine has once
	Reuse     bool   // take one that is up as it is
}

// Cluster is a sandbox that is up. Safe for concurrent use.
type Cluster struct {
	Name   string
	Dir    string // its directory
	Bin    string // kubectl, probe
	Family string
	source string // systemtests/sandbox

	mu  sync.Mutex
	api *API // once it was asked for
}

// Lock keeps another run from ending the sandbox that this one uses. Several runs may share a sandbox that none of them boots or
// ends.
func Lock(name string, shared bool) (unlock func(), err error) {
	path := filepath.Join(os.TempDir(), "flowkeep-sandbox-"+name+".lock")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	how := syscall.LOCK_EX
	if shared {
		how = syscall.LOCK_SH
	}
	if err := syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("another run uses the sandbox %s: wait for it, or set FLOWKEEP_SANDBOX to another name", name), f.Close())
	}
	return func() {
		if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil { // no other run shares it
			_ = os.Remove(path)
		}
		_ = f.Close()
	}, nil
}

// Boot builds what is missing and boots the sandbox; it takes about 15 s with everything in the cache. A sandbox that
// does not boot is taken down and booted once more. Progress goes to standard error.
func Boot(ctx context.Context, o Options) (*Cluster, error) {
	root, err := SourceRoot()
	if err != nil {
		return nil, err
	}
	c := &Cluster{Name: o.Name, Family: o.Family, source: filepath.Join(root, "systemtests", "sandbox")}
	out, err := c.script(ctx, "echo $RUN; echo $BIN")
	if err != nil {
		return nil, err
	}
	c.Dir, c.Bin, _ = strings.Cut(strings.TrimSpace(out), "\n")
	if _, err := os.Stat(filepath.Join(c.Dir, "args")); err == nil && o.Reuse {
		return c, nil
	}
	if err := c.tool(ctx, "down"); err != nil { // what an interrupted run left
		return nil, err
	}
	if err := c.tool(ctx, "build"); err != nil {
		return nil, err
	}
	args := []string{"--nodes", fmt.Sprint(o.Nodes), "--ip-family", o.Family}
	if o.Traffic != "" {
		args = append(args, "--traffic-mode", o.Traffic)
	}
	if o.Services != "" {
		args = append(args, "--services", o.Services)
	}
	if o.Shape != "" {
		args = append(args, "--shape", o.Shape)
	}
	if o.Hook != "" {
		args = append(args, "--cni-hook", o.Hook)
	}
	if o.Small {
		args = append(args, "--small")
	}
	if o.OwnMounts {
		args = append(args, "--own-mounts")
	}
	boot := func() error { return c.tool(ctx, "up", args...) }
	return c, BootTwice(ctx, "the sandbox "+c.Name, boot, func() error {
		if logs, err := c.keepLogs(); err != nil {
			fmt.Fprintln(os.Stderr, "keep the logs of the sandbox that did not boot:", err)
		} else {
			fmt.Fprintln(os.Stderr, "the logs of the sandbox that did not boot are in", logs)
		}
		return c.tool(ctx, "down")
	})
}

// keepLogs copies the processes' logs to a directory that Down does not remove. It replaces those of an earlier boot.
func (c *Cluster) keepLogs() (to string, err error) {
	to = filepath.Join(os.TempDir(), "flowkeep-sandbox-"+c.Name+"-logs")
	if err := os.RemoveAll(to); err != nil {
		return to, err
	}
	return to, os.CopyFS(to, os.DirFS(filepath.Join(c.Dir, "logs")))
}

// MarkKept marks the sandbox as one that outlives its run, so that the gate does not remove it.
func (c *Cluster) MarkKept() error { return os.WriteFile(filepath.Join(c.Dir, "kept"), nil, 0o644) }

// Down ends the sandbox and removes every trace of it.
func (c *Cluster) Down(ctx context.Context) error { return c.tool(ctx, "down") }

func (c *Cluster) tool(ctx context.Context, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, filepath.Join(c.source, name), args...)
	cmd.Env = append(os.Environ(), "FLOWKEEP_SANDBOX="+c.Name)
	var last lastLine
	cmd.Stdout, cmd.Stderr = os.Stderr, io.MultiWriter(os.Stderr, &last)
	cmd.WaitDelay = time.Second // the sandbox's processes live on, and might hold the pipe open
	if err := cmd.Run(); err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		return fmt.Errorf("systemtests/sandbox/%s %s: %w: %v", name, strings.Join(args, " "), err, &last)
	}
	return nil
}

// lastLine is a writer that keeps the last line with text.
type lastLine struct{ current, last string }

func (l *lastLine) Write(p []byte) (int, error) {
	lines := strings.Split(l.current+string(p), "\n")
	l.current = lines[len(lines)-1]
	for _, line := range lines[:len(lines)-1] {
		if line = strings.TrimSpace(line); line != "" {
			l.last = line
		}
	}
	return len(p), nil
}

func (l *lastLine) String() string { return cmp.Or(strings.TrimSpace(l.current), l.last) }

// script runs bash with the sandbox's library loaded.
func (c *Cluster) script(ctx context.Context, text string) (string, error) {
	cmd := exec.CommandContext(ctx, "bash", "-c", `set -euo pipefail; . "$0"; `+text, filepath.Join(c.source, "lib.sh"))
	cmd.Env = append(os.Environ(), "FLOWKEEP_SANDBOX="+c.Name)
	return output(cmd)
}

// Kubectl runs kubectl as cluster-admin with this standard input. Apply, Get and their like are much quicker.
func (c *Cluster) Kubectl(ctx context.Context, stdin string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(c.Bin, "kubectl"), append([]string{"--kubeconfig", filepath.Join(c.Dir, "admin.kubeconfig")}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	return output(cmd)
}

// Netctl runs netctl with the administrator's certificate, past the API server; through it where Flowkeep was installed by its manifests.
func (c *Cluster) Netctl(ctx context.Context, args ...string) (string, error) {
	env := filepath.Join(c.Dir, "flowkeep", "direct.env")
	if _, err := os.Stat(env); err != nil {
		env = filepath.Join(c.Dir, "flowkeep", "netctl.env")
	}
	cmd := exec.CommandContext(ctx, "bash", append([]string{"-c", `. "$0"; exec netctl "$@"`, env}, args...)...)
	return output(cmd)
}

// NetctlAs runs netctl with nothing but a kubeconfig; empty: cluster-admin's.
func (c *Cluster) NetctlAs(ctx context.Context, kubeconfig string, args ...string) (string, error) {
	if kubeconfig == "" {
		kubeconfig = filepath.Join(c.Dir, "admin.kubeconfig")
	}
	cmd := exec.CommandContext(ctx, filepath.Join(c.Dir, "flowkeep", "bin", "netctl"), args...)
	cmd.Env = []string{"KUBECONFIG=" + kubeconfig, "HOME=/nonexistent"}
	return output(cmd)
}

// inNS runs a program in a network namespace, given by its path.
func inNS(ctx context.Context, netns string, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "nsenter", append([]string{"--net=" + netns, "--"}, args...)...)
}

// NodeNS and ControlPlaneNS are paths of network namespaces.
func (c *Cluster) NodeNS(node string) string { return "/run/netns/fk-" + c.Name + "-" + node }

// ControlPlaneNS is where the API server, etcd, netmaster and memcached run.
func (c *Cluster) ControlPlaneNS() string { return c.NodeNS("cp") }

// LogText is what a process has written so far.
func (c *Cluster) LogText(name string) (string, error) {
	b, err := os.ReadFile(filepath.Join(c.Dir, "logs", name))
	return string(b), err
}

func output(cmd *exec.Cmd) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

// Until calls ok until it returns nil or the time is over; the last error is the reason. It waits 50 ms between two
// calls at first, and up to 200 ms after 4 s: many conditions start a program, and the processors are what other tests
// wait for.
func Until(ctx context.Context, limit time.Duration, ok func() error) error {
	limit = Stretch(limit)
	outer := ctx
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for began := time.Now(); ; {
		err := ok()
		if err == nil {
			return nil
		}
		pause := time.NewTimer(untilPause(time.Since(began)))
		select {
		case <-ctx.Done():
			pause.Stop()
			if outer.Err() != nil {
				return fmt.Errorf("%w: %w", outer.Err(), err)
			}
			return fmt.Errorf("%s after %v still: %w", Late, limit, err)
		case <-pause.C:
		}
	}
}

// untilPause returns how long Until waits for the next call: a twentieth of the time that has passed, within limits.
func untilPause(passed time.Duration) time.Duration {
	return min(max(passed/20, 50*time.Millisecond), 200*time.Millisecond)
}
