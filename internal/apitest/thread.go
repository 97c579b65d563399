package apitest

import (
	"os/exec"
	"runtime"
	"sync"
)

// starts takes the processes to start on a thread that never ends: the kernel kills them with the thread that started
// them (PR_SET_PDEATHSIG), and the runtime ends the threads of tests in network namespaces.
var starts = sync.OnceValue(func() chan<- func() {
	jobs := make(chan func())
	go func() {
		runtime.LockOSThread()
		for job := range jobs {
			job()
		}
	}()
	return jobs
})

// start starts a process that ends with this one.
func start(c *exec.Cmd) error {
	err := make(chan error, 1)
	starts() <- func() { err <- c.Start() }
	return <-err
}
