package agent

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/flowkeep/flowkeep/macvtap"
	"github.com/flowkeep/flowkeep/macvtap/tap"
)

// How long the kubelet lists no pod with a device until the device is removed from the node. A kubelet that has just
// started lists no pods that it has not read from the API server yet, although they run.
const (
	unlistedTimeout = 30 * time.Second // where this kubelet listed a pod with the device, or allocated the device
	unseenTimeout   = 10 * time.Minute // where an earlier kubelet did
)

// listing is what is known of a device from the kubelet's lists.
type listing struct {
	generation int64
	kubelet    string    // that last listed or allocated it; "": it is not known
	unlisted   time.Time // since when no pod with it is listed; zero: one is
}

// list is a list of the kubelet's.
type list struct {
	kubelet string // "": it is not known
	pods    int    // with devices or without
}

// listings is what is known from all of the kubelet's lists.
type listings struct {
	kubelet string // that made the last one; "": there was none
	// trusted is set once this kubelet has listed a pod, with devices or without. Another may list none although they
	// run: no device is removed by its lists.
	trusted bool
	devices map[string]listing
}

// next returns what is known of devices after another list, and the devices to make and to remove.
func (l listings) next(
	devices []tap.State, holders []macvtap.Holder, by list, now time.Time,
) (next listings, ensure, drop []tap.State) {
	kubelet := by.kubelet
	held := map[string]bool{}
	for _, h := range holders {
		held[h.Device] = true
	}
	trusted := l.trusted && l.kubelet == kubelet
	next = listings{
		kubelet: kubelet,
		trusted: trusted || by.pods > 0,
		devices: map[string]listing{},
	}
	for _, d := range devices {
		if !d.Allocated {
			continue
		}
		before, known := l.devices[d.ID]
		entry := listing{generation: d.Generation}
		switch {
		case held[d.ID]:
			entry.kubelet = kubelet
			if d.Attached == nil && d.Adopted != d.Generation {
				ensure = append(ensure, d)
			}
		case known && before.generation == d.Generation:
			entry.kubelet, entry.unlisted = before.kubelet, before.unlisted
			if entry.unlisted.IsZero() {
				entry.unlisted = now
			}
		case l.kubelet == kubelet: // it was allocated since the last list
			entry.kubelet, entry.unlisted = kubelet, now
		default:
			entry.unlisted = now
		}
		if !trusted && !held[d.ID] { // no time before this list counts
			entry.unlisted = now
		}
		next.devices[d.ID] = entry
		if d.OnNode && !held[d.ID] && now.Sub(entry.unlisted) >= entry.timeout(kubelet) {
			drop = append(drop, d)
		}
	}
	return next, ensure, drop
}

func (l *listing) timeout(kubelet string) time.Duration {
	if l.kubelet == kubelet {
		return unlistedTimeout
	}
	return unseenTimeout
}

// kubeletOf returns an identity of the kubelet that serves a socket: each makes its own.
func kubeletOf(socket string) string {
	info, err := os.Stat(socket)
	if err != nil {
		return ""
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return ""
	}
	return fmt.Sprint(st.Dev, st.Ino, st.Ctim.Nano())
}

// sweep makes and removes devices in the node's network namespace after a list of the kubelet's. While the API server
// is unavailable nothing is removed: the kubelet may not know its pods.
func (a *Agent) sweep(known listings, now time.Time) listings {
	a.mu.Lock()
	holders, by, holdersErr, intentErr := a.in.holders, a.in.list, a.in.holdersErr, a.in.intentErr
	a.mu.Unlock()
	if a.cfg.Records == nil || holdersErr != nil || by.kubelet == "" {
		return known
	}
	devices, err := a.cfg.Records.Devices()
	if err != nil && !errors.Is(err, tap.ErrTorn) {
		a.cfg.Log.Warn("could not read the records of devices", "err", err)
		return known
	}
	next, ensure, drop := known.next(devices, holders, by, now)
	for _, d := range ensure {
		if err := a.cfg.Records.Ensure(d.ID, d.Generation); err != nil {
			a.cfg.Log.Warn("could not create a device that a pod holds; retrying", "device", d.ID, "err", err)
		}
	}
	if intentErr != nil {
		return next
	}
	for _, d := range drop {
		if err := a.cfg.Records.Drop(d.ID, d.Generation); err != nil {
			a.cfg.Log.Warn("could not remove a device that no pod holds; retrying", "device", d.ID, "err", err)
			continue
		}
		a.cfg.Log.Info("removed a device that no pod holds", "device", d.ID)
	}
	return next
}
