package agent

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/flowkeep/flowkeep/netplugin/endpoints"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
)

// hostPortsAt returns the addresses and ports, 1024 and above, that the switch's flows lead from.
func (x *translator) hostPortsAt() (list []netip.AddrPort) {
	for _, f := range x.sw.holds {
		if f.Table == pipeline.TableServiceFrontend && f.Match.NwDst.IsValid() && f.Match.TpDst.Value >= 1024 {
			list = append(list, netip.AddrPortFrom(f.Match.NwDst.Addr(), f.Match.TpDst.Value))
		}
	}
	slices.SortFunc(list, netip.AddrPort.Compare)
	return list
}

// TestTranslation_HostPorts: hostPorts of the node's pods lead from the node's own addresses, or from the one that the
// pod names, as long as the pod is there, and follow the node's addresses.
func TestTranslation_HostPorts(t *testing.T) {
	dir := t.TempDir()
	x := translating(t, dir, newPickySwitch())
	defer x.close()
	x.attached(7, 8)
	for name, ports := range map[string][]endpoints.PortMapping{
		"shop/0": {
			{HostPort: 8080, ContainerPort: 80, Protocol: "tcp"},
			{HostPort: 8053, ContainerPort: 53, Protocol: "UDP"},
		},
		"shop/1": {
			{HostPort: 8081, ContainerPort: 80, Protocol: "tcp", HostIP: "192.0.2.1"},
			{HostPort: 8082, ContainerPort: 80, Protocol: "tcp", HostIP: "192.0.2.9"},
			{HostPort: 8083, ContainerPort: 80, Protocol: "icmp"},
		},
	} {
		x.pods.byID[name].endpoint.HostPorts = ports
	}
	x.begin()
	expect := func(why string, want ...string) {
		t.Helper()
		var list []netip.AddrPort
		for _, w := range want {
			list = append(list, netip.MustParseAddrPort(w))
		}
		if got := x.hostPortsAt(); !slices.Equal(got, list) {
			t.Errorf("%s: %v, want %v", why, got, list)
		}
	}
	expect("both pods", "192.0.2.1:8053", "192.0.2.1:8080", "192.0.2.1:8081")
	x.expect("both pods", 7, 8)
	x.rules.nodes[0].Addresses = []netip.Addr{netip.MustParseAddr("192.0.2.9")}
	x.node.configure(t.Context())
	expect("the node has another address", "192.0.2.9:8053", "192.0.2.9:8080", "192.0.2.9:8082")
	ended := x.pods.byID["shop/0"]
	delete(x.pods.byID, "shop/0")
	if err := x.pods.shut(t.Context(), ended); err != nil {
		t.Fatal(err)
	}
	expect("one pod has ended", "192.0.2.9:8082")
	x.expect("one pod has ended", 8)
	if problems := x.compiler.ServiceProblems(); len(problems) > 0 {
		t.Errorf("%v", problems)
	}
}
