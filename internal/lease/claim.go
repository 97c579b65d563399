package lease

import (
	"math"
	"time"
)

// givenBack is how long a Lease lasts that its holder has ended with all that it did.
const givenBack = time.Second

// Claim has the fields of a Lease that determine the leader.
type Claim struct {
	Holder string // empty: not held
	// Term counts holders: each one's is above those before it.
	Term int32
	// Renewed is by the holder's clock and only distinguishes renewals.
	Renewed time.Time
	Lasts   time.Duration
}

// View is what a candidate has seen of the Lease, and when by its own clock. The zero View has seen nothing.
type View struct {
	claim   Claim
	there   bool
	since   time.Time // when the claim was first seen as it is
	looked  bool
	missed  bool      // the last look failed
	back    time.Time // when a look succeeded after one that had failed
	highest int32     // of all terms that were seen
}

// patience is how long a candidate that could not look lets the holder, which may not have been able to renew for the
// same reason, renew before the candidate takes the Lease.
const patience = 1500 * time.Millisecond

// Missed notes that the API server did not answer.
func (v *View) Missed() { v.missed = true }

// Saw records the Lease that the API server returned, or nil if there is none. at is the time of the response, so the
// claim was written before. renewed reports whether a holder has written it since the last read.
func (v *View) Saw(c *Claim, at time.Time) (renewed bool) {
	if v.missed {
		v.missed, v.back = false, at
	}
	// a Lease without further numbers was deleted or repaired
	if v.highest == math.MaxInt32 && (c == nil || c.Term < v.highest) {
		v.highest = 0
	}
	switch {
	case c == nil && (v.there || !v.looked):
		v.there, v.since = false, at
	case c != nil && (!v.there || !c.same(&v.claim)):
		renewed = v.looked && v.claim.Holder == c.Holder || v.there
		v.claim, v.there, v.since, v.highest = *c, true, at, max(v.highest, c.Term)
	}
	v.looked = true
	return renewed && v.Holder() != ""
}

func (c *Claim) same(o *Claim) bool {
	return c.Holder == o.Holder && c.Term == o.Term && c.Lasts == o.Lasts && c.Renewed.Equal(o.Renewed)
}

// FreeAt returns the time from which another instance may take an existing Lease; lasts is this candidate's own
// duration. The previous holder has ended by then, because its time counts from before the write that was seen. A
// Lease with the holder removed is respected for the same time.
func (v *View) FreeAt(lasts time.Duration) time.Time {
	if v.claim.Holder == "" && v.claim.Lasts == givenBack {
		return time.Time{}
	}
	free := v.since.Add(max(lasts, v.claim.Lasts))
	back := v.back.Add(patience)
	if v.back.IsZero() || free.After(back) || v.claim.Holder == "" || v.claim.Holder == noHolder {
		return free
	}
	return back
}

// noHolder is the holder of a Lease that was created because none existed. A held Lease may have been deleted without
// this candidate having seen it, so the new one is respected from its creation like any Lease that is not renewed.
const noHolder = "nobody: the Lease was not there"

// Make returns the claim to write where no Lease exists, and the time from which to write it: the previous holder may
// recreate its own before.
func (v *View) Make(lasts, renew time.Duration) (Claim, time.Time) {
	return Claim{Holder: noHolder, Term: v.highest, Lasts: lasts}, v.since.Add(2 * renew)
}

// Next returns the term of an instance that takes the Lease now, or false if the numbers are used up.
func (v *View) Next() (int32, bool) {
	if v.highest == math.MaxInt32 {
		return 0, false
	}
	return v.highest + 1, true
}

// Holder returns the holder that was last seen, or "".
func (v *View) Holder() string {
	if !v.there || v.claim.Holder == noHolder {
		return ""
	}
	return v.claim.Holder
}

// Epoch returns the epoch of a term on the feed, where 0 is no election.
func Epoch(term int32) uint64 { return uint64(term) + 1 }

// Trust returns for how long after the start of a renewal no other instance can lead, if clock rates differ by at most
// 1/8.
func Trust(lasts time.Duration) time.Duration { return lasts - lasts/8 }
