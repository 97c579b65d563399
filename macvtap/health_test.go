package macvtap

import (
	"strings"
	"testing"
)

// On the userspace datapath the ports of Flowkeep's bridge have no master: their names tell.
func TestNoDeviceIsWhereFlowkeepEnforces(t *testing.T) {
	for _, name := range []string{"fk0", "fk-gw", "fk-wire", "fk-tun", "fkp58481afe6890", "ovs-netdev", "ovs-system"} {
		in := Input{Links: []Link{{Name: name, Physical: true, Up: true}}, Also: []string{"*"}, Config: &Config{Entries: []ConfigEntry{{0, "x", name, Bridge, 1}}}}
		if healthy, why := in.Links[0].Health(); healthy || !strings.Contains(why, "Flowkeep enforces") {
			t.Errorf("%s: %v, %s", name, healthy, why)
		}
		for _, r := range Select(in).Resources {
			for _, p := range r.Parents {
				if p.Healthy {
					t.Errorf("%s has devices: %+v", name, r)
				}
			}
		}
	}
	if healthy, why := (&Link{Name: "eth0", Up: true}).Health(); !healthy {
		t.Error(why)
	}
}
