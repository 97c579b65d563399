package agent

import (
	"errors"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/macvtap"
	"github.com/flowkeep/flowkeep/macvtap/tap"
)

// records are of these ids; which of them are attached.
type records map[string]bool

func (r records) Devices() (list []tap.State, err error) {
	for id, attached := range r {
		s := tap.State{Record: tap.Record{ID: id}, Allocated: true}
		if attached {
			s.Attached = new(tap.Attachment)
		}
		list = append(list, s)
	}
	return list, nil
}

func (r records) Release(id string, _ int64) error { delete(r, id); return nil }
func (r records) Ensure(string, int64) error       { return nil }
func (r records) Drop(string, int64) error         { return nil }

// The record of a device that is not exposed goes, unless a pod holds it or has it attached, and never while that isn't known.
func TestIdleDevicesAreForgotten(t *testing.T) {
	r := records{}
	id := macvtap.DeviceID
	for _, d := range []string{id("data", "eth0", 0), id("data", "eth0", 5), id("old", "eth0", 0), id("old", "eth0", 1), id("data", "eth9", 0), "damaged"} {
		r[d] = false
	}
	r[id("old", "eth0", 2)] = true
	a := New(Config{Records: r, Log: slog.New(slog.DiscardHandler)})
	now := time.Now()
	var since idle
	at := func(what string, later time.Duration, left ...string) {
		t.Helper()
		since = a.releaseIdle(since, now.Add(later))
		var got []string
		for d := range r {
			got = append(got, d)
		}
		slices.Sort(got)
		slices.Sort(left)
		if !slices.Equal(got, left) {
			t.Errorf("%s: %q, not %q", what, got, left)
		}
	}
	all := []string{id("data", "eth0", 0), id("data", "eth0", 5), id("old", "eth0", 0), id("old", "eth0", 1), id("old", "eth0", 2), id("data", "eth9", 0), "damaged"}
	at("nothing is known", 0, all...)
	at("still", time.Hour, all...)
	a.decided = true
	a.exposed = []macvtap.Resource{{Name: "data", Parents: []macvtap.Parent{{Link: "eth0", Capacity: 5}}}}
	at("who holds what isn't", 2*time.Hour, all...)
	a.in.holdersErr, a.in.holders = nil, []macvtap.Holder{{Resource: "old", Device: id("old", "eth0", 1)}}
	at("first seen", 3*time.Hour, all...)
	at("not for long", 3*time.Hour+time.Minute, all...)
	a.in.holdersErr = errors.New("the kubelet is away")
	at("not known for a while", 4*time.Hour, all...)
	a.in.holdersErr = nil
	at("seen anew", 5*time.Hour, all...)
	at("forgotten", 5*time.Hour+idleFor, id("data", "eth0", 0), id("old", "eth0", 1), id("old", "eth0", 2))
}
