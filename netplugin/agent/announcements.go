package agent

import (
	"github.com/flowkeep/flowkeep/netplugin/endpoints"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// asked are the announcements of this stream that netmaster may yet answer. An answer names the pod and not the sandbox: of a pod whose sandbox was made anew,
// with another address, it may be meant for the one before, and come before the rules of the present one. netmaster
//   - answers announcements in the order in which they were sent, each once at most;
//   - may give one answer to several of a pod, and gives none to what was withdrawn before the API server had the pod;
//   - answers what is announced of a pod that it has answered for already.
//
// So of a pod with announcements of earlier sandboxes that were not answered, as many answers are passed over, and the present sandbox is announced again for
// each: an answer that was passed over may have been the only one to come.
type asked struct {
	last  uint64 // number of the last announcement
	lives map[life]*due
}

// life is one of a pod's name.
type life struct{ id, uid string }

func lifeOf(e *endpoints.Endpoint) life { return life{e.ID(), e.UID} }

// due are answers, at most so many: to the sandbox that is wired, and to those before it.
type due struct {
	present, earlier int
	first            uint64 // the first announcement of the present one
	ended            uint64 // the last announcement when the last of the earlier ones ended
}

// announce notes that a sandbox is announced, perhaps again.
func (a *asked) announce(l life) {
	if a.lives == nil {
		a.lives = map[life]*due{}
	}
	d := a.lives[l]
	if d == nil {
		d = &due{}
		a.lives[l] = d
	}
	a.last++
	if d.present++; d.present == 1 {
		d.first = a.last
	}
}

// end notes that what was announced is so no more, and tells how many answers to the pod's earlier sandboxes are passed over from now on: each costs
// the next one the time until netmaster answers.
func (a *asked) end(l life) (earlier int) {
	d := a.lives[l]
	if d == nil {
		return 0
	}
	d.earlier, d.present, d.ended = d.earlier+d.present, 0, a.last
	return d.earlier
}

// answered takes the answers of an update over, and gives those that are certain to be for the present sandbox.
func (a *asked) answered(settled []policy.SettledEndpoint) map[life]bool {
	certain := make(map[life]bool, len(settled))
	processed := uint64(0)
	for _, s := range settled {
		l := life{s.ID, s.UID}
		d := a.lives[l]
		if d == nil {
			continue
		}
		if d.earlier > 0 {
			d.earlier--
		} else {
			certain[l] = true
			processed = max(processed, d.first)
			d.present--
		}
		a.forget(l, d)
	}
	a.pass(processed)
	return certain
}

// pass: what ended before an announcement that was answered is answered for, or never will be.
func (a *asked) pass(processed uint64) {
	for l, d := range a.lives {
		if d.ended < processed {
			d.earlier = 0
			a.forget(l, d)
		}
	}
}

func (a *asked) forget(l life, d *due) {
	if d.present+d.earlier == 0 {
		delete(a.lives, l)
	}
}
