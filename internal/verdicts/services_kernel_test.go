package verdicts

import (
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/ofctl/ovstest"
)

// TestKernelDatapathServices runs the tests of Services on the kernel's datapath, with -short the first of them.
func TestKernelDatapathServices(t *testing.T) {
	ovstest.NeedKernelDatapath(t)
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

// serviceDatapath returns the datapath of a test of Services.
func serviceDatapath(t *testing.T) string {
	if strings.HasPrefix(t.Name(), "TestKernel") {
		return "system"
	}
	return "netdev"
}
