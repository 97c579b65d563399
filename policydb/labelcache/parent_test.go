package labelcache

import "syscall"

// diesWithParent leaves no process behind when the test is killed.
func diesWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
