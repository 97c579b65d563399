package conntrack

import (
	"bytes"
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// Reason is why connections were cut.
type Reason string

// Reasons.
const (
	PermissionGone Reason = "permission"
	EndpointGone   Reason = "endpoint"
	ServiceGone    Reason = "service" // an endpoint over UDP serves no Service any more
)

// Cut is connections that ended together, for one reason.
type Cut struct {
	Reason Reason
	// Direction is where they are denied now; 0 where no permission is gone.
	Direction policy.Direction
	// LivedOn is the rule by which they had lived in that direction; nil where no policy isolated the pod before.
	LivedOn *policy.Rule
	// DeniedBy are the policies that isolate the pod now.
	DeniedBy []policy.Origin
	// Endpoint is namespace/name of the pod that is gone, or address and port of what serves no Service any more.
	Endpoint  string
	Count     int
	Protocols map[policy.Protocol]int
	Example   Tuple
}

// Change is one thing that may end connections: an update, the node's own addresses, or an endpoint's end.
type Change struct {
	Update *policy.NodeUpdate
	// Begin marks an update that had been in force before the start.
	Begin bool
	Node  []netip.Addr
	// Endpoint, namespace/name, is gone, with its addresses.
	Endpoint string
	Gone     []netip.Addr
	done     chan struct{} // closed when the endpoint's connections are forgotten
}

// mayCut reports whether the change can terminate connections, so that conntrack has to be read.
func (c *Change) mayCut() bool {
	return len(c.Gone) > 0 || c.Update != nil && !c.Begin && Narrows(c.Update)
}

// maxLooks is the maximum number of states within a batch that are evaluated. More would only find connections that
// were opened and terminated within the batch.
const maxLooks = 8

// Cuts applies the changes, one after another, and returns the live connections that they terminated: those that were
// allowed before at least one change and are denied after all. Live is nil if conntrack was not read. The order of the
// result depends on the arguments only.
func (j *Judge) Cuts(changes []Change, live []Tuple) []Cut {
	left := j.unburied(live)
	l := newLosses(j)
	looked := 0
	for i := range changes {
		c := &changes[i]
		switch {
		case c.Update != nil:
			if c.mayCut() && looked < maxLooks {
				looked++
				j.look(left)
			}
			j.Apply(c.Update)
			clear(l.at)
		case c.Node != nil:
			j.SetNode(c.Node)
		default:
			left = j.bury(left, c, l)
		}
	}
	for i := range left {
		if !left[i].last.Allowed {
			continue
		}
		if now := j.Verdict(left[i].Tuple); !now.Allowed {
			l.denied(&left[i], now)
		}
	}
	return l.sorted()
}

// conn is a connection with the latest verdict by which it was allowed; the zero value where it never was.
type conn struct {
	Tuple
	last Verdict
}

// unburied returns the connections that were not counted when their pod ended. It forgets counted connections that
// conntrack no longer has.
func (j *Judge) unburied(live []Tuple) []conn {
	left := make([]conn, 0, len(live))
	still := map[Tuple]struct{}{}
	for _, t := range live {
		if _, dead := j.dead[t]; dead {
			still[t] = struct{}{}
		} else {
			left = append(left, conn{Tuple: t})
		}
	}
	if live != nil {
		j.dead = still
	}
	return left
}

func (j *Judge) look(live []conn) {
	for i := range live {
		if v := j.Verdict(live[i].Tuple); v.Allowed {
			live[i].last = v
		}
	}
}

// bury counts the connections of a pod that is gone, and leaves them out from here on.
func (j *Judge) bury(live []conn, c *Change, l *losses) []conn {
	return slices.DeleteFunc(live, func(n conn) bool {
		if !slices.Contains(c.Gone, n.Src) && !slices.Contains(c.Gone, n.Dst) {
			return false
		}
		j.dead[n.Tuple] = struct{}{}
		switch now := j.Verdict(n.Tuple); {
		case !now.Allowed && n.last.Allowed:
			l.denied(&n, now)
		case now.Allowed:
			l.add(cutKey{reason: EndpointGone, who: c.Endpoint}, Cut{Reason: EndpointGone, Endpoint: c.Endpoint},
				n.Tuple)
		}
		return true
	})
}

// losses adds connections up that ended for the same reason.
type losses struct {
	judge *Judge
	cuts  map[cutKey]*Cut
	at    map[isolation]*denial // as things are
	texts map[string]*denial
}

type cutKey struct {
	reason    Reason
	direction policy.Direction
	rule      policy.Key
	who       string  // the endpoint that is gone
	by        *denial // where a permission is gone
}

type isolation struct {
	own       netip.Addr
	direction policy.Direction
}

// denial is who denies; there is one of the same policies.
type denial struct {
	by   []policy.Origin
	text string
}

func newLosses(j *Judge) *losses {
	return &losses{judge: j, cuts: map[cutKey]*Cut{}, at: map[isolation]*denial{}, texts: map[string]*denial{}}
}

// denied counts a connection that has lost its permission.
func (l *losses) denied(c *conn, now Verdict) {
	own := c.Src
	if now.Direction == policy.Ingress {
		own = c.Dst
	}
	by, livedOn := l.denial(isolation{own, now.Direction}), c.last.Rules[now.Direction]
	k := cutKey{reason: PermissionGone, direction: now.Direction, by: by}
	if livedOn != nil {
		k.rule = livedOn.Key
	}
	l.add(k, Cut{Reason: PermissionGone, Direction: now.Direction, LivedOn: livedOn, DeniedBy: by.by}, c.Tuple)
}

func (l *losses) denial(at isolation) *denial {
	if d := l.at[at]; d != nil {
		return d
	}
	d := &denial{by: l.judge.Isolating(at.own, at.direction)}
	var text strings.Builder
	for _, o := range d.by {
		text.WriteString(o.Policy + " ")
	}
	d.text = text.String()
	if same := l.texts[d.text]; same != nil {
		d = same
	}
	l.at[at], l.texts[d.text] = d, d
	return d
}

func (l *losses) add(k cutKey, c Cut, t Tuple) {
	have := l.cuts[k]
	if have == nil {
		have = &c
		have.Protocols, have.Example = map[policy.Protocol]int{}, t
		l.cuts[k] = have
	}
	have.Count++
	have.Protocols[t.Protocol]++
}

func (l *losses) sorted() []Cut {
	out := make([]Cut, 0, len(l.cuts))
	for _, k := range slices.SortedFunc(maps.Keys(l.cuts), compareCuts) {
		out = append(out, *l.cuts[k])
	}
	return out
}

func compareCuts(a, b cutKey) int {
	text := func(d *denial) string {
		if d == nil {
			return ""
		}
		return d.text
	}
	return cmp.Or(cmp.Compare(a.reason, b.reason), cmp.Compare(a.direction, b.direction),
		bytes.Compare(a.rule[:], b.rule[:]),
		cmp.Compare(a.who, b.who), cmp.Compare(text(a.by), text(b.by)))
}
