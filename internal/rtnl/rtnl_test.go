package rtnl

import (
	"errors"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
)

// TestDump_Interrupted: a dump that was interrupted is repeated, up to a limit, and other errors are returned at once.
func TestDump_Interrupted(t *testing.T) {
	other := errors.New("no such device")
	for name, test := range map[string]struct {
		errs  []error // of each call; the last one repeats
		calls int
		want  error
	}{
		"complete":    {[]error{nil}, 1, nil},
		"interrupted": {[]error{netlink.ErrDumpInterrupted, netlink.ErrDumpInterrupted, nil}, 3, nil},
		"always":      {[]error{netlink.ErrDumpInterrupted}, maxDumps, netlink.ErrDumpInterrupted},
		"another":     {[]error{other}, 1, other},
	} {
		t.Run(name, func(t *testing.T) {
			calls := 0
			all, err := Dump(func() ([]int, error) {
				calls++
				return []int{calls}, test.errs[min(calls, len(test.errs))-1]
			})
			if !errors.Is(err, test.want) || calls != test.calls || !slices.Equal(all, []int{test.calls}) {
				t.Errorf("%v after %d calls: %v, want %v after %d", all, calls, err, test.want, test.calls)
			}
		})
	}
}
