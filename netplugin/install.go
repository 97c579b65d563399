package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/flowkeep/flowkeep/netplugin/node/install"
	"github.com/spf13/cobra"
)

const installLong = `Install puts CNI plugins where the node's container runtime looks for them, as the init container of netplugin's pods.

Each goes into place in one step, and only if it differs: a plugin that runs goes on, and no pod finds half of one. An older version replaces a newer
one alike. With --networkd-dir and --networkmanager-dir it also has the node's network managers leave
Flowkeep's links alone. The configuration that names the plugins is not written here but by netplugin itself
(--cni-conf-dir), when the node is ready for pods.`

const installExample = `  # what pods' network needs
  netplugin install --cni-bin-dir /host/opt/cni/bin --programs flowkeep-cni,flowkeep-portmap

  # all that the image has
  netplugin install --cni-bin-dir /host/opt/cni/bin`

func installCommand() *cobra.Command {
	var from, to, networkd, networkManager string
	var programs []string
	cmd := &cobra.Command{
		Use: "install", Short: "Put CNI plugins in place on this node", Long: installLong, Example: installExample,
		Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if len(programs) == 0 {
				if programs, err = install.In(from); err != nil {
					return fmt.Errorf("what is there to install? %w", err)
				}
			}
			changed, err := install.Programs(from, to, programs)
			if len(changed) > 0 {
				fmt.Fprintf(cmd.OutOrStdout(), "installed %s in %s\n", strings.Join(changed, ", "), to)
			} else if err == nil {
				fmt.Fprintf(cmd.OutOrStdout(), "%s has %s already\n", to, strings.Join(programs, ", "))
			}
			written, managersErr := install.Managers(networkd, networkManager)
			for _, path := range written {
				fmt.Fprintf(cmd.OutOrStdout(), "wrote %s\n", path)
			}
			return errors.Join(err, managersErr)
		},
	}
	f := cmd.Flags()
	f.StringVar(&to, "cni-bin-dir", "/opt/cni/bin", "directory of the node's CNI plugins")
	f.StringVar(&from, "from", "/usr/libexec/flowkeep/cni", "directory of the plugins to install")
	f.StringSliceVar(&programs, "programs", nil, "names of the plugins; none: all that are there")
	f.StringVar(&networkd, "networkd-dir", "",
		"directory of systemd-networkd's configuration, for a file by which it leaves Flowkeep's links alone; "+
			"empty: none is written")
	f.StringVar(&networkManager, "networkmanager-dir", "", "the same of NetworkManager")
	for _, name := range []string{"cni-bin-dir", "from", "networkd-dir", "networkmanager-dir"} {
		_ = cmd.MarkFlagDirname(name)
	}
	return cmd
}
