package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// How long the processes of a suite that is stopped have for each step; see session.stop.
const (
	stacksTime  = 15 * time.Second
	cleanupTime = time.Minute
)

// session is a running suite. Its processes are a session of their own (setsid(2)), except for those of sandboxes.
type session struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error
}

// startSession starts a command; out gets its standard output and error.
func startSession(dir string, command, env []string, out io.Writer) (*session, error) {
	s := &session{cmd: exec.Command(command[0], command[1:]...), done: make(chan struct{})}
	if filepath.Base(command[0]) != command[0] {
		s.cmd.Path = filepath.Join(dir, command[0])
	}
	s.cmd.Dir, s.cmd.Env, s.cmd.Stdout, s.cmd.Stderr = dir, env, out, out
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	s.cmd.WaitDelay = 5 * time.Second // a process that it left running keeps its output open
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		if s.err = s.cmd.Wait(); errors.Is(s.err, exec.ErrWaitDelay) {
			s.err = nil // it succeeded, and left a process that keeps its output open
		}
		close(s.done)
	}()
	return s, nil
}

// wait returns when the suite has ended. It stops the suite when ctx ends.
func (s *session) wait(ctx context.Context) error {
	select {
	case <-s.done:
		return s.err
	case <-ctx.Done():
		s.stop(!errors.Is(context.Cause(ctx), errInterrupted))
		return context.Cause(ctx)
	}
}

// stop ends the suite: test programs print the stacks of their goroutines, or clean up where no stacks are wanted; then
// scripts clean up; then all that is left is killed.
func (s *session) stop(stacks bool) {
	ending := func(limit time.Duration) bool {
		select {
		case <-s.done:
			return true
		case <-time.After(limit):
			return false
		}
	}
	limit, signal := cleanupTime, syscall.SIGTERM
	if stacks {
		limit, signal = stacksTime, syscall.SIGQUIT
	}
	_ = s.cmd.Process.Signal(syscall.SIGTERM) // bash heeds it after the command that it waits for
	s.each(func(pid int, program string) {
		switch {
		case program == "go":
			_ = syscall.Kill(pid, syscall.SIGINT) // it starts no other test
		case strings.HasSuffix(program, ".test"):
			_ = syscall.Kill(pid, signal)
		}
	})
	if !ending(limit) {
		s.each(func(pid int, _ string) { _ = syscall.Kill(pid, syscall.SIGTERM) })
		ending(cleanupTime)
	}
	s.kill()
	<-s.done
}

func (s *session) kill() {
	s.each(func(pid int, _ string) { _ = syscall.Kill(pid, syscall.SIGKILL) })
}

// each calls f for every process of the session, with the name of the file that it executes.
func (s *session) each(f func(pid int, program string)) {
	files, _ := filepath.Glob("/proc/[0-9]*/stat") // the pattern is valid
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil || sessionOf(string(text)) != s.cmd.Process.Pid {
			continue
		}
		folder := filepath.Dir(file)
		pid, _ := strconv.Atoi(filepath.Base(folder))
		program, _ := os.Readlink(filepath.Join(folder, "exe"))
		f(pid, filepath.Base(strings.TrimSuffix(program, " (deleted)")))
	}
}

// sessionOf returns the session in the text of /proc/PID/stat, 0 if there is none; see proc(5).
func sessionOf(stat string) int {
	fields := strings.Fields(stat[strings.LastIndex(stat, ")")+1:]) // state, parent, group, session
	if len(fields) < 4 {
		return 0
	}
	n, _ := strconv.Atoi(fields[3])
	return n
}

// prefixer writes whole lines to w, each with a prefix. Prefixers that share a mutex do not mix their lines.
type prefixer struct {
	mu     *sync.Mutex
	w      io.Writer
	prefix string
	rest   []byte
}

func (p *prefixer) Write(b []byte) (int, error) {
	p.rest = append(p.rest, b...)
	for {
		i := bytes.IndexByte(p.rest, '\n')
		if i < 0 {
			return len(b), nil
		}
		p.mu.Lock()
		_, err := fmt.Fprintf(p.w, "%s%s\n", p.prefix, p.rest[:i])
		p.mu.Unlock()
		if err != nil {
			return 0, err
		}
		p.rest = p.rest[i+1:]
	}
}
