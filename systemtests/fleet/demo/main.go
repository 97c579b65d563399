// Command demo is `make demo-fleet`: it starts a hub and two spokes, and goes through the guide's walk-through on them, showing what is
// typed and what is answered.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/fleet"
)

func main() {
	keep := flag.Bool("keep", false, "leave the fleet up until it is interrupted")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *keep); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, keep bool) (err error) {
	began := time.Now()
	f, err := fleet.Start(ctx, fleet.Options{Synced: true, Progress: func(format string, args ...any) {
		fmt.Fprintf(os.Stderr, "[%4.0f s] %s\n", time.Since(began).Seconds(), fmt.Sprintf(format, args...))
	}})
	if f != nil {
		defer func() { err = errors.Join(err, f.End()) }()
	}
	if err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(f.Source, "docs", "policy-sync.md"))
	if err != nil {
		return err
	}
	steps, err := fleet.ReadGuide(string(text), fleet.WalkThrough)
	if err != nil {
		return err
	}
	fmt.Println("\nAll is real but the spokes' gateways: there are no nodes, and what their controllers would answer is played.")
	for _, namespace := range fleet.Played {
		f.PlayControllers(ctx, namespace)
	}
	if err := show(ctx, f, steps, keep); err != nil {
		return err
	}
	fmt.Printf("\nThat was docs/policy-sync.md, as it is tested, in %.0f s.\n", time.Since(began).Seconds())
	if keep {
		fmt.Printf("The fleet stays up until you press ^C:\n  export KUBECONFIG=%s PATH=%s:%s:$PATH     (contexts hub, c1, c2)\n", f.Kubeconfig(), f.Programs, f.Bin)
		<-ctx.Done()
	}
	return nil
}

// show goes through the steps; those of the last part, which takes all away, are left out where the fleet stays up.
func show(ctx context.Context, f *fleet.Fleet, steps []fleet.Step, keep bool) error {
	for i := range steps {
		s := &steps[i]
		if s.Heading == fleet.LastPart && keep {
			return nil
		}
		if s.Heading != "" {
			fmt.Printf("\n== %s\n", s.Heading)
		}
		if s.Objects != "" {
			fmt.Printf("\n%s", indent(s.Objects, "   | "))
		}
		fmt.Printf("\n$ %s\n", s.Command)
		output, err := f.Follow(ctx, s)
		if err != nil {
			return err
		}
		fmt.Println(strings.TrimSpace(output))
	}
	return nil
}

func indent(text, with string) string {
	var all strings.Builder
	for line := range strings.Lines(text) {
		all.WriteString(with + line)
	}
	return all.String()
}
