// Netctl shows what Flowkeep enforces, where, and from which policy.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/flowkeep/flowkeep/internal/mtls"
	"github.com/flowkeep/flowkeep/internal/process"
	"github.com/flowkeep/flowkeep/netctl/apiserver"
	"github.com/spf13/cobra"
)

// Exit codes.
const (
	exitFailed      = 1 // the operation failed
	exitUsage       = 2 // of doctor also: not all could be looked at
	exitUnreachable = 3 // netmaster does not answer, or what was waited for has not come
)

func main() { os.Exit(run(pluginArgs(os.Args), os.Stdout, os.Stderr)) }

func run(args []string, out, errOut io.Writer) int {
	cmd := rootCommand()
	nameAs(cmd, os.Args[0])
	cmd.SetArgs(args)
	cmd.SetOut(&plain{out})
	cmd.SetErr(&plain{errOut})
	addCompletion(cmd)
	err := cmd.Execute()
	if err == nil {
		return 0
	}
	if !errors.Is(err, errDiffers) {
		fmt.Fprintln(&plain{errOut}, "netctl:", message(err))
	}
	return exitCode(err)
}

// errDegraded ends status with a failure although it could be shown.
var errDegraded = errors.New("not everything is well: see the problems above")

type usageError struct{ error }

func exitCode(err error) int {
	var usage usageError
	switch {
	case errors.As(err, &usage), errors.As(err, new(lookError)):
		return exitUsage
	case isUnreachable(err), errors.Is(err, errTimeout), errors.Is(err, errNotInForce):
		return exitUnreachable
	case errors.As(err, new(troubleError)):
		return exitTrouble
	}
	return exitFailed
}

const rootLong = `Netctl shows what Flowkeep enforces, where, and from which policy. It asks netmaster, which asks the nodes.

Like kubectl it needs a kubeconfig: --kubeconfig and --context, KUBECONFIG, ~/.kube/config, or the pod that it runs in. Questions go
through the API server, which knows who you are; the ClusterRole flowkeep-view lets you ask.

While the API server is away, ask netmaster itself: --server, --tls-ca, --tls-cert and --tls-key, or the environment FLOWKEEP_SERVER,
FLOWKEEP_CA, FLOWKEEP_CERT and FLOWKEEP_KEY. "netmaster pki issue --admin" makes the certificate.

Exit codes: 0 fine; 1 the result is not what it should be (not well, denied, found, differing); 2 wrong usage; 3 netmaster does
not answer, or the time is over for which to wait; 4 it failed. Commands without such a result exit with 1 if they failed: policy,
endpoint, flows, matrix, web, cache, capture, node-state but for diff and plan, fleet but for status, macvtap,
uninstall. Of doctor, 2 is also that not all could be looked at.`

const rootExample = `  netctl status
  netctl policy ls -n shop
  netctl policy show shop/db
  kubectl apply -f db.yaml && netctl policy wait shop/db
  netctl endpoint ls -o wide
  netctl flows node1 --policy shop/db
  netctl explain shop/web shop/db:5432
  netctl matrix -n shop
  netctl web
  netctl check
  netctl verify
  netctl diff -f policies/
  netctl cuts
  netctl top --by connections
  netctl unused --since 7d
  netctl lint -n shop
  netctl drops -f
  netctl dry-run shop/db
  netctl cache lookup -n shop -l app=web
  netctl bundle
  netctl capture shop/db-0 -w db.pcap
  netctl trace shop/web shop/db:5432
  netctl node-state diff node1
  netctl macvtap explain node1
  netctl fleet status
  netctl doctor
  source <(netctl completion bash)`

// options are the flags that all commands share.
type options struct {
	kubeconfig, context, as string
	asGroups                []string
	server                  string // empty: through the API server
	tls                     mtls.Files
	timeout                 time.Duration
	output                  string
}

func rootCommand() *cobra.Command {
	o := &options{}
	cmd := &cobra.Command{
		Use: "netctl", Short: "See what Flowkeep enforces", Long: rootLong, Example: rootExample,
		SilenceUsage: true, SilenceErrors: true, Version: process.BuildVersion(), RunE: group, Args: cobra.ArbitraryArgs,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return o.check(cmd) },
	}
	f := cmd.PersistentFlags()
	o.accessFlags(cmd)
	f.DurationVar(&o.timeout, "timeout", 15*time.Second, "how long to wait for an answer")
	f.StringVarP(&o.output, "output", "o", "table", "table, wide, json or yaml")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(outputs, cobra.ShellCompDirectiveNoFileComp))
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	addCommands(cmd, o)
	return cmd
}

// accessFlags adds the flags for access to netmaster.
func (o *options) accessFlags(cmd *cobra.Command) {
	f := cmd.PersistentFlags()
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig file; default: as kubectl finds it")
	f.StringVar(&o.context, "context", "", "context of the kubeconfig")
	f.StringVar(&o.as, "as", "", "user to ask as, if you may impersonate")
	f.StringSliceVar(&o.asGroups, "as-group", nil, "groups to ask as")
	f.StringVar(&o.server, "server", env("FLOWKEEP_SERVER", ""), "ask netmaster itself at HOST:PORT, with a certificate, instead of through the API server")
	f.StringVar(&o.tls.CA, "tls-ca", env("FLOWKEEP_CA", "/etc/flowkeep/pki/ca.crt"), "with --server: certificate authority")
	f.StringVar(&o.tls.Cert, "tls-cert", env("FLOWKEEP_CERT", "/etc/flowkeep/pki/admin.crt"), "with --server: your certificate")
	f.StringVar(&o.tls.Key, "tls-key", env("FLOWKEEP_KEY", "/etc/flowkeep/pki/admin.key"), "with --server: your private key")
	_ = cmd.MarkPersistentFlagFilename("kubeconfig")
	_ = cmd.RegisterFlagCompletionFunc("context", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return apiserver.Contexts(o.access()), cobra.ShellCompDirectiveNoFileComp
	})
	for _, name := range []string{"as", "as-group", "server"} {
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions)
	}
}

// group runs a command that only has subcommands: it prints them, and refuses unknown ones.
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

// noMore refuses arguments of a command that runs by itself and also has subcommands.
func noMore(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return group(cmd, args)
	}
	return nil
}

// check validates the flags that all commands share, before any request.
func (o *options) check(cmd *cobra.Command) error {
	if err := o.checkOutput(cmd); err != nil {
		return err
	}
	if len(o.asGroups) > 0 && o.as == "" {
		return usageError{errors.New("--as-group needs --as")}
	}
	if o.kubeconfig != "" || o.context != "" || o.as != "" {
		if cmd.Flags().Changed("server") {
			return usageError{errors.New("--server asks netmaster itself: --kubeconfig, --context and --as are for the way through the API server")}
		}
		o.server = "" // flags count more than FLOWKEEP_SERVER
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

// oneID accepts one name of an object with its namespace.
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

// atMost accepts up to this many arguments.
func atMost(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) <= len(names) {
			return nil
		}
		return usageError{fmt.Errorf("%s takes no more than %v, got %d arguments; see %s --help", cmd.CommandPath(), names, len(args), cmd.CommandPath())}
	}
}
