package policysync

import (
	"testing"
)

// A gateway and its policies reach the clusters, and what the spokes say comes back; a second start writes nothing.
func TestGatewayAndPolicies(t *testing.T) {
	h := newHubWorld(t, 3)
	h.agents()
	h.gateway("web", "edge", "all")
	h.policy("LimitPolicy", "slow", 5, "web")
	h.policy("LimitPolicy", "other", 5, "elsewhere")
	r := h.start()
	h.expect(3, "Namespace/"+h.id, "Gateway/web", "LimitPolicy/slow")
	h.says("GatewayClass", h.className("edge"), "Accepted", "True")
	h.says("Gateway", "web", "Programmed", "True")
	h.says("LimitPolicy", "slow", "fleet.flowkeep.io/Accepted", "True")
	r.idle()
	r.stop()
	again := h.start()
	again.idle()
	if n := again.writes(); n != 0 {
		t.Errorf("a second start makes %v writes", n)
	}
}
