package agent

import (
	"time"

	"github.com/flowkeep/flowkeep/internal/rtnl"
)

// settleTime is the time after the creation of a link within which its creator and udev still change it. Open vSwitch
// sets the MAC and the MTU of its ports. udev runs systemd-sysctl(8) for each new link, after netplugin has set the
// sysctls of a pod's link. Distributions have net.ipv4.conf.*.rp_filter=2 in its files.
const settleTime = 5 * time.Second

// linkTimes has the times at which links were first read, by index. The kernel gives an index again only if it is
// requested. After a start of netplugin all links are new.
type linkTimes map[int]time.Time

// updated returns the times of the links that were read now.
func (t linkTimes) updated(links *rtnl.Links, now time.Time) linkTimes {
	out := make(linkTimes, len(links.All))
	for _, l := range links.All {
		index := l.Attrs().Index
		if first, known := t[index]; known {
			out[index] = first
		} else {
			out[index] = now
		}
	}
	return out
}

// isNew reports whether a link was created within settleTime, or has not been read yet.
func (t linkTimes) isNew(index int, now time.Time) bool {
	first, known := t[index]
	return !known || now.Sub(first) < settleTime
}
