package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// gracePeriod is how long a part may clean up after SIGTERM.
const gracePeriod = time.Minute

// execute runs a command in a process group of its own. When ctx ends, the group gets SIGTERM, and SIGKILL after grace.
func execute(ctx context.Context, argv []string, dir string, env []string, out *os.File, grace time.Duration) error {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, env, out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = grace
	err := cmd.Run()
	if ctx.Err() != nil && cmd.Process != nil {
		endGroup(cmd.Process.Pid, grace)
		return errors.Join(ctx.Err(), err)
	}
	return err
}

// endGroup waits until a process group is empty, and kills what is left of it after grace.
func endGroup(group int, grace time.Duration) {
	deadline := time.Now().Add(grace)
	for time.Now().Before(deadline) {
		if errors.Is(syscall.Kill(-group, 0), syscall.ESRCH) {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	_ = syscall.Kill(-group, syscall.SIGKILL) // an error is an empty group
}

// follow copies a growing file to w until ctx ends, and then the rest of it.
func follow(ctx context.Context, file io.Reader, w io.Writer) {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		_, _ = io.Copy(w, file) // a log that cannot be copied is still in its file
		select {
		case <-tick.C:
		case <-ctx.Done():
			_, _ = io.Copy(w, file)
			return
		}
	}
}
