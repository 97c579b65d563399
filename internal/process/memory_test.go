package process

import (
	"errors"
	"log/slog"
	"math"
	"runtime/debug"
	"testing"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

func TestLimitMemory(t *testing.T) {
	cgroup := func(limit uint64, err error) memlimit.Provider {
		return func() (uint64, error) { return limit, err }
	}
	for _, test := range []struct {
		name     string
		set      int64 // by GOMEMLIMIT, which Go's runtime reads
		provider memlimit.Provider
		want     int64
	}{
		{"limited cgroup", math.MaxInt64, cgroup(2<<30, nil), 1932735283},
		{"lower variable", 1 << 30, cgroup(2<<30, nil), 1 << 30},
		{"higher variable", 3 << 30, cgroup(2<<30, nil), 1932735283},
		{"no limit", 1 << 30, cgroup(0, memlimit.ErrNoLimit), 1 << 30},
		{"unreadable cgroup", math.MaxInt64, cgroup(0, errors.New("permission denied")), math.MaxInt64},
	} {
		t.Run(test.name, func(t *testing.T) {
			before := debug.SetMemoryLimit(test.set)
			defer debug.SetMemoryLimit(before)
			limitMemory(slog.New(slog.DiscardHandler), test.provider)
			if got := debug.SetMemoryLimit(-1); got != test.want {
				t.Errorf("the limit is %d bytes, want %d", got, test.want)
			}
		})
	}
}
