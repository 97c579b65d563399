package main

import (
	"context"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/flowkeep/flowkeep/netmaster/ca"
	"github.com/spf13/cobra"
)

// inCluster identifies a CA in a Secret.
type inCluster struct{ kubeconfig, secret string }

func (i *inCluster) addFlags(cmd *cobra.Command, secret string) {
	cmd.Flags().StringVar(&i.secret, "authority-secret", secret, "NAMESPACE/NAME of the Secret with the authority")
	cmd.Flags().
		StringVar(&i.kubeconfig, "kubeconfig", "", "kubeconfig with the right to read and write the Secret; "+
			"default: the service account of the pod this runs in")
}

func (i *inCluster) open() (*ca.Cluster, error) {
	namespace, name, err := names("--authority-secret", i.secret)
	if err != nil {
		return nil, err
	}
	rest, err := restConfig(i.kubeconfig)
	if err != nil {
		return nil, err
	}
	return ca.NewCluster(ca.ClusterConfig{Rest: rest, Namespace: namespace, Name: name})
}

const theSecret = "flowkeep-system/flowkeep-authority"

// requestTimeout bounds requests to the API server.
const requestTimeout = 30 * time.Second

const rotateLong = `Rotate has a new authority sign what netmaster and nodes show each other. Netmaster does it by itself in good time (--authority-life).

Without --lost or --stolen nothing is interrupted: the new authority is published first, signs after netmaster's --authority-overlap, and the former is
trusted until nothing that it signed is valid any more. With either, the new one signs at once, and nodes cannot connect until the kubelet has brought it
to them, in a minute or two; they enforce what they have.`

func pkiRotate() *cobra.Command {
	var in inCluster
	var lost, stolen bool
	lives := ca.Lives{Overlap: overlap}
	cmd := &cobra.Command{
		Use:   "rotate",
		Short: "Have a new authority sign, of those in a Secret",
		Long:  rotateLong,
		Args:  cobra.NoArgs,
		Example: "  netmaster pki rotate --kubeconfig ~/.kube/config\n  netmaster pki rotate --stolen --kubeconfig " +
			"~/.kube/config",
		RunE: func(c *cobra.Command, _ []string) error {
			store, err := in.open()
			if err != nil {
				return err
			}
			why := ca.Planned
			if lost {
				why = ca.Lost
			} else if stolen {
				why = ca.Stolen
			}
			if err := lives.Check(); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(c.Context(), requestTimeout)
			defer cancel()
			said, err := ca.Rotate(ctx, store, why, lives, time.Now())
			if err == nil {
				fmt.Fprintln(c.OutOrStdout(), said)
			}
			return err
		},
	}
	in.addFlags(cmd, theSecret)
	cmd.Flags().
		BoolVar(&lost, "lost", false, "the Secret is gone, or holds what nodes do not trust: what the former "+
			"authority signed stays valid")
	cmd.Flags().
		BoolVar(&stolen, "stolen", false, "others may have the key: what the former authority signed is not trusted "+
			"any more")
	cmd.MarkFlagsMutuallyExclusive("lost", "stolen")
	cmd.Flags().
		DurationVar(&lives.Leaf, "certificate-life", leafLife, "netmaster's --certificate-life: how long what the "+
			"former authority signed may be valid")
	cmd.Flags().DurationVar(&lives.Authority, "authority-life", authorityLife, "how long the new authority lives")
	return cmd
}

func pkiShow() *cobra.Command {
	var in inCluster
	cmd := &cobra.Command{
		Use:     "show",
		Short:   "Show the authorities in a Secret: which signs, which will, which are still trusted",
		Args:    cobra.NoArgs,
		Example: "  netmaster pki show --kubeconfig ~/.kube/config",
		RunE: func(c *cobra.Command, _ []string) error {
			store, err := in.open()
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(c.Context(), requestTimeout)
			defer cancel()
			lines, err := ca.Show(ctx, store)
			if err != nil {
				return err
			}
			w := tabwriter.NewWriter(c.OutOrStdout(), 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "AUTHORITY\tUNTIL\tROLE")
			for _, l := range lines {
				fmt.Fprintf(w, "%s\t%s\t%s\n", l.Cert.Subject.CommonName, l.Until.UTC().Format(time.RFC3339), l.Role)
			}
			return w.Flush()
		},
	}
	in.addFlags(cmd, theSecret)
	return cmd
}

func issueAdmin(c *cobra.Command, in *inCluster, dir string) error {
	store, err := in.open()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.Context(), requestTimeout)
	defer cancel()
	until, err := ca.IssueAdmin(ctx, store, dir, time.Now())
	if err == nil {
		fmt.Fprintf(c.OutOrStdout(), "made admin.crt, admin.key and ca.crt in %s, good until %s\n", dir,
			until.UTC().Format(time.RFC3339))
	}
	return err
}
