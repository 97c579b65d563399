package main

import (
	"errors"
	"slices"

	"github.com/spf13/cobra"
)

// Exit codes of commands of which 1 is a result.
const (
	exitResult  = 1
	exitTrouble = 4
)

// errDiffers ends a command that found differences; it is not printed.
var errDiffers = errors.New("something would change")

// troubleError is a failure of a command of which exit code 1 is a result.
type troubleError struct{ error }

func (t troubleError) Unwrap() error { return t.error }

// results are the errors of commands that did what they should, and found what has exit code 1.
var results = []error{
	errChecksFailed, errDegraded, errDenied, errDiffers, errDisagree, errFindings, errNotDelivered, errNoPacket,
	errNotEverywhere, errNotWhole, errPartial, errSwitchDiffers,
}

// withResult keeps exit code 1 of a command for results.
func withResult(cmd *cobra.Command) *cobra.Command {
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		err := run(cmd, args)
		if err == nil || slices.ContainsFunc(results, func(r error) bool { return errors.Is(err, r) }) {
			return err
		}
		return troubleError{err}
	}
	return cmd
}
