// Package cputime measures the CPU time that tests use. getrusage(2) counts in ticks of the scheduler, of up to 10 ms;
// these clocks count in nanoseconds.
package cputime

import (
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Process returns the CPU time of the process (CLOCK_PROCESS_CPUTIME_ID, clock_gettime(2)).
func Process() time.Duration { return read(unix.CLOCK_PROCESS_CPUTIME_ID) }

// Thread returns the CPU time of the calling thread. A goroutine that compares two of them stays on its thread by
// runtime.LockOSThread.
func Thread() time.Duration { return read(unix.CLOCK_THREAD_CPUTIME_ID) }

// Of returns the CPU time that a function uses on its thread, without that of goroutines that it starts.
func Of(f func()) time.Duration {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	began := Thread()
	f()
	return Thread() - began
}

func read(clock int32) time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(clock, &t); err != nil {
		panic(fmt.Sprint("clock_gettime: ", err)) // both clocks exist in every kernel since 2.6.12
	}
	return time.Duration(t.Nano())
}
