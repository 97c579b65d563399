package cluster

import (
	"context"
	"fmt"
	"strings"
)

// UseMultus makes multus the CNI plugin of a node: it has Flowkeep make pods' own network, and then others make what pods' annotations ask for.
// Multus asks the kubelet at a path that is built into it; here that is the node's own kubelet.
// This version passes on results of CNI 1.1, which containerd 1.6 does not accept: netplugin leaves the list of versions
// out where there is a configuration of Multus, and the copy has none either.
func (c *Cluster) UseMultus(ctx context.Context, node string) error {
	_, err := c.script(ctx, fmt.Sprintf(`dir=$RUN/%s
		[ -x "$BIN/multus" ] || { echo "there is no multus: run systemtests/sandbox/build --multus" >&2; exit 1; }
		mkdir -p "$dir/multus"
		cat >"$dir/cni/bin/multus" <<SH
#!/bin/sh
exec unshare --mount sh -c 'mount --bind "$dir/kubelet" /var/lib/kubelet && exec "$BIN/multus"'
SH
		chmod +x "$dir/cni/bin/multus"
		put "$dir/cni/conf/00-multus.conf" <<JSON
{"cniVersion": "1.0.0", "name": "multus", "type": "multus", "capabilities": {"portMappings": true}, "kubeconfig": "$KUBECONFIG",
 "cniDir": "$dir/multus", "binDir": "$dir/cni/bin",
 "delegates": [$(jq "del(.cniVersions)" "$dir/cni/conf/10-flowkeep.conflist")]}
JSON`, node))
	return err
}

// EndMultus is for when no pod is left that multus attached.
func (c *Cluster) EndMultus(ctx context.Context, node string) error {
	_, err := c.script(ctx, fmt.Sprintf(`dir=$RUN/%s; rm -rf "$dir/cni/conf/00-multus.conf" "$dir/cni/bin/multus" "$dir/multus"`, node))
	return err
}

// KillContainers ends containers of a pod as a crash would: kind is container, or sandbox for the one that holds its network.
func (c *Cluster) KillContainers(ctx context.Context, node, uid, kind string) error {
	text, err := c.script(ctx, fmt.Sprintf(`ctr() { command ctr -a "$RUN/%s/containerd.sock" -n k8s.io "$@"; }
		for id in $(ctr containers ls -q 'labels."io.kubernetes.pod.uid"==%s,labels."io.cri-containerd.kind"==%s'); do
			ctr tasks kill -s KILL "$id"
			echo "$id"
		done`, node, uid, kind))
	if err == nil && strings.TrimSpace(text) == "" {
		err = fmt.Errorf("pod %s has no %s on %s", uid, kind, node)
	}
	return err
}
