package lease

import (
	"math"
	"time"
)

// givenBack is how long a Lease lasts that its holder has ended with all that it did.
const givenBack = time.Second

// Claim is what of a Lease decides who leads.
type Claim struct {
	Holder string // empty: nobody
	// Term counts holders: each one's is above those before it.
	Term int32
	// Renewed is by the holder's clock, and only tells one renewal from another.
	Renewed time.Time
	Lasts   time.Duration
}

// View is what a candidate has seen of the Lease, and when by its own clock. The zero View has seen nothing.
type View struct {
	claim   Claim
	there   bool
	since   time.Time // when the claim was first seen as it is
	looked  bool
	highest int32 // of all terms that were seen
}

// Saw takes over what the API server said, nil where there is no Lease. at is when the answer had come: whoever wrote the claim did so
// before. renewed tells that somebody has written since the last look that he leads.
func (v *View) Saw(c *Claim, at time.Time) (renewed bool) {
	if v.highest == math.MaxInt32 && (c == nil || c.Term < v.highest) { // somebody deleted or mended a Lease that had no more numbers
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

// FreeAt is from when on somebody else may take a Lease that is there; lasts is what this candidate gives its own. Whoever held it has ended by then,
// for it counts from before it wrote what was seen. One of which somebody merely took the holder out is respected as long.
func (v *View) FreeAt(lasts time.Duration) time.Time {
	if v.claim.Holder == "" && v.claim.Lasts == givenBack {
		return time.Time{}
	}
	return v.since.Add(max(lasts, v.claim.Lasts))
}

// nobody holds a Lease that was made where there was none. Somebody may have deleted one that was held, which this candidate need not have seen: like
// any other that is not renewed, it is respected from when it was made.
const nobody = "nobody: the Lease was not there"

// Make is what to write where there is no Lease, and from when on: whose it was may write it again before.
func (v *View) Make(lasts, renew time.Duration) (Claim, time.Time) {
	return Claim{Holder: nobody, Term: v.highest, Lasts: lasts}, v.since.Add(2 * renew)
}

// Next is the term of who takes the Lease now; false where there are no more numbers.
func (v *View) Next() (int32, bool) {
	if v.highest == math.MaxInt32 {
		return 0, false
	}
	return v.highest + 1, true
}

// Holder is who has it, as far as was seen.
func (v *View) Holder() string {
	if !v.there || v.claim.Holder == nobody {
		return ""
	}
	return v.claim.Holder
}

// Epoch is what a term is called on the feed, where 0 is no election.
func Epoch(term int32) uint64 { return uint64(term) + 1 }

// Trust is how long from before a renewal began nobody else leads, by clocks of which one may go an eighth faster than the other.
func Trust(lasts time.Duration) time.Duration { return lasts - lasts/8 }
