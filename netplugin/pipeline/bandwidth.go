package pipeline

import (
	"maps"
	"math"
	"slices"

	"github.com/flowkeep/flowkeep/ofctl"
)

// Bandwidth limits a pod's traffic, in bits a second; 0: no limit. Ingress is what the pod receives.
type Bandwidth struct {
	Ingress uint64 `json:"ingress,omitempty"`
	Egress  uint64 `json:"egress,omitempty"`
}

// firstBandwidthMeter and the number of a pod's port, times two, are the ID of the pod's meter for egress; the one for
// ingress follows. The highest is below what both datapaths take: 200,000 of the kernel's, 262,144 in userspace.
const firstBandwidthMeter = 1 << 16

// IsBandwidthMeter reports whether a meter is one of Compiler.BandwidthMeters.
func IsBandwidthMeter(id uint32) bool { return id >= firstBandwidthMeter }

const (
	kilobit = 1000
	// minBurst is a packet of 64 KiB, which the kernel's datapath gets where the pod's device segments, and some more.
	minBurst = 640 // kilobits
	// burstShare of a second is how much of the rate passes at once.
	burstShare = 5
)

// egressMeter limits what the port's pod sends, ingressMeter what it receives.
func egressMeter(port uint32) uint32  { return firstBandwidthMeter + 2*port }
func ingressMeter(port uint32) uint32 { return egressMeter(port) + 1 }

// bandwidthMeter returns a meter for a rate in bits a second.
func bandwidthMeter(id uint32, rate uint64) ofctl.Meter {
	kilobits := uint32(min(max(rate/kilobit, 1), math.MaxUint32))
	return ofctl.Meter{
		ID:       id,
		Rate:     kilobits,
		Burst:    max(kilobits/burstShare, minBurst),
		Kilobits: true,
	}
}

// BandwidthMeters returns the meters that limit the endpoints' bandwidth, one for each direction that has a limit.
func (c *Compiler) BandwidthMeters() (list []ofctl.Meter) {
	for _, id := range slices.Sorted(maps.Keys(c.endpoints)) {
		e := c.endpoints[id]
		if e.Bandwidth.Egress > 0 {
			list = append(list, bandwidthMeter(egressMeter(e.Port), e.Bandwidth.Egress))
		}
		if e.Bandwidth.Ingress > 0 {
			list = append(list, bandwidthMeter(ingressMeter(e.Port), e.Bandwidth.Ingress))
		}
	}
	return list
}

// limited puts a meter in front of actions where there is a limit and the switch has meters.
func (cfg *Config) limited(rate uint64, meter uint32, actions ...ofctl.Action) []ofctl.Action {
	if rate == 0 || !cfg.Limits {
		return actions
	}
	return append([]ofctl.Action{{Kind: ofctl.Metered, Value: meter}}, actions...)
}
