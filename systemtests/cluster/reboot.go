package cluster

import (
	"context"
	"fmt"
)

// PowerOff ends what a reboot of a node ends: its containers, the programs that run them, netplugin, the macvtap agent and
// the switch; and removes what is only in the kernel: links of pods and of the bridge, the kernel's datapath, rules,
// nftables and conntrack's entries. Files and Open vSwitch's database stay.
func (c *Cluster) PowerOff(ctx context.Context, node string) error {
	_, err := c.script(ctx, fmt.Sprintf(`ctr() { command ctr -a "$RUN/%[1]s/containerd.sock" -n k8s.io "$@"; }
		kill9() { ! alive "$1" || { read -r pid _ <"$RUN/pids/$1"; kill -9 "$pid"; while alive "$1"; do sleep 0.01; done; }; }
		for name in kubelet netplugin macvtap; do kill9 "%[1]s-$name"; done
		for id in $(ctr tasks ls -q); do ctr tasks kill -s KILL "$id" || true; done
		for name in containerd vswitchd proxy; do kill9 "%[1]s-$name"; done
		nsenter --net=%[2]s sh -c '
			if [ -e /sys/module/openvswitch ]; then for d in $(ovs-dpctl dump-dps); do ovs-dpctl del-dp "$d"; done; fi
			for l in $(ip -o link | cut -d: -f2 | cut -d@ -f1 | grep -E "^ (fkp|fk-|fktap)"); do ip link del "$l"; done
			nft flush ruleset
			conntrack -F 2>&1
			for f in -4 -6; do ip $f rule flush; ip $f rule add pref 0 table local; ip $f rule add pref 32766 table main; done'`,
		node, c.NodeNS(node)))
	return err
}

// PowerOn starts the programs of a node that was powered off, the kubelet long before netplugin, and no macvtap agent. As
// systemd does, it starts the kubelet again where it ends because containerd does not serve its runtime API yet.
func (c *Cluster) PowerOn(ctx context.Context, node string) error {
	_, err := c.script(ctx, fmt.Sprintf(`for name in containerd proxy; do restart "%[1]s-$name"; done
		healthy() {
			alive %[1]s-kubelet || restart %[1]s-kubelet
			nsenter --net=%[2]s bash -c ': </dev/tcp/127.0.0.1/10248'
		}
		wait_for 60 "the kubelet of %[1]s" healthy
		sleep 3 # the kubelet asks for its pods meanwhile
		for name in vswitchd netplugin; do restart "%[1]s-$name"; done`, node, c.NodeNS(node)))
	return err
}
