package doctor

import "strings"

// network is another that wires pods or judges their packets, by what it is known to make. A name with a * at its end is a prefix.
type network struct {
	name       string
	types      []string // of CNI plugins
	daemonSets []string
	links      []string // interfaces of the node
	chains     []string // of iptables, and tables of nftables
}

var networks = []network{
	{"Calico", []string{"calico", "calico-ipam"}, []string{"calico-node", "canal"}, []string{"cali*", "tunl0", "vxlan.calico", "vxlan-v6.calico", "wireguard.cali"}, []string{"cali-*", "calico"}},
	{"Cilium", []string{"cilium-cni"}, []string{"cilium"}, []string{"cilium_*", "lxc*"}, []string{"CILIUM_*", "OLD_CILIUM_*"}},
	{"Flannel", []string{"flannel"}, []string{"kube-flannel-ds*", "kube-flannel", "flannel"}, []string{"flannel.*", "flannel-v6.*", "flannel-wg*"}, []string{"FLANNEL-*", "flannel-*"}},
	{"Antrea", []string{"antrea"}, []string{"antrea-agent*"}, []string{"antrea-gw0", "antrea-tun0", "antrea-wg0", "antrea-egress0"}, []string{"ANTREA-*", "antrea"}},
	{"OVN-Kubernetes", []string{"ovn-k8s-cni-overlay"}, []string{"ovnkube-node*", "ovnkube-master", "ovnkube"}, []string{"ovn-k8s-mp*"}, []string{"OVN-KUBE-*", "ovn-kubernetes"}},
	{"Kube-OVN", []string{"kube-ovn"}, []string{"kube-ovn-cni"}, []string{"ovn0", "mirror0"}, []string{"OVN-PREROUTING", "OVN-POSTROUTING", "OVN-MASQUERADE"}},
	{"Weave Net", []string{"weave-net", "weave-ipam"}, []string{"weave-net"}, []string{"weave", "vethwe-*", "datapath", "vxlan-6784"}, []string{"WEAVE*"}},
	{"kube-router", nil, []string{"kube-router"}, []string{"kube-bridge", "kube-dummy-if"}, []string{"KUBE-ROUTER-*", "KUBE-NWPLCY-*", "KUBE-POD-FW-*"}},
	{"kindnet", nil, []string{"kindnet"}, nil, []string{"KIND-MASQ-AGENT", "kindnet", "kindnet-*"}},
	{"kube-network-policies", nil, []string{"kube-network-policies"}, nil, []string{"kube-network-policies"}},
	{"the AWS VPC CNI", []string{"aws-cni"}, []string{"aws-node"}, []string{"eni*", "pod-id-link*"}, []string{"AWS-SNAT-CHAIN-*", "AWS-CONNMARK-CHAIN-*"}},
	{"the Azure CNI", []string{"azure-vnet", "azure-vnet-ipam"}, []string{"azure-cns", "azure-cni-networkmonitor", "azure-npm"}, []string{"azv*"}, []string{"AZURE-NPM*"}},
	{"the GKE network", []string{"gke"}, []string{"netd", "anetd"}, []string{"gke*"}, []string{"GKE-*"}},
	{"Contiv", []string{"contivk8s", "contiv"}, []string{"contiv-netplugin"}, []string{"contivVxlanBridge", "contivVlanBridge", "vxlan_def", "contivh*"}, []string{"CONTIV-*"}},
	{"Romana", []string{"romana"}, []string{"romana-agent"}, []string{"romana-*"}, []string{"ROMANA-*"}},
	{"the CNI plugin bridge", []string{"bridge"}, nil, []string{"cni0", "cbr0"}, nil},
}

// networkOf returns the network that uses such a name, "" for unknown names.
func networkOf(of func(*network) []string, name string) string {
	for i := range networks {
		for _, known := range of(&networks[i]) {
			prefix, open := strings.CutSuffix(known, "*")
			if name == known || open && strings.HasPrefix(name, prefix) {
				return networks[i].name
			}
		}
	}
	return ""
}

// grouped returns the known names by network, and the networks in the order of names.
func grouped(of func(*network) []string, names []string) (order []string, by map[string][]string) {
	by = map[string][]string{}
	for _, name := range names {
		if n := networkOf(of, name); n != "" {
			if by[n] == nil {
				order = append(order, n)
			}
			by[n] = append(by[n], name)
		}
	}
	return order, by
}

func byType(n *network) []string      { return n.types }
func byDaemonSet(n *network) []string { return n.daemonSets }
func byLink(n *network) []string      { return n.links }
func byChain(n *network) []string     { return n.chains }

// ParseChains returns the chains in the output of iptables-save(8), or the tables in that of nft(8).
func ParseChains(text string) (names []string) {
	seen := map[string]bool{}
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		name := ""
		switch {
		case len(f) > 1 && len(f[0]) > 1 && f[0][0] == ':':
			name = f[0][1:]
		case len(f) >= 3 && f[0] == "table":
			name = f[2]
		}
		if name != "" && !seen[name] {
			seen[name] = true
			names = append(names, name)
		}
	}
	return names
}
