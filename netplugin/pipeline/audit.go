package pipeline

import "github.com/flowkeep/flowkeep/ofctl"

// Audit compares one reading of a switch with the flows that it should hold. These may change meanwhile: what is changed after Begin is
// left out, for the reading may be from before or after. All that was taken before must be on the switch when the reading begins.
// It belongs to whom the compiler belongs to.
type Audit struct {
	set     *flowSet
	number  uint64
	touched map[flowKey]struct{}
	seen    int // flows that should be there, are, and were not touched
}

// Finding is what an audit says to a flow of the switch.
type Finding uint8

// Findings.
const (
	Held    Finding = iota // as it should be, or touched since the audit began
	Changed                // there should be one of this table, priority and match, with another cookie or other actions
	Extra                  // there should be none
)

// BeginAudit ends the audit before, if there is one.
func (c *Compiler) BeginAudit() *Audit {
	c.audits++
	c.flows.audit = &Audit{set: &c.flows, number: c.audits, touched: map[flowKey]struct{}{}}
	return c.flows.audit
}

// End stops the noting of what is changed. To end twice, or after the next has begun, does nothing.
func (a *Audit) End() {
	if a.set.audit == a {
		a.set.audit = nil
	}
}

// Ended tells that the audit says nothing any more: another has begun.
func (a *Audit) Ended() bool { return a.set.audit != a }

func (a *Audit) touch(k flowKey) {
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
func (a *Audit) See(f *ofctl.Flow, foreign bool) Finding {
	k := keyOf(f)
	if a.Touched(f) {
		return Held
	}
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

// Touched tells whether the flow of this table, priority and match was changed since the audit began.
func (a *Audit) Touched(f *ofctl.Flow) bool {
	if len(a.touched) == 0 {
		return false
	}
	_, ok := a.touched[keyOf(f)]
	return ok
}

// Want is the flow that there should be of this table, priority and match.
func (a *Audit) Want(f *ofctl.Flow) (ofctl.Flow, bool) {
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

// At are the flows that there should be in a place.
func (a *Audit) At(p Place) (list []ofctl.Flow) {
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

// Missing are the flows that should have been in the reading, but for those that are left out.
func (a *Audit) Missing(leftOut func(*ofctl.Flow) bool) (list []ofctl.Flow) {
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
