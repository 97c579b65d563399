package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/flowkeep/flowkeep/api/wellknown"
	"github.com/flowkeep/flowkeep/netctl/apiserver"
	"github.com/flowkeep/flowkeep/netctl/doctor"
	"github.com/flowkeep/flowkeep/netctl/doctor/look"
	"github.com/spf13/cobra"
)

const doctorLong = `Doctor looks whether a cluster is fit for Flowkeep, before it is installed or later: Kubernetes' version, other networks, the nodes' podCIDRs and
clocks, kube-proxy, the API server's front proxy, CustomResourceDefinitions of the same names, policies that would not be enforced, and what
netctl lint would say of those that would. It reads objects from the API server; netmaster is not asked, and nothing is changed.

Doctor node looks at a node, on which it is run.

Each finding says what was seen and, unless all is well, why it matters and what to do. A problem keeps Flowkeep from working; a warning is of
something that will not be as it should; what could not be looked at is said, and nothing is concluded from it.

Exit codes: 0 no problem; 1 there is a problem; 2 there is none, but not all could be looked at, or the usage was wrong.`

const doctorNodeLong = `Doctor node looks whether the node that it runs on is fit for Flowkeep, before it is installed or later: the kernel and its modules, Open vSwitch, the
MTU of the way to the other nodes, configurations, interfaces and rules of other networks, where the container runtime looks for them, firewalls, the
clock, ports, forwarding, room on disk. Where netplugin runs, it names the programs that change what netplugin repairs,
as far as they are known. It needs no
cluster. With --kubeconfig it also compares the clock with the API server's. It should be run as root; it changes nothing and loads no module.

Exit codes are those of netctl doctor.`

var (
	errProblems  = errors.New("there are problems: see above")
	errNotLooked = errors.New("not all could be looked at: see above")
)

// lookError ends doctor where it could not look.
type lookError struct{ error }

func (l lookError) Unwrap() error { return l.error }

func doctorCommand(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "doctor", Short: "Is this cluster fit for Flowkeep, or this node", Long: doctorLong, Args: noMore,
		Example: "  netctl doctor\n  netctl doctor -o wide\n  netctl doctor -o json | jq -r '.findings[] | select(.level == \"problem\").do'\n  netctl doctor node",
		RunE: func(cmd *cobra.Command, _ []string) error {
			var facts *doctor.ClusterFacts
			err := fromAPI(cmd, o, func(ctx context.Context, c *apiserver.Client) error {
				facts = clusterFacts(ctx, c)
				return nil
			})
			if facts == nil {
				return lookError{err}
			}
			return tell(cmd, o, doctor.Cluster(facts))
		},
	}
	cmd.AddCommand(doctorNodeCommand(o))
	return cmd
}

func doctorNodeCommand(o *options) *cobra.Command {
	l := look.Options{Each: 5 * time.Second}
	cmd := &cobra.Command{
		Use: "node", Short: "Is this node fit for Flowkeep", Long: doctorNodeLong, Args: exactly(),
		Example: "  netctl doctor node\n  netctl doctor node --traffic-mode geneve --peer 192.0.2.12\n  netctl doctor node --kubeconfig /etc/kubernetes/kubelet.conf",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !slices.Contains(trafficModes, l.TrafficMode) {
				return usageError{fmt.Errorf("--traffic-mode %q: use route, geneve or auto", l.TrafficMode)}
			}
			if !slices.Contains(translators, l.Services) {
				return usageError{fmt.Errorf("--services %q: use kube-proxy or ovs", l.Services)}
			}
			for _, p := range l.Peers {
				if _, err := netip.ParseAddr(p); err != nil {
					return usageError{fmt.Errorf("--peer %q is no address", p)}
				}
			}
			var err error
			if l.API, err = apiClock(cmd, o); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), max(o.timeout, l.Each))
			defer cancel()
			facts, err := look.Node(ctx, &l)
			if facts == nil {
				return lookError{err}
			}
			return tell(cmd, o, doctor.Node(facts))
		},
	}
	f := cmd.Flags()
	f.StringVar(&l.StateDir, "state-dir", "/var/lib/flowkeep", "netplugin's or netmaster's state directory")
	f.StringVar(&l.CNIConfDir, "cni-conf-dir", "/etc/cni/net.d", "directory where the container runtime finds CNI configurations")
	f.StringVar(&l.CNIBinDir, "cni-bin-dir", "/opt/cni/bin", "directory where the container runtime finds CNI plugins")
	f.StringVar(&l.OVSRunDir, "ovs-run-dir", "/var/run/openvswitch", "directory of Open vSwitch's sockets")
	f.StringVar(&l.CNISocket, "cni-socket", "/run/flowkeep/cni.sock", "netplugin's flag of this name")
	f.IntVar(&l.ServiceTable, "service-table", wellknown.ServiceTable, "netplugin's flag of this name")
	f.IntVar(&l.RulePriority, "rule-priority", wellknown.RulePriority, "netplugin's flag of this name")
	f.StringVar(&l.TrafficMode, "traffic-mode", "route",
		"how pods of different nodes are to reach each other: route, geneve or auto")
	f.StringVar(&l.Services, "services", "kube-proxy", "netplugin's flag of this name")
	f.StringSliceVar(&l.Peers, "peer", nil, "addresses of other nodes, whose ways are looked at; default: that of the default gateway")
	_ = cmd.RegisterFlagCompletionFunc("traffic-mode", cobra.FixedCompletions(trafficModes, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("services",
		cobra.FixedCompletions(translators, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("peer", cobra.NoFileCompletions)
	for _, name := range []string{"state-dir", "cni-conf-dir", "cni-bin-dir", "ovs-run-dir"} {
		_ = cmd.MarkFlagDirname(name)
	}
	return cmd
}

var (
	trafficModes = []string{"route", "geneve", "auto"}
	translators  = []string{"kube-proxy", "ovs"}
)

// apiClock returns nil without flags for a kubeconfig: the default one may belong to another cluster.
func apiClock(cmd *cobra.Command, o *options) (func(context.Context) (doctor.Offset, error), error) {
	if o.kubeconfig == "" && o.context == "" {
		return nil, nil
	}
	c, err := apiserver.New(o.access())
	if err != nil {
		return nil, lookError{err}
	}
	return func(ctx context.Context) (doctor.Offset, error) {
		defer c.Close()
		date, before, after, err := c.Date(ctx)
		// The date is of somewhere between the two, and has no fractions.
		return doctor.Offset{Ahead: before.Add(after.Sub(before) / 2).Sub(date.Add(time.Second / 2)), Give: after.Sub(before)/2 + time.Second/2}, err
	}, nil
}

// tell prints the report; what is worst in it decides the exit code.
func tell(cmd *cobra.Command, o *options, r doctor.Report) error {
	if err := show(cmd.OutOrStdout(), o, r, func(w io.Writer, wide bool) { printFindings(w, &r, wide) }); err != nil {
		return err
	}
	switch {
	case r.Counts[doctor.Problem] > 0:
		return errProblems
	case r.Counts[doctor.Unknown] > 0:
		return lookError{errNotLooked}
	}
	return nil
}

func printFindings(w io.Writer, r *doctor.Report, wide bool) {
	fmt.Fprintf(w, "%s %s: %s\n\n", r.Of, oneLine.Replace(r.Name), summary(r))
	told := ""
	for i := range r.Findings {
		f := &r.Findings[i]
		fmt.Fprintf(w, "%-9s%-17s%s\n", f.Level, f.Check, oneLine.Replace(f.Seen))
		if f.Why != told && (wide || f.Level != doctor.OK) { // once for what belongs together
			fmt.Fprintf(w, "%26swhy: %s\n", "", f.Why)
			told = f.Why
		}
		if f.Do != "" {
			fmt.Fprintf(w, "%26sdo:  %s\n", "", oneLine.Replace(f.Do))
		}
	}
}

func summary(r *doctor.Report) string {
	var parts []string
	for _, l := range doctor.Levels {
		switch n := r.Counts[l]; {
		case n == 0 || l == doctor.OK:
		case l == doctor.Unknown:
			parts = append(parts, fmt.Sprintf("%d unknown", n))
		default:
			parts = append(parts, plural(n, string(l), string(l)+"s"))
		}
	}
	if len(parts) == 0 {
		return "all is well"
	}
	return strings.Join(parts, ", ")
}
