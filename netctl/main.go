// Netctl shows what Flowkeep enforces, where, and from which policy.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/flowkeep/flowkeep/internal/mtls"
	"github.com/flowkeep/flowkeep/internal/process"
	"github.com/spf13/cobra"
)

// Exit codes.
const (
	exitFailed      = 1 // the operation failed, or what was asked for is not well
	exitUsage       = 2
	exitUnreachable = 3 // netmaster does not answer
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, out, errOut io.Writer) int {
	cmd := rootCommand()
	cmd.SetArgs(args)
	cmd.SetOut(&plain{out})
	cmd.SetErr(&plain{errOut})
	err := cmd.Execute()
	if err == nil {
		return 0
	}
	fmt.Fprintln(&plain{errOut}, "netctl:", message(err))
	return exitCode(err)
}

// errDegraded ends status with a failure although it could be shown.
var errDegraded = errors.New("not everything is well: see the problems above")

type usageError struct{ error }

func exitCode(err error) int {
	var usage usageError
	switch {
	case errors.As(err, &usage):
		return exitUsage
	case isConnection(err), errors.Is(err, errTimeout):
		return exitUnreachable
	}
	return exitFailed
}

const rootLong = `Netctl shows what Flowkeep enforces, where, and from which policy. It asks netmaster, which asks the nodes.

Where netmaster is and who you are: the flags --server, --tls-ca, --tls-cert and --tls-key, or the environment
FLOWKEEP_SERVER, FLOWKEEP_CA, FLOWKEEP_CERT and FLOWKEEP_KEY. "netmaster pki issue --admin" makes the certificate.

Exit codes: 0 fine; 1 it failed, or something is not well; 2 wrong usage; 3 netmaster does not answer.`

const rootExample = `  netctl status
  netctl policy ls -n shop
  netctl policy show shop/db
  netctl endpoint ls -o wide
  netctl flows node1 --policy shop/db
  netctl cache lookup -n shop -l app=web
  source <(netctl completion bash)`

// options are the flags that all commands share.
type options struct {
	server  string
	tls     mtls.Files
	timeout time.Duration
	output  string
}

func rootCommand() *cobra.Command {
	o := &options{}
	cmd := &cobra.Command{
		Use: "netctl", Short: "See what Flowkeep enforces", Long: rootLong, Example: rootExample,
		SilenceUsage: true, SilenceErrors: true, Version: process.BuildVersion(), RunE: group, Args: cobra.ArbitraryArgs,
		PersistentPreRunE: func(*cobra.Command, []string) error { return o.check() },
	}
	f := cmd.PersistentFlags()
	f.StringVar(&o.server, "server", env("FLOWKEEP_SERVER", "127.0.0.1:7443"), "netmaster's address HOST:PORT")
	f.StringVar(&o.tls.CA, "tls-ca", env("FLOWKEEP_CA", "/etc/flowkeep/pki/ca.crt"), "certificate authority")
	f.StringVar(&o.tls.Cert, "tls-cert", env("FLOWKEEP_CERT", "/etc/flowkeep/pki/admin.crt"), "your certificate")
	f.StringVar(&o.tls.Key, "tls-key", env("FLOWKEEP_KEY", "/etc/flowkeep/pki/admin.key"), "your private key")
	f.DurationVar(&o.timeout, "timeout", 15*time.Second, "how long to wait for an answer")
	f.StringVarP(&o.output, "output", "o", "table", "table, wide, json or yaml")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(outputs, cobra.ShellCompDirectiveNoFileComp))
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	cmd.AddCommand(statusCommand(o), policyCommand(o), endpointCommand(o), flowsCommand(o), dbCommand(o), cacheCommand(o))
	return cmd
}

// group is what a command does that has commands below it: it names them, and knows no other.
func group(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	near := ""
	cmd.SuggestionsMinimumDistance = 2
	if list := cmd.SuggestionsFor(args[0]); len(list) > 0 {
		near = "is it " + strings.Join(list, " or ") + "? "
	}
	return usageError{fmt.Errorf("%s has no command %q; %ssee %s --help", cmd.CommandPath(), args[0], near, cmd.CommandPath())}
}

// noMore is for a command that does something by itself and has others below it.
func noMore(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return group(cmd, args)
	}
	return nil
}

// check is of the flags that all commands share, before anybody is asked.
func (o *options) check() error {
	if !slices.Contains(outputs, o.output) {
		return usageError{fmt.Errorf("output %q: use table, wide, json or yaml", o.output)}
	}
	if o.timeout <= 0 {
		return usageError{fmt.Errorf("timeout %v: say how long to wait, such as 15s", o.timeout)}
	}
	return nil
}

var outputs = []string{"table", "wide", "json", "yaml"}

func env(name, otherwise string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return otherwise
}

// oneID is for commands that take the name of an object, with its namespace.
func oneID(cmd *cobra.Command, args []string) error {
	if err := exactly("NAMESPACE/NAME")(cmd, args); err != nil {
		return err
	}
	if namespace, name, ok := strings.Cut(args[0], "/"); !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
		return usageError{fmt.Errorf("%q: say which namespace too, as in default/%s", args[0], strings.Trim(args[0], "/"))}
	}
	return nil
}

// exactly checks the number of arguments and says which are missing.
func exactly(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == len(names) {
			return nil
		}
		return usageError{fmt.Errorf("%s takes %v, got %d arguments; see %s --help", cmd.CommandPath(), names, len(args), cmd.CommandPath())}
	}
}
