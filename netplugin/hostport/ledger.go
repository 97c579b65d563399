package hostport

import "github.com/flowkeep/flowkeep/netplugin/endpoints"

// looks is how many comparisons in a row have to miss a pod's own rules: the runtime removes them before it ends the
// pod.
const looks = 2

// ledger decides for which pods ADD and DEL are repeated. Of a pod without rules it is known that they were removed if
// they were seen before, or if the pod is older than this process.
type ledger struct {
	begun    bool
	seen     map[string]bool               // rules were there, by container
	missed   map[string]int                // comparisons in a row without them
	repeated map[string]endpoints.Endpoint // pods of repeated ADDs
}

func newLedger() *ledger {
	return &ledger{
		seen:     map[string]bool{},
		missed:   map[string]int{},
		repeated: map[string]endpoints.Endpoint{},
	}
}

// ended returns the pods of repeated ADDs that are no longer there. They need DEL: their own may have come before the
// repetition.
func (l *ledger) ended(pods []endpoints.Endpoint) (del []endpoints.Endpoint) {
	living := map[string]bool{}
	for _, e := range pods {
		living[e.ContainerID] = true
	}
	for id, e := range l.repeated {
		if !living[id] {
			del = append(del, e)
		}
	}
	for id := range l.seen {
		if !living[id] {
			delete(l.seen, id)
			delete(l.missed, id)
		}
	}
	return del
}

// deleted records that DEL was repeated for a pod.
func (l *ledger) deleted(container string) { delete(l.repeated, container) }

// compare returns the pods that need ADD. Again reports whether another comparison has to confirm that rules are gone.
func (l *ledger) compare(have *byFamily, pods []endpoints.Endpoint) (add []endpoints.Endpoint, again bool) {
	for _, e := range pods {
		id := e.ContainerID
		is := have.of(&e)
		if is == present {
			l.seen[id] = true
			delete(l.missed, id)
			continue
		}
		if !l.begun {
			l.seen[id] = true
		}
		if !l.seen[id] {
			continue
		}
		if l.missed[id]++; is != reset && l.missed[id] < looks {
			again = true
			continue
		}
		add = append(add, e)
		l.repeated[id] = e
	}
	l.begun = true
	return add, again
}
