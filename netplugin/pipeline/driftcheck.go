package pipeline

import "github.com/flowkeep/flowkeep/ofctl"

// DriftCheck compares one reading of a switch with the desired flows. A flow that changes after BeginDriftCheck is left
// out, as the reading may be from before or after the change. All flows that were taken before must be on the switch when
// the reading begins. The owner of the compiler owns it.
type DriftCheck struct {
	set     *flowSet
	number  uint64
	touched map[flowKey]struct{}
	seen    int         // flows that should be there, are, and were not touched
	other   *DriftCheck // which leaves out what this check of reported flows sees; may be nil
}

// Finding is the result of a drift check for a flow of the switch.
type Finding uint8

// Findings.
const (
	Held    Finding = iota // as it should be, or touched since the drift check began
	Changed                // there should be one of this table, priority and match, with another cookie or other actions
	Extra                  // there should be none
)

// BeginDriftCheck begins a drift check and ends the one before.
func (c *Compiler) BeginDriftCheck() *DriftCheck {
	c.driftChecks++
	c.flows.driftCheck = &DriftCheck{set: &c.flows, number: c.driftChecks, touched: map[flowKey]struct{}{}}
	return c.flows.driftCheck
}

// CheckReported returns a check of flows that a switch has reported. It is for one turn of the owner goroutine and has
// no end. A drift check that is under way goes on, and leaves those flows out.
func CheckReported(c *Compiler) *DriftCheck {
	c.driftChecks++
	return &DriftCheck{set: &c.flows, number: c.driftChecks, other: c.flows.driftCheck}
}

// Lost returns the flow that there should be in place of a reported flow that was deleted; false: none.
func (a *DriftCheck) Lost(f *ofctl.Flow) (ofctl.Flow, bool) {
	a.other.touch(keyOf(f))
	return a.Want(f)
}

// End stops the noting of what is changed. To end twice, or after the next has begun, does nothing.
func (a *DriftCheck) End() {
	if a.set.driftCheck == a {
		a.set.driftCheck = nil
	}
}

// Ended reports whether another drift check has begun, so that this one has no result.
func (a *DriftCheck) Ended() bool { return a.set.driftCheck != a }

func (a *DriftCheck) touch(k flowKey) {
	if a == nil {
		return
	}
	if _, already := a.touched[k]; already {
		return
	}
	a.touched[k] = struct{}{}
	if e := a.set.now[k]; e != nil && e.seen == a.number {
		a.seen--
	}
}

// See takes a flow of the reading. One that is told twice counts once. A foreign one carries what is not in its Actions.
func (a *DriftCheck) See(f *ofctl.Flow, foreign bool) Finding {
	k := keyOf(f)
	if a.Touched(f) {
		return Held
	}
	a.other.touch(k)
	e := a.set.now[k]
	if e == nil {
		return Extra
	}
	if e.seen != a.number {
		e.seen = a.number
		a.seen++
	}
	if foreign || !sameFlow(&e.Flow, f) {
		return Changed
	}
	return Held
}

// Touched reports whether the flow of this table, priority and match was changed since the drift check began.
func (a *DriftCheck) Touched(f *ofctl.Flow) bool {
	if len(a.touched) == 0 {
		return false
	}
	_, ok := a.touched[keyOf(f)]
	return ok
}

// Want returns the wanted flow of the same table, priority and match.
func (a *DriftCheck) Want(f *ofctl.Flow) (ofctl.Flow, bool) {
	e := a.set.now[keyOf(f)]
	if e == nil {
		return ofctl.Flow{}, false
	}
	return e.Flow, true
}

// Place is all flows of a table with one cookie.
type Place struct {
	Table  uint8
	Cookie uint64
}

// At returns the wanted flows of a place.
func (a *DriftCheck) At(p Place) (list []ofctl.Flow) {
	if _, _, ok := ParseCookie(p.Cookie); !ok {
		return nil
	}
	for k, e := range a.set.now {
		if k.table == p.Table && e.Cookie == p.Cookie {
			list = append(list, e.Flow)
		}
	}
	return list
}

// Missing returns the wanted flows that the reading lacks, except those that are left out.
func (a *DriftCheck) Missing(leftOut func(*ofctl.Flow) bool) (list []ofctl.Flow) {
	changing := 0
	for k := range a.touched {
		if a.set.now[k] != nil {
			changing++
		}
	}
	if a.seen == len(a.set.now)-changing {
		return nil
	}
	for k, e := range a.set.now {
		if e.seen != a.number && !has(a.touched, k) && !leftOut(&e.Flow) {
			list = append(list, e.Flow)
		}
	}
	return list
}
