package cluster

import (
	"context"
	"fmt"
)

// StartNodeConfig starts a policy handler for all nodes beside the control plane. As a process it is called NAME.
func (c *Cluster) StartNodeConfig(ctx context.Context, name, kubeconfig, port string) error {
	_, err := c.script(ctx, fmt.Sprintf(`start %s nsenter --net="$(ns_path cp)" -- "$RUN/flowkeep/bin/netmaster" node-config --identity %[1]s --kubeconfig %s --http-listen 127.0.0.1:%s`,
		name, kubeconfig, port))
	return err
}

// EndNodeConfig stops it.
func (c *Cluster) EndNodeConfig(ctx context.Context, name string) error {
	_, err := c.script(ctx, fmt.Sprintf(`stop %[1]s 40; rm -f "$RUN/pids/.%[1]s.command"`, name))
	return err
}
