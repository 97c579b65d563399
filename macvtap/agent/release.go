package agent

import (
	"context"
	"errors"
	"time"

	"github.com/flowkeep/flowkeep/macvtap"
	"github.com/flowkeep/flowkeep/macvtap/tap"
)

// Records are what was written down of devices. Safe for concurrent use.
type Records interface {
	Devices() ([]tap.State, error)
	Release(id string, generation int64) error
	// Ensure and Drop make and remove a device in the node's network namespace, which a pod uses that has no attachment.
	Ensure(id string, generation int64) error
	Drop(id string, generation int64) error
}

const (
	idleFor   = 10 * time.Minute // how long a device is unused before its record is removed
	idleEvery = 5 * time.Minute
)

// idle has the time since when each device has no pod.
type idle map[string]time.Time

// releaseAll removes, now and then, records of devices that no pod has and none can request any more, so that they
// don't pile up over the years.
func (a *Agent) releaseAll(ctx context.Context) {
	if a.cfg.Records == nil {
		return
	}
	var since idle
	for {
		since = a.releaseIdle(since, time.Now())
		if !wait(ctx, nil, time.Now().Add(idleEvery)) {
			return
		}
	}
}

// releaseIdle does so once. While it isn't known what is exposed or who holds what, nothing is idle.
func (a *Agent) releaseIdle(since idle, now time.Time) idle {
	a.mu.Lock()
	exposed, decided, holders, holdersErr := a.exposed, a.decided, a.in.holders, a.in.holdersErr
	a.mu.Unlock()
	if !decided || holdersErr != nil {
		return nil
	}
	devices, err := a.cfg.Records.Devices()
	if err != nil && !errors.Is(err, tap.ErrTorn) {
		a.cfg.Log.Warn("could not read the records of devices", "err", err)
		return since
	}
	over, since := since.over(devices, exposed, holders, now)
	for _, d := range over {
		if err := a.cfg.Records.Release(d.ID, d.Generation); err != nil {
			a.cfg.Log.Warn("could not remove the record of an unused device", "device", d.ID, "err", err)
			continue
		}
		a.cfg.Log.Info("removed the record of an unused device that is not exposed", "device", d.ID)
	}
	return since
}

// over are the devices that have been idle for long, and since when the others are.
func (i idle) over(devices []tap.State, exposed []macvtap.Resource, holders []macvtap.Holder, now time.Time) (over []tap.State, next idle) {
	needed := map[string]bool{}
	for _, h := range holders {
		needed[h.Device] = true
	}
	capacity := map[[2]string]int{}
	for _, r := range exposed {
		for _, p := range r.Parents {
			capacity[[2]string{r.Name, p.Link}] = p.Capacity
		}
	}
	next = idle{}
	for _, d := range devices {
		resource, parent, n, _ := macvtap.ParseDeviceID(d.ID)
		if !d.Allocated || d.Attached != nil || needed[d.ID] || n < capacity[[2]string{resource, parent}] {
			continue
		}
		began, known := i[d.ID]
		switch {
		case !known:
			next[d.ID] = now
		case now.Sub(began) < idleFor:
			next[d.ID] = began
		default:
			over = append(over, d)
		}
	}
	return over, next
}
