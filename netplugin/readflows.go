package main

import (
	"os"

	"github.com/flowkeep/flowkeep/internal/process"
	"github.com/flowkeep/flowkeep/ofctl/independent"
	"github.com/spf13/cobra"
)

// readFlows is the command of the process that reads flows independently of ofctl.
const readFlows = "read-flows"

// readFlowsCommand returns the command that netplugin starts for `netctl verify --independent` and for one drift check
// in ten. It is a process of its own since libOpenflow may panic where no caller can recover.
func readFlowsCommand() *cobra.Command {
	return &cobra.Command{
		Use:    readFlows + " SOCKET",
		Short:  "Read a bridge's flows with ofnet and libOpenflow, for netplugin",
		Args:   cobra.ExactArgs(1),
		Hidden: true,
		RunE: func(_ *cobra.Command, args []string) error {
			ctx, stop := process.SignalContext()
			defer stop()
			if err := independent.LimitProcess(); err != nil {
				return err
			}
			return independent.Read(ctx, args[0], os.Stdout)
		},
	}
}

// readFlowsProgram returns this program with that command; none where its file is not known.
func readFlowsProgram() []string {
	self, err := os.Executable()
	if err != nil {
		return nil
	}
	return []string{self, readFlows}
}
