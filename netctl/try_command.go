package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"

	"syscall"
	"time"

	"github.com/flowkeep/flowkeep/netctl/try"
	"github.com/spf13/cobra"
)

const tryLong = `Try works on what "make try" started: two nodes of network namespaces with Open vSwitch and Flowkeep, without Kubernetes,
whose objects are the manifests in a directory.`

const tryMatrixLong = `Matrix connects from each pod of the manifests to each port of every other pod and shows which connections open. Pods
that were added to the manifests are started first, and removed ones ended. A cell is open if IPv4 and IPv6 are, and mixed if
only one is.

With --expect it compares the cells with a file and exits with 1 if any differ. A line of the file is FROM TO VERDICT, such as

  *            *                 shut
  shop/web     shop/api:8080     open

where * is any pod or port; of several lines about a cell the last counts. -o list prints such a file.`

// maxEffect is the time in which netmaster and the nodes apply a changed manifest.
const maxEffect = time.Second

type tryOptions struct {
	*options
	dir          string
	expect       string
	probeTimeout time.Duration
}

func tryCommand(o *options) *cobra.Command {
	t := &tryOptions{options: o}
	cmd := &cobra.Command{
		Use:   "try",
		Short: "Try policies without Kubernetes, after make try",
		Long:  tryLong,
		RunE:  group,
		Args:  cobra.ArbitraryArgs,
	}
	cmd.PersistentFlags().StringVar(&t.dir, "dir", env("FLOWKEEP_TRY", "/var/lib/flowkeep-sandbox/try"), "directory of make try")
	cmd.AddCommand(withResult(t.matrixCommand()), t.serveCommand(), t.connectCommand())
	return cmd
}

func (t *tryOptions) matrixCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:         "matrix",
		Short:       "Measure with packets who reaches whom",
		Long:        tryMatrixLong,
		Args:        exactly(),
		Annotations: map[string]string{alsoOutputs: "list"},
		Example:     "  netctl try matrix\n  netctl try matrix -o list >expected.txt\n  netctl try matrix --expect expected.txt",
		RunE:        func(cmd *cobra.Command, _ []string) error { return t.matrix(cmd) },
	}
	f := cmd.Flags()
	f.StringVar(&t.expect, "expect", "", "file with the verdicts that are expected")
	f.DurationVar(&t.probeTimeout, "probe-timeout", 700*time.Millisecond, "how long a connection may take to open")
	_ = cmd.MarkFlagFilename("expect")
	return cmd
}

func (t *tryOptions) matrix(cmd *cobra.Command) error {
	expected, err := t.expected()
	if err != nil {
		return err
	}
	setup, err := try.Load(t.dir)
	if err != nil {
		return err
	}
	cluster, err := setup.Cluster()
	if err != nil {
		return err
	}
	pods, notes, err := setup.Sync(cmd.Context(), cluster)
	if err != nil {
		return err
	}
	for _, note := range notes {
		fmt.Fprintln(cmd.ErrOrStderr(), note)
	}
	if err := awaitEffect(cmd.Context(), setup.Manifests); err != nil {
		return err
	}
	cells, err := try.Measure(cmd.Context(), pods, t.probeTimeout)
	if err != nil {
		return err
	}
	if t.expect != "" {
		return t.compare(cmd.OutOrStdout(), cells, expected)
	}
	if t.output == "list" {
		for _, c := range cells {
			fmt.Fprintf(cmd.OutOrStdout(), "%-30s %-30s %s\n", c.From, c.To, c.Verdict)
		}
		return nil
	}
	return show(cmd.OutOrStdout(), t.options, cells, func(w io.Writer, _ bool) { printTry(w, pods, cells) })
}

func (t *tryOptions) expected() ([]try.Expectation, error) {
	if t.expect == "" {
		return nil, nil
	}
	f, err := os.Open(t.expect)
	if err != nil {
		return nil, usageError{err}
	}
	defer f.Close()
	list, err := try.ReadExpected(t.expect, f)
	if err != nil {
		return nil, usageError{err}
	}
	return list, nil
}

// compare prints the cells that are not as expected.
func (t *tryOptions) compare(w io.Writer, cells []try.Cell, expected []try.Expectation) error {
	different, unused := try.Differences(cells, expected)
	err := show(w, t.options, different, func(w io.Writer, _ bool) {
		for _, e := range unused {
			fmt.Fprintf(w, "%s, line %d: no pod or port is %s %s\n", t.expect, e.Line, e.From, e.To)
		}
		if len(different) == 0 {
			fmt.Fprintf(w, "%s as %s expects\n", plural(len(cells), "connection is", "connections are"), t.expect)
			return
		}
		var rows [][]string
		for _, d := range different {
			rows = append(rows, []string{d.From, d.To, d.Verdict, dash(d.Expected)})
		}
		table(w, []string{"FROM", "TO", "MEASURED", "EXPECTED"}, rows)
	})
	if err == nil && len(different)+len(unused) > 0 {
		return errDiffers
	}
	return err
}

// awaitEffect waits until the newest change of a manifest is in force.
func awaitEffect(ctx context.Context, dirs []string) error {
	var newest time.Time
	for _, dir := range dirs {
		err := filepath.Walk(dir, func(_ string, info os.FileInfo, err error) error {
			if err == nil && info.ModTime().After(newest) {
				newest = info.ModTime()
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	select {
	case <-time.After(min(maxEffect, time.Until(newest.Add(maxEffect)))):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// printTry prints a row for each pod and a column for each port.
func printTry(w io.Writer, pods []*try.Pod, cells []try.Cell) {
	var columns []string
	verdicts := map[[2]string]string{}
	for _, c := range cells {
		if !slices.Contains(columns, c.To) {
			columns = append(columns, c.To)
		}
		verdicts[[2]string{c.From, c.To}] = c.Verdict
	}
	slices.Sort(columns)
	var rows [][]string
	for _, p := range pods {
		row := []string{fmt.Sprintf("%s (%s)", p.ID(), p.Node)}
		for _, to := range columns {
			switch v := verdicts[[2]string{p.ID(), to}]; v {
			case "":
				row = append(row, ".")
			case try.Shut:
				row = append(row, "-")
			default:
				row = append(row, v)
			}
		}
		rows = append(rows, row)
	}
	table(w, append([]string{`FROM \ TO`}, columns...), rows)
}

// serveCommand returns the command that serves ports in a pod's network namespace.
func (t *tryOptions) serveCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "serve PORT[/udp]…",
		Short:  "Serve ports in a pod's network namespace",
		Hidden: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			var ports []try.Port
			for _, text := range args {
				p, err := try.ParsePort(text)
				if err != nil {
					return usageError{err}
				}
				ports = append(ports, p)
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, os.Interrupt)
			defer stop()
			return try.Serve(ctx, ports, cmd.OutOrStdout())
		},
	}
}

// connectCommand returns the command that connects from a pod's network namespace.
func (t *tryOptions) connectCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:    "connect PROTOCOL:ADDRESS:PORT…",
		Short:  "Connect from a pod's network namespace",
		Hidden: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			var targets []try.Target
			for _, text := range args {
				target, err := try.ParseTarget(text)
				if err != nil {
					return usageError{err}
				}
				targets = append(targets, target)
			}
			for _, open := range try.Connect(cmd.Context(), targets, t.probeTimeout) {
				fmt.Fprintln(cmd.OutOrStdout(), map[bool]string{true: try.Open, false: try.Shut}[open])
			}
			return nil
		},
	}
	cmd.Flags().DurationVar(&t.probeTimeout, "probe-timeout", time.Second, "how long a connection may take to open")
	return cmd
}
