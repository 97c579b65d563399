package simnodes

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// Usage is what a process has used until now, and has now.
type Usage struct {
	CPU time.Duration
	// RSS and Peak are of resident memory, in bytes; Peak since the last reset.
	RSS, Peak int64
	// Read is what it read from files and sockets, in bytes.
	Read int64
}

// usage is of a process.
func usage(pid int) (u Usage, err error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return u, err
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+2:]))
	for _, field := range fields[11:13] { // user's and system's
		ticks, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return u, err
		}
		u.CPU += time.Duration(ticks) * 10 * time.Millisecond
	}
	status, err := numbers(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return u, err
	}
	io, err := numbers(fmt.Sprintf("/proc/%d/io", pid))
	u.RSS, u.Peak, u.Read = status["VmRSS"]<<10, status["VmHWM"]<<10, io["rchar"]
	return u, err
}

// numbers are those of a file with lines like "name: 12 kB".
func numbers(path string) (map[string]int64, error) {
	text, err := os.ReadFile(path)
	all := map[string]int64{}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		if fields := strings.Fields(value); len(fields) > 0 {
			if n, err := strconv.ParseInt(fields[0], 10, 64); err == nil {
				all[name] = n
			}
		}
	}
	return all, err
}

// resetPeak begins a new peak.
func resetPeak(pid int) error {
	return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0)
}

// metric sums up a metric of a page, over its labels.
func metric(page, name string) (sum float64) {
	for line := range strings.Lines(page) {
		rest, ok := strings.CutPrefix(line, name)
		if !ok || rest[0] != ' ' && rest[0] != '{' {
			continue
		}
		var n float64
		if _, err := fmt.Sscan(rest[strings.LastIndexByte(rest, ' ')+1:], &n); err == nil {
			sum += n
		}
	}
	return sum
}
