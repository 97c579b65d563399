package cluster

import "context"

// NetctlImage makes an image of netctl, the program alone, and returns its name. The nodes of the sandbox have it.
func (c *Cluster) NetctlImage(ctx context.Context) (name string, err error) {
	name = "flowkeep.local/netctl:sandbox"
	_, err = c.script(ctx, `
		dir=$(mktemp -d); trap 'rm -rf "$dir"' EXIT
		IMAGES=$dir image `+name+` "$RUN/flowkeep/bin/netctl" '["/netctl"]'
		for sock in "$RUN"/node*/containerd.sock; do
			ctr -a "$sock" -n k8s.io images import "$dir/netctl.tar" >&2
		done`)
	return name, err
}
