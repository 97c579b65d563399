// Package rtnl reads the kernel's tables by netlink (rtnetlink(7)).
package rtnl

import (
	"errors"

	"github.com/vishvananda/netlink"
)

// maxDumps is the number of attempts at a dump.
const maxDumps = 10

// Dump calls list, and calls it again if a change of the kernel's table interrupted the dump (NLM_F_DUMP_INTR): an
// interrupted dump may lack entries.
func Dump[T any](list func() (T, error)) (all T, err error) {
	for range maxDumps {
		if all, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return all, err
		}
	}
	return all, err
}
