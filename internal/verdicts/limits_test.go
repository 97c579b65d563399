package verdicts

import (
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/ofctl/ovstest"
	"github.com/flowkeep/flowkeep/policydb/policy/policytest"
)

// TestUserspaceDatapathLimits and TestKernelDatapathLimits: where the policies' zone has no room left, the kernel's
// datapath drops the packets of new connections, so these have no entry in the node's stack either. The userspace
// datapath lets them through untracked.
func TestUserspaceDatapathLimits(t *testing.T) {
	const sent = 100
	if got := beyondLimit(t, "netdev", sent, sent); got != sent {
		t.Errorf("%d of %d packets have come out: docs/decisions/028 has it otherwise", got, sent)
	}
}

func TestKernelDatapathLimits(t *testing.T) {
	ovstest.NeedKernelDatapath(t)
	if got := beyondLimit(t, "system", 100, 1); got == 0 || got > 20 {
		t.Errorf("%d packets have come out, want 20 at most, and some", got)
	}
}

// beyondLimit returns how many of a pod's new connections leave the node where 20 may be tracked. It waits until the
// wanted number has left, and some time for more.
func beyondLimit(t *testing.T, datapath string, connections, want int) (got int) {
	sw := startReal(t, datapath)
	sw.AppCtl(t, "dpctl/ct-set-limits", sw.datapathName(), "zone=65521,limit=20")
	sw.run(t, "no policy", func(t testing.TB) {
		b := three(t)
		sw.settle(t)
		own, mac := policytest.Address(0, false), b.locals[0].MAC
		for i := range connections {
			p := ported(own, netip.MustParseAddr("198.51.100.7"), protoUDP, uint16(2000+i), 99, 0)
			must(t, unix.Send(sw.ends[b.locals[0].Port], ethernet(config.Gateway.MAC[:], mac[:], ofctl.EtherIPv4, p), 0))
		}
		for late := time.After(comes); got < connections; {
			select {
			case a := <-sw.arrived:
				if a.port == wirePort {
					if got++; got == want {
						late = time.After(20 * sw.patience)
					}
				}
			case <-late:
				return
			}
		}
	})
	return got
}
