package verdicts

import (
	"os"
	"strings"
	"testing"
)

// TestKernelDatapathServices runs the tests of Services on the kernel's datapath, with -short the first of them.
func TestKernelDatapathServices(t *testing.T) {
	needKernelDatapath(t)
	for i, c := range []struct {
		name string
		test func(*testing.T)
	}{
		{"each frontend leads to the endpoint", TestServices_EachFrontendLeadsToTheEndpoint},
		{"each connection goes to one endpoint", TestServices_EachConnectionGoesToOneEndpoint},
		{"policy is evaluated on the endpoint", TestServices_PolicyIsEvaluatedOnTheEndpoint},
		{"live connections obey policies", TestServices_LiveConnectionsObeyPolicies},
		{"UDP leaves an endpoint that no longer serves", TestServices_UDPLeavesAnEndpointThatNoLongerServes},
		{"hairpin", TestServices_HairpinReachesThePodItself},
		{"affinity", TestServices_AffinityKeepsTheEndpoint},
		{"large datagrams", TestServices_LargeDatagrams},
		{"errors", TestServices_ErrorsAreTranslatedBack},
		{"other MACs", TestServices_OtherMACsReachNothing},
		{"source ranges", TestServices_SourceRangesHoldForLoadBalancersAlone},
		{"no endpoint", TestServices_NothingLeavesWithoutAnEndpoint},
		{"one source port to two Services", TestServices_OneSourcePortToTwoServices},
		{"streams", TestServices_StreamsArriveWhole},
		{"path MTU", TestServices_PathMTU},
		{"endpoints on hosts", TestServices_EndpointsOnHosts},
	} {
		if i == 0 || !testing.Short() {
			t.Run(c.name, c.test)
		}
	}
}

func needKernelDatapath(t *testing.T) {
	t.Helper()
	if _, err := os.Stat("/sys/module/openvswitch"); err != nil {
		t.Skip("this kernel has no module openvswitch (scripts/kernel runs this test on one that has)")
	}
}

// serviceDatapath returns the datapath of a test of Services.
func serviceDatapath(t *testing.T) string {
	if strings.HasPrefix(t.Name(), "TestKernel") {
		return "system"
	}
	return "netdev"
}
