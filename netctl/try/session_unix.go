//go:build unix

package try

import "syscall"

// ownSession returns the attributes of a process that outlives netctl's session.
func ownSession() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }
