//go:build !linux

package check

import (
	"errors"
	"syscall"
)

// dontFragment returns an error: pods run on Linux.
func dontFragment(string, string, syscall.RawConn) error {
	return errors.New("packets of the MTU's size are sent on Linux only")
}
