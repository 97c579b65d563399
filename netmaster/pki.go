package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/flowkeep/flowkeep/internal/mtls"
	"github.com/spf13/cobra"
)

func pkiCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pki",
		Short: "Make the authority and certificates of Flowkeep's mutual TLS",
		Args:  cobra.NoArgs,
	}
	cmd.AddCommand(pkiInit(), pkiIssue(), pkiRotate(), pkiShow())
	return cmd
}

func pkiInit() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:     "init",
		Short:   "Make an authority: ca.crt and ca.key",
		Args:    cobra.NoArgs,
		Example: "  netmaster pki init --dir /etc/flowkeep/pki",
		RunE: func(c *cobra.Command, _ []string) error {
			if err := mtls.Init(dir); err != nil {
				return err
			}
			fmt.Fprintf(c.OutOrStdout(), "made the authority in %s; keep ca.key to yourself\n", dir)
			return nil
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "/etc/flowkeep/pki", "directory of the key material")
	return cmd
}

func pkiIssue() *cobra.Command {
	var dir, node, server string
	var admin bool
	var in inCluster
	cmd := &cobra.Command{
		Use:   "issue",
		Short: "Make a certificate for a node, a netmaster or netctl",
		Args:  cobra.NoArgs,
		Example: "  netmaster pki issue --node node1\n  netmaster pki issue --server 10.0.0.10,netmaster.example\n  " +
			"netmaster pki issue --admin\n  netmaster pki issue --admin --authority-secret " +
			"flowkeep-system/flowkeep-authority --dir admin",
		RunE: func(c *cobra.Command, _ []string) error {
			switch {
			case in.secret != "" && !admin:
				return errors.New(
					"of the authority in a Secret, netmaster and nodes get their certificates by themselves: only " +
						"--admin is for people",
				)
			case in.secret != "":
				return issueAdmin(c, &in, dir)
			case node != "":
				return mtls.IssueNode(dir, node)
			case server != "":
				return mtls.IssueServer(dir, strings.Split(server, ","))
			case admin:
				return mtls.IssueAdmin(dir)
			}
			return errors.New("say for whom: --node NAME, --server HOST[,HOST…] or --admin")
		},
	}
	f := cmd.Flags()
	f.StringVar(&dir, "dir", "/etc/flowkeep/pki", "directory of the key material")
	f.StringVar(&node, "node", "", "the node's name: makes NAME.crt and NAME.key")
	f.StringVar(&server, "server", "", "addresses and host names of netmaster: makes server.crt and server.key")
	f.BoolVar(&admin, "admin", false, "for netctl: makes admin.crt and admin.key")
	cmd.MarkFlagsMutuallyExclusive("node", "server", "admin")
	in.addFlags(cmd, "")
	return cmd
}
