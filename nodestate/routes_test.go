package nodestate

import (
	"net/netip"
	"testing"

	"github.com/flowkeep/flowkeep/api/wellknown"
	"golang.org/x/sys/unix"
)

// aboutRoute returns a message about a route to 192.0.2.0 with a number of bits (struct rtmsg and RTA_DST).
func aboutRoute(protocol, bits byte) []byte {
	return []byte{unix.AF_INET, bits, 0, 0, 254, protocol, 0, 1, 0, 0, 0, 0, 8, 0, unix.RTA_DST, 0, 192, 0, 2, 0}
}

func TestKeepsRoute(t *testing.T) {
	desired := DestinationsOf(parse(t, `{routes: {config: [{destination: 192.0.2.9/24, next-hop-interface: eth0}]}}`))
	for name, c := range map[string]struct {
		message []byte
		want    bool
	}{
		"static":                  {aboutRoute(unix.RTPROT_STATIC, 32), true},
		"the kernel's":            {aboutRoute(unix.RTPROT_KERNEL, 32), true},
		"Flowkeep's":              {aboutRoute(wellknown.RouteProtocol, 32), true},
		"BIRD's":                  {aboutRoute(unix.RTPROT_BIRD, 32), false},
		"FRR's":                   {aboutRoute(unix.RTPROT_BGP, 25), false},
		"a daemon's, default":     {aboutRoute(unix.RTPROT_BIRD, 0), true},
		"a daemon's, as desired":  {aboutRoute(unix.RTPROT_BIRD, 24), true},
		"an unknown protocol's":   {aboutRoute(80, 32), false},
		"without a destination":   {aboutRoute(unix.RTPROT_BIRD, 24)[:12], false},
		"shorter than its header": {aboutRoute(unix.RTPROT_BIRD, 24)[:11], true},
	} {
		if KeepsRoute(c.message, desired) != c.want {
			t.Errorf("%s: %v", name, !c.want)
		}
	}
}

func FuzzKeepsRoute(f *testing.F) {
	f.Add(aboutRoute(unix.RTPROT_BIRD, 24))
	destinations := map[netip.Prefix]bool{netip.MustParsePrefix("192.0.2.0/24"): true}
	f.Fuzz(func(_ *testing.T, message []byte) { KeepsRoute(message, destinations) })
}
