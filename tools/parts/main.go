// Parts runs the parts of `make test-full` and records their results. The table of parts is scripts/parts.json; results
// go to docs/conformance.json and docs/conformance.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"
)

const usage = `usage: parts COMMAND
  list                               parts, with their newest results
  run [-n] [PATTERN…]                runs the parts without a passed result for this commit; -n prints them
  due                                prints the parts that failed, or whose paths changed since they passed
  shape                              prints the part whose shape the gate tests at this commit, and its flags
  release VERSION                    fails with a list while the version cannot be released from this commit
  doc [-check]                       writes docs/conformance.md; -check compares it`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	err := command(ctx, os.Args[1:], os.Stdout)
	switch {
	case err == nil:
	case errors.Is(err, context.Canceled):
		fmt.Fprintln(os.Stderr, "parts: interrupted; the part that was running has no result")
		os.Exit(130)
	default:
		fmt.Fprintln(os.Stderr, "parts:", err)
		os.Exit(1)
	}
}

// command runs a subcommand in the repository of the working directory.
func command(ctx context.Context, args []string, out io.Writer) error {
	if len(args) == 0 {
		return errors.New(usage)
	}
	a, err := open(out)
	if err != nil {
		return err
	}
	switch args[0] {
	case "list":
		return a.list()
	case "run":
		return a.run(ctx, args[1:])
	case "due":
		return a.due()
	case "shape":
		return a.shape()
	case "release":
		return a.release(args[1:])
	case "doc":
		return a.doc(args[1:])
	default:
		return errors.New(usage)
	}
}

// An app is the state that the subcommands share.
type app struct {
	runner
	parts   []Part
	results []Result
}

// open reads the table and the results of the repository of the working directory.
func open(out io.Writer) (*app, error) {
	root, err := findRoot()
	if err != nil {
		return nil, err
	}
	a := &app{runner: runner{
		repo:  repository{root},
		out:   out,
		cache: os.Getenv("FLOWKEEP_CACHE"),
		grace: gracePeriod,
		now:   time.Now,
	}}
	if a.cache == "" {
		a.cache = "/var/cache/flowkeep"
	}
	if a.parts, err = readTable(root); err != nil {
		return nil, err
	}
	a.results, err = readResults(root)
	return a, err
}

// findRoot returns the folder above the working directory that has the table of parts.
func findRoot() (string, error) {
	dir, err := os.Getwd()
	for err == nil {
		if _, err := os.Stat(filepath.Join(dir, tablePath)); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New(tablePath + " is in no folder above: call parts in a checkout of Flowkeep")
		}
		dir = filepath.Dir(dir)
	}
	return "", err
}

func (a *app) list() error {
	table := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "PART\tMINUTES\tNEWEST RESULT\tCOMMIT\tAGE\tABOUT")
	for _, p := range a.parts {
		result, commit, age := "none", "", ""
		if r := newest(a.results, p.Name); r != nil {
			result, commit = r.counts(), short(r.Commit)
			age = fmt.Sprintf("%.0f days", a.now().Sub(r.Date).Hours()/24)
		}
		expected := minutes(p.expected(a.results))
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", p.Name, expected, result, commit, age, p.About)
	}
	return table.Flush()
}

// run is the subcommand of `make test-full`.
func (a *app) run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("run", flag.ContinueOnError)
	dry := flags.Bool("n", false, "print the parts that would run")
	if err := flags.Parse(args); err != nil {
		return err
	}
	chosen, err := match(a.parts, strings.Fields(strings.Join(flags.Args(), " ")))
	if err != nil {
		return err
	}
	clean := a.repo.cleanCommit
	if *dry {
		clean = a.repo.commit
	}
	if a.commit, err = clean(); err != nil {
		return err
	}
	if a.version, err = a.repo.version(); err != nil {
		return err
	}
	todo := unfinished(chosen, a.results, a.commit)
	var total time.Duration
	for _, p := range todo {
		total += p.expected(a.results)
		if *dry {
			fmt.Fprintf(a.out, "%-26s %3s minutes  %s\n", p.Name, minutes(p.expected(a.results)), p.Command)
		}
	}
	fmt.Fprintf(a.out, "commit %s: %d parts have passed, %d to run, about %s minutes; logs: %s\n", short(a.commit),
		len(chosen)-len(todo), len(todo), minutes(total), filepath.Join(a.cache, "test-full", short(a.commit)))
	if *dry {
		return nil
	}
	return a.runAll(ctx, todo)
}

// due prints a line for each part that has to run.
func (a *app) due() error {
	if _, err := a.repo.commit(); err != nil {
		return err
	}
	for _, line := range dueLines(a.parts, a.results, a.repo.history(a.results)) {
		fmt.Fprintln(a.out, line)
	}
	return nil
}

func (a *app) doc(args []string) error {
	flags := flag.NewFlagSet("doc", flag.ContinueOnError)
	check := flags.Bool("check", false, "compare the page instead of writing it")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *check {
		return checkPage(a.repo.root)
	}
	return writePage(a.repo.root)
}
