package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/flowkeep/flowkeep/netctl/apiserver"
	"github.com/flowkeep/flowkeep/netctl/check"
	"github.com/spf13/cobra"
)

const checkLong = `Check proves with packets that pods reach what they should, and nothing else. It creates a
namespace flowkeep-check-… with four pods on two nodes and a Service, connects again and again while it writes
NetworkPolicies there and deletes them, and removes the namespace, also after an error or an interrupt.

It checks pod to pod on one node and across nodes, a Service, DNS, an address outside of the cluster, packets of the
MTU's size, denied ingress and egress, and how long a policy takes to be in force, each over the address families of
the pods. What a cluster does not have is skipped, with the reason.

The pods run netctl from Flowkeep's image, without root, capabilities or a token. You need the rights to create
namespaces, pods, Services and NetworkPolicies, to read nodes, and to read the pods' logs.

Exit codes: 0 nothing failed; 1 a check failed; 2 wrong usage; 3 the API server does not answer; 4 the checks could not
be done.`

const checkExample = `  netctl check
  netctl check -o json | jq -r '.rows[] | select(.verdict == "failed") | .check'
  netctl check --nodes node3,node7 --outside 192.0.2.1:443
  netctl check --image registry.example/flowkeep:v1`

// errChecksFailed ends check with a result: a check failed.
var errChecksFailed = errors.New("checks failed: see above")

func checkCommand(o *options) *cobra.Command {
	k := &checker{options: o}
	cmd := &cobra.Command{
		Use:     "check",
		Short:   "Prove with packets that the network and policies work",
		Long:    checkLong,
		Args:    noMore,
		Example: checkExample,
		RunE:    func(cmd *cobra.Command, _ []string) error { return k.command(cmd) },
	}
	f := cmd.Flags()
	f.StringVar(&k.image, "image", "", "image with netctl in its PATH; default: that of the DaemonSet netplugin")
	f.StringSliceVar(&k.nodes, "nodes", nil, "nodes of the pods, one or two; default: the first two that take pods")
	f.StringSliceVar(&k.outside, "outside", nil, "HOST:PORT outside of the cluster; default: the API servers'")
	f.DurationVar(&k.wait, "wait", 2*time.Minute, "how long pods may take to start, and the namespace to be removed")
	f.DurationVar(&k.limit, "limit", 15*time.Second, "how long connections may take to be as expected after a change")
	for _, name := range []string{"image", "outside"} {
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions)
	}
	_ = cmd.RegisterFlagCompletionFunc("nodes", completeNodeFlag(o))
	cmd.AddCommand(checkServeCommand(), checkProbeCommand())
	return cmd
}

func (k *checker) command(cmd *cobra.Command) error {
	if k.server != "" {
		return usageError{errors.New("check creates pods at the API server: leave out --server and FLOWKEEP_SERVER, " +
			"and give --kubeconfig if need be")}
	}
	if len(k.nodes) > 2 {
		return usageError{fmt.Errorf("--nodes names %d nodes: give one or two", len(k.nodes))}
	}
	for _, address := range k.outside {
		if err := check.ParseHostPort(address); err != nil {
			return usageError{fmt.Errorf("--outside: %w", err)}
		}
	}
	api, err := apiserver.New(k.access())
	if err != nil {
		return err
	}
	defer api.Close()
	k.api, k.progress = api, cmd.ErrOrStderr()
	report, err := k.run(cmd.Context())
	if err != nil {
		return err
	}
	err = show(cmd.OutOrStdout(), k.options, report, func(w io.Writer, _ bool) { printChecks(w, report) })
	if err != nil {
		return err
	}
	if report.Failed > 0 {
		return errChecksFailed
	}
	return nil
}

// printChecks prints a row a check.
func printChecks(w io.Writer, r *check.Report) {
	var rows [][]string
	for i := range r.Rows {
		row := &r.Rows[i]
		family := ""
		if row.Family != 0 {
			family = fmt.Sprintf("IPv%d", row.Family)
		}
		rows = append(rows, []string{
			row.Verdict,
			row.Check,
			dash(family),
			row.Stage,
			dash(row.From),
			dash(row.To),
			dash(row.Expected),
			dash(row.Took()),
			dash(row.Detail),
		})
	}
	table(w, []string{"RESULT", "CHECK", "FAMILY", "STAGE", "FROM", "TO", "EXPECTED", "IN FORCE", "DETAIL"}, rows)
	fmt.Fprintf(w, "%s, %d failed, %d skipped\n", plural(r.OK, "check is ok", "checks are ok"), r.Failed, r.Skipped)
}

// checkServeCommand returns the command that the servers run.
func checkServeCommand() *cobra.Command {
	return &cobra.Command{
		Use: "serve PORT…", Short: "Serve ports in a pod of netctl check", Hidden: true, Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var ports []int
			for _, text := range args {
				port, err := strconv.ParseUint(text, 10, 16)
				if err != nil {
					return usageError{err}
				}
				ports = append(ports, int(port)) //nolint:gosec // 16 bits
			}
			return untilEnded(cmd, func(ctx context.Context) error {
				return check.Serve(ctx, ports, cmd.OutOrStdout())
			})
		},
	}
}

// checkProbeCommand returns the command that the clients run.
func checkProbeCommand() *cobra.Command {
	return &cobra.Command{
		Use: "probe PROBES", Short: "Connect in a pod of netctl check", Hidden: true, Args: exactly("PROBES"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var probes []check.Probe
			if err := json.Unmarshal([]byte(args[0]), &probes); err != nil {
				return usageError{fmt.Errorf("read the probes: %w", err)}
			}
			return untilEnded(cmd, func(ctx context.Context) error {
				return check.Watch(ctx, probes, cmd.OutOrStdout())
			})
		},
	}
}

func untilEnded(cmd *cobra.Command, run func(context.Context) error) error {
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return run(ctx)
}
