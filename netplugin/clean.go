package main

import (
	"github.com/flowkeep/flowkeep/macvtap/tap"
	"github.com/flowkeep/flowkeep/netplugin/node/clean"
	"github.com/flowkeep/flowkeep/netplugin/node/install"
	"github.com/spf13/cobra"
)

const cleanLong = `Clean removes from this node what Flowkeep put there, says what, and fails if anything of it is left: the CNI configuration and plugins, the bridge
with its flows and ports, the connections that it tracked, the nodes' ends of pods' links, routes, policy rules and nftables, netplugin's socket; with
--state also the state directory, with the addresses that pods have, the rules that were last in force, and counters. It may be repeated.

It refuses while netplugin runs or pods are wired: they would lose their network. Open vSwitch itself, other bridges, other networks'
configurations and sysctls stay as they are. netctl uninstall runs it on every node.`

const cleanExample = `  netplugin clean --dry-run
  netplugin clean --state

  # whatever runs
  netplugin clean --state --force`

func cleanCommand() *cobra.Command {
	cfg := clean.Config{TapLinks: tap.Links}
	cmd := &cobra.Command{
		Use: "clean", Short: "Remove from this node what Flowkeep put there", Long: cleanLong, Example: cleanExample,
		Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error { return clean.Node(cmd.Context(), &cfg, cmd.OutOrStdout()) },
	}
	f := cmd.Flags()
	f.StringVar(&cfg.CNIConfDir, "cni-conf-dir", "/etc/cni/net.d", "the container runtime's directory of CNI configurations")
	f.StringVar(&cfg.CNIBinDir, "cni-bin-dir", "/opt/cni/bin", "directory of the node's CNI plugins")
	f.StringVar(&cfg.OVSDB, "ovsdb", "unix:/var/run/openvswitch/db.sock", "endpoint of ovsdb-server")
	f.StringVar(&cfg.OVSRunDir, "ovs-run-dir", "/var/run/openvswitch", "directory of Open vSwitch's sockets")
	f.StringVar(&cfg.OVSControl, "ovs-control", "", "ovs-vswitchd's control socket; empty: by the pid file in --ovs-run-dir")
	f.StringVar(&cfg.Bridge, "bridge", "fk0", "name of netplugin's bridge")
	f.StringVar(&cfg.CNISocket, "cni-socket", "/run/flowkeep/cni.sock", "unix socket on which flowkeep-cni asks")
	f.StringVar(&cfg.StateDir, "state-dir", "/var/lib/flowkeep", "netplugin's state directory")
	f.StringVar(&cfg.NetworkdDir, "networkd-dir", install.NetworkdDir, "directory of systemd-networkd's configuration")
	f.StringVar(&cfg.NetworkManagerDir, "networkmanager-dir", install.NetworkManagerDir,
		"directory of NetworkManager's configuration")
	f.BoolVar(&cfg.State, "state", false, "remove the state directory too")
	f.BoolVar(&cfg.Force, "force", false, "also while netplugin runs or pods are wired")
	f.BoolVar(&cfg.DryRun, "dry-run", false, "remove nothing, and say what would be removed")
	for _, name := range []string{
		"cni-conf-dir", "cni-bin-dir", "ovs-run-dir", "state-dir", "networkd-dir", "networkmanager-dir",
	} {
		_ = cmd.MarkFlagDirname(name)
	}
	return cmd
}
