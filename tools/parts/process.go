package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
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

// endGroup ends what the leader of a process group has left running, with SIGKILL after grace. It repeats SIGTERM, because
// a shell's child loses a signal that arrives between fork and exec.
func endGroup(group int, grace time.Duration) {
	deadline := time.Now().Add(grace)
	for ; groupRuns(group) && time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		_ = syscall.Kill(-group, syscall.SIGTERM) // an error is an empty group
	}
	_ = syscall.Kill(-group, syscall.SIGKILL)
}

// groupRuns reports whether a process group has a process that is no zombie. Some machines reap zombies late.
func groupRuns(group int) bool {
	files, _ := filepath.Glob("/proc/[0-9]*/stat") // the pattern is valid
	for _, file := range files {
		text := read(file)
		// The state, the parent and the group follow the name; see proc(5).
		fields := strings.Fields(text[strings.LastIndex(text, ")")+1:])
		if len(fields) > 2 && fields[2] == strconv.Itoa(group) && fields[0] != "Z" && fields[0] != "X" {
			return true
		}
	}
	return false
}
