package reference

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
)

// Binary is one of the programs, in a test of its main package, which is a folder of the repository's root.
type Binary struct {
	testing.TB
	Root *cobra.Command
	// Common registers what every process measures, of a name.
	Common func(measured prometheus.Registerer, name string)
}

// Command returns the command of that name, or the root command for "".
func (b *Binary) Command(name string) *cobra.Command {
	b.Helper()
	if name == "" {
		return b.Root
	}
	cmd, _, err := b.Root.Find([]string{name})
	if err != nil || cmd == b.Root {
		b.Fatalf("there is no command %s (%v)", name, err)
	}
	return cmd
}

// Process returns the process of a command, with the metrics that all processes have.
func (b *Binary) Process(command, name string) Program {
	b.Helper()
	p := Program{Command: b.Command(command), Metrics: NewMetrics()}
	b.Common(p.Metrics, name)
	return p
}

// Check holds the program's pages of docs/reference to it: what it says of itself, and of processes that stay their ports and what they measure.
func (b *Binary) Check(update bool, stay ...Program) {
	b.Helper()
	page := "../docs/reference/" + b.Root.Name()
	Check(b, b.Root, page+".md", update)
	if len(stay) == 0 {
		return
	}
	CheckPorts(b, b.Root)
	CheckMetrics(b, b.Root.Name(), stay, page+"-metrics.md", update)
}
