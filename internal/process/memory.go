package process

import (
	"errors"
	"log/slog"
	"runtime/debug"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

// memoryRatio is the part of the cgroup's memory limit that the heap may reach before Go's runtime collects garbage
// more often. The rest is for memory outside of the runtime's count, as pages of bbolt files.
const memoryRatio = 0.9

// LimitMemory lowers Go's soft memory limit (runtime/debug.SetMemoryLimit) to 90 % of the memory limit of the process's
// cgroup. It sets nothing where the limit is lower already, by the environment variable GOMEMLIMIT, or where no limit
// of a cgroup can be read.
func LimitMemory(log *slog.Logger) { limitMemory(log, memlimit.FromCgroup) }

func limitMemory(log *slog.Logger, provider memlimit.Provider) {
	ofCgroup, err := provider()
	switch {
	case errors.Is(err, memlimit.ErrNoLimit):
		return
	case err != nil:
		log.Info("no memory limit read from the cgroup", "error", err)
		return
	}
	limit := int64(float64(ofCgroup) * memoryRatio)
	if limit > 0 && limit < debug.SetMemoryLimit(-1) {
		debug.SetMemoryLimit(limit)
		log.Info("memory limit set", "bytes", limit)
	}
}
