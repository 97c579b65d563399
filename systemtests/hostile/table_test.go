package hostile_test

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/hostile"
	"golang.org/x/sys/unix"
)

var tableFile = flag.String("table", "",
	"append results to this file (its absolute path), in Markdown; without it they are printed")

// writeTable appends text to the file of -table, or prints it.
func writeTable(t *testing.T, text string) {
	t.Helper()
	if *tableFile == "" {
		fmt.Printf("\n%s", text)
		return
	}
	file, err := os.OpenFile(*tableFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	_, err = fmt.Fprintf(file, "\n%s", text)
	if err := cmp.Or(err, file.Close()); err != nil {
		t.Fatal(err)
	}
}

// table returns the results of one run as docs/security.md has them. Load is the machine's when the run began.
func table(b bounds, quiet hostile.Result, results []hostile.Result, load string) string {
	var out strings.Builder
	fmt.Fprintf(&out, "%d nodes, %d pods, %d policies. %s, %s; load average %s at the start, %s at the end. "+
		"Without an attack: %d edits, p50 %v, p99 %v, of a watch %v, live heap %d MB at the start, %d MB at the "+
		"end.\n\n",
		*nodes, *pods, *policies, time.Now().Format(time.DateOnly), machine(), load, loadAverage(),
		quiet.Edits, ms(quiet.P50), ms(quiet.P99), ms(quiet.WatchP99), quiet.Before>>20, quiet.After>>20)
	out.WriteString("| attack | edits | p50 | p99 | of a watch | to p99 without | status | heap before, MB | " +
		"growth, MB | left, MB | within |\n")
	out.WriteString("|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, r := range results {
		within := "yes"
		if len(b.exceeded(&r, quiet.P99)) > 0 {
			within = "no"
		}
		fmt.Fprintf(&out, "| %s | %d | %v | %v | %v | %.1f | %v | %d | %d | %d | %s |\n", r.Attack.Name, r.Edits,
			ms(r.P50), ms(r.P99), ms(r.WatchP99), float64(r.P99)/float64(max(quiet.P99, 1)), ms(r.Query),
			r.Before>>20, r.Growth()>>20, r.Remains()>>20, within)
	}
	return out.String()
}

// machine returns the processors and the kernel of this machine.
func machine() string {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return fmt.Sprintf("%d processors", runtime.NumCPU())
	}
	return fmt.Sprintf("%d processors, Linux %s", runtime.NumCPU(), unix.ByteSliceToString(name.Release[:]))
}

// loadAverage returns that of the last minute.
func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	one, _, _ := strings.Cut(string(text), " ")
	return one
}
