package native

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/nodestate/nmstate"
)

// rules removes first and adds then, as routes does: the order of the document has no meaning, and that of a policy is
// lost when policies are merged.
func (w *wanter) rules(d *rulesDoc) {
	for _, absent := range []bool{true, false} {
		for i := range d.Config {
			if (deref(d.Config[i].State) == nmstate.Absent) != absent {
				continue
			}
			if err := w.rule(&d.Config[i]); err != nil {
				w.fail("route-rules.config[%d]%w", i, err)
			}
		}
	}
}

func (w *wanter) rule(d *ruleDoc) error {
	r, err := d.pattern()
	if err != nil {
		return err
	}
	matches := func(h rule) bool { return h.Others == "" && d.matches(&r, &h) && !w.mine.rule(&h) }
	switch state := deref(d.State); {
	case state == nmstate.Absent:
		w.to.Rules = slices.DeleteFunc(w.to.Rules, matches)
		return nil
	case state != "":
		return fmt.Errorf(".state: must be absent, or left out, not %q", state)
	case slices.ContainsFunc(w.to.Rules, matches):
		return nil
	case isOwnTable(r.Table):
		return fmt.Errorf(".route-table: %w", errOwnTable)
	case r.Iif != "" && w.mine.why(r.Iif) != "":
		return fmt.Errorf(".iif: %s", w.mine.why(r.Iif))
	case r.Action == "" && d.Table == nil:
		return errors.New(".route-table: is missing")
	case r.Action != "" && (d.Table != nil || d.Suppress != nil):
		return fmt.Errorf(".action: a %s rule looks up no table: leave out route-table and suppress-prefix-length",
			r.Action)
	}
	if d.Priority == nil {
		r.Priority = w.freePriority()
	}
	r.Protocol = protoStatic
	w.to.Rules = append(w.to.Rules, r)
	return nil
}

// freePriority returns the first priority without a rule, from 30000 on as nmstate does.
func (w *wanter) freePriority() int {
	p := 30000
	for slices.ContainsFunc(w.to.Rules, func(r rule) bool { return r.Priority == p }) {
		p++
	}
	return p
}

// pattern is a rule's document with its values checked; what is not named matches anything.
func (d *ruleDoc) pattern() (r rule, err error) {
	for _, a := range []struct {
		key  string
		text *string
		to   *netip.Prefix
	}{{"ip-from", d.From, &r.From}, {"ip-to", d.To, &r.To}} {
		if deref(a.text) == "" { // for all
			continue
		}
		if *a.to, err = parsePrefix(*a.text); err != nil || a.to.Bits() == 0 {
			return r, fmt.Errorf(".%s: %q is no network; leave it out for all", a.key, *a.text)
		}
	}
	if r.From.IsValid() && r.To.IsValid() && r.From.Addr().BitLen() != r.To.Addr().BitLen() {
		return r, errors.New(".ip-to: is of another family than ip-from")
	}
	r.IPv6 = r.From.IsValid() && r.From.Addr().Is6() || r.To.IsValid() && r.To.Addr().Is6()
	if d.Family != nil {
		six := *d.Family == "ipv6"
		if !six && *d.Family != "ipv4" || (r.From.IsValid() || r.To.IsValid()) && six != r.IPv6 {
			return r, fmt.Errorf(".family: %q does not fit ip-from and ip-to, or is neither ipv4 nor ipv6", *d.Family)
		}
		r.IPv6 = six
	}
	switch a := deref(d.Action); a {
	case "", "blackhole", "unreachable", "prohibit":
		r.Action = a
	default:
		return r, fmt.Errorf(".action: must be blackhole, unreachable or prohibit, not %q", a)
	}
	if d.Priority != nil && (*d.Priority < 1 || *d.Priority >= 1<<32-1) || d.Table != nil && *d.Table < 1 || d.Suppress != nil && *d.Suppress < 0 {
		return r, errors.New(".priority, .route-table, .suppress-prefix-length: leave out the values that the kernel shall choose")
	}
	r.Priority, r.Table, r.Iif, r.Mark, r.Mask = deref(d.Priority), deref(d.Table), deref(d.Iif), deref(d.Mark), deref(d.Mask)
	if d.Suppress != nil {
		r.Suppress = *d.Suppress + 1
	}
	if d.Mark != nil && d.Mask == nil {
		r.Mask = 1<<32 - 1
	}
	return r, nil
}

func (d *ruleDoc) matches(p, have *rule) bool {
	return p.IPv6 == have.IPv6 && (d.From == nil || p.From == have.From) && (d.To == nil || p.To == have.To) &&
		(d.Priority == nil || p.Priority == have.Priority) && (d.Table == nil || p.Table == have.Table) &&
		(d.Mark == nil || p.Mark == have.Mark && p.Mask == have.Mask) && (d.Mask == nil || p.Mask == have.Mask) &&
		(d.Iif == nil || p.Iif == have.Iif) && (d.Action == nil || p.Action == have.Action) &&
		(d.Suppress == nil || p.Suppress == have.Suppress)
}
