package nodestate

import (
	"cmp"
	"slices"
	"time"

	v1 "github.com/flowkeep/flowkeep/nodestate/api/v1"
	"github.com/flowkeep/flowkeep/nodestate/nmstate"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The pause after a failed attempt, or before repeated drift is repaired again: doubled each time, up to the limit.
const (
	firstRetry = 5 * time.Second
	lastRetry  = 5 * time.Minute
	firstMend  = time.Second
	lastMend   = time.Minute
)

// Result is one attempt, ended.
type Result struct {
	Outcome    v1.Outcome // Partial: rolling back failed too, and the message has what is left
	Refused    bool       // it can't be had as it is written; nothing was changed
	Superseded bool       // another desire ended it, and nothing is left of it: that is no failure
	Message    string
	Steps      []string // what was done, or was to be done
	Generation int64    // of the object whose desire it was
}

// Object is the node's NodeNetworkState as the agent sees it.
type Object struct {
	Name, UID, ResourceVersion string
	Generation                 int64
	Managed                    bool
	Volatile                   bool          // a change of the only uplink is allowed though a reboot undoes it
	Desired                    nmstate.State // nil: nothing is desired
	DesiredErr                 error         // why desiredState can't be read
	Desire                     string        // what was written, in one canonical text: another text is another desire
	Size                       int           // in bytes of JSON, but for the status
	Owner                      string        // the UID of the Node with which the object goes; "": it goes with none
	Created                    time.Time     // as the API server has it, in whole seconds
	Status                     v1.NodeNetworkStateStatus
}

// Observation is what is known as a decision is made. Nothing else goes into it.
type Observation struct {
	Now     time.Time
	Object  *Object // nil: there is none
	Node    *Node   // nil: there is none
	Current nmstate.State
	ShowErr error // why Current isn't known
	// Accepted are differences that the backend does not take for any, such as another spelling.
	Accepted map[string]bool
}

func (o Observation) differences() []nmstate.Difference {
	if o.Object == nil || o.Object.Desired == nil {
		return nil
	}
	return slices.DeleteFunc(nmstate.Diff(o.Object.Desired, o.Current), func(d nmstate.Difference) bool {
		return o.Accepted[d.String()]
	})
}

// Kind is what to do next.
type Kind int

// In every case but Silence the status is reported, if it differs from the object's.
const (
	Silence Kind = iota // the node is unmanaged: neither enforce nor report
	Create              // there is no object: create one with the current state only
	Report
	Enforce // bring the node to the desire
	Restore // roll back what an earlier attempt left open
)

// Action is a decision.
type Action struct {
	Kind Kind
	Wake time.Time // when to decide again at the latest; zero: nothing is waited for
	Own  bool      // have the object go with the Node
	Why  string    // the agent is not ready, for this reason
}

// Memory is what the agent remembers from one decision to the next. The zero value knows nothing. It is a value: who decides gives it
// and takes another.
type Memory struct {
	UID      string // of the object that all of this is about
	Adopted  bool   // the history of the object's status is in here
	Desire   string // that the counts are of
	Failures int    // attempts in a row that failed
	Next     time.Time
	Last     Result // the last attempt; a zero Outcome: none yet
	Checked  bool   // the backend has taken this desire at least once
	Mends    int    // how often in a row the node drifted soon after it was brought back
	Open     bool   // the journal holds a change that could not be rolled back
	Own      string // UID of the object that is this node's, whatever becomes of the Node
	HadNode  bool   // there was a Node

	Succeeded time.Time // when the node was last brought, or found, as desired
	History   []v1.Attempt
}

// Decide says what to do next.
func Decide(m Memory, o Observation) (Memory, Action) {
	next, action := m.decide(o)
	action.Own = m.lacksOwner(o)
	next.Own, next.HadNode = "", m.HadNode || o.Node != nil
	if o.Object != nil && m.foreign(o) == "" {
		next.Own = o.Object.UID
	}
	return next, action
}

func (m Memory) decide(o Observation) (Memory, Action) {
	if m.Open && !o.Now.Before(m.Next) {
		return m, Action{Kind: Restore}
	}
	switch {
	case m.isLost(o):
		return m.forNone(), Action{Kind: Silence, Wake: m.openNext(), Why: lostText}
	case o.Object == nil:
		return m.forNone(), Action{Kind: Create, Wake: m.openNext()}
	case !o.Object.Managed:
		return m.forUnmanaged(), Action{Kind: Silence, Wake: m.openNext()}
	}
	foreign := m.foreign(o)
	m = m.about(*o.Object)
	switch {
	case m.Open:
		return m, Action{Kind: Report, Wake: m.Next}
	case foreign != "":
		return m.refused(*o.Object, foreign, o.Now), Action{Kind: Report}
	case o.ShowErr != nil:
		return m, Action{Kind: Report}
	case o.Object.DesiredErr != nil:
		return m.refused(*o.Object, o.Object.DesiredErr.Error(), o.Now), Action{Kind: Report}
	case o.Object.Desired == nil:
		return m.settled(o), Action{Kind: Report}
	case m.Checked && len(o.differences()) == 0:
		return m.settled(o), Action{Kind: Report}
	case o.Now.Before(m.Next):
		return m, Action{Kind: Report, Wake: m.Next}
	}
	return m, Action{Kind: Enforce}
}

const lostText = "the Node was deleted, and with it the NodeNetworkState: the interfaces stay as they are; " +
	"restart the kubelet, which makes the Node again"

func (m Memory) openNext() time.Time {
	if !m.Open {
		return time.Time{}
	}
	return m.Next
}

// forNone forgets everything but that something is yet to be rolled back.
func (m Memory) forNone() Memory {
	if !m.Open {
		return Memory{}
	}
	return Memory{Open: true, Next: m.Next, Failures: m.Failures, Last: m.Last}
}

// forUnmanaged forgets the retries: managed again, it begins afresh.
func (m Memory) forUnmanaged() Memory {
	if m.Open {
		return m
	}
	return Memory{UID: m.UID, Adopted: m.Adopted, History: m.History, Succeeded: m.Succeeded}
}

// about returns the memory with the history of an object that was not seen before, and without the counts of another
// desired state.
func (m Memory) about(o Object) Memory {
	if m.Adopted && m.UID != o.UID {
		m.History = nil
	}
	if !m.Adopted || m.UID != o.UID {
		m.Adopted = true
		m.History = bounded(append(slices.Clone(m.History), o.Status.History...)) // in front: what was recovered before any object was seen
		m.Succeeded = time.Time{}
		if o.Status.LastSuccess != nil {
			m.Succeeded = o.Status.LastSuccess.Time
		}
	}
	if (m.UID != o.UID || m.Desire != o.Desire) && !m.Open {
		m = Memory{Desire: o.Desire, Adopted: true, History: m.History, Succeeded: m.Succeeded}
	}
	m.UID = o.UID
	return m
}

// refused returns the memory of a desired state that is not tried. That is no attempt, and none follows until something
// changes.
func (m Memory) refused(o Object, why string, now time.Time) Memory {
	r := Result{Outcome: v1.OutcomeFailed, Refused: true, Message: why, Generation: o.Generation}
	if !m.Last.Refused || m.Last.Message != r.Message {
		m.History = noted(m.History, r, now)
	}
	m.Last, m.Failures, m.Next = r, max(m.Failures, 1), time.Time{}
	return m
}

// settled returns the memory of a node that is as desired, by whatever change.
func (m Memory) settled(o Observation) Memory {
	if m.Failures > 0 {
		m.Succeeded, m.Failures, m.Next = o.Now, 0, time.Time{}
	}
	if m.Next.IsZero() || o.Now.After(m.Next.Add(lastMend)) {
		m.Mends, m.Next = 0, time.Time{}
	}
	return m
}

// Conclude returns the memory after an attempt. Spread is in [0, 1) and spreads nodes' retries.
func Conclude(m Memory, r Result, now time.Time, spread float64) Memory {
	switch {
	case r.Outcome == v1.OutcomeApplied:
		return m.succeeded(r, now, spread)
	case r.Superseded && r.Outcome != v1.OutcomePartial:
		return m.superseded(r, now)
	}
	m.Failures++
	m.Last, m.Open = r, r.Outcome == v1.OutcomePartial
	m.Mends = 0
	m.Next = now.Add(Backoff(firstRetry, lastRetry, m.Failures, spread))
	m.History = noted(m.History, r, now)
	return m
}

func (m Memory) succeeded(r Result, now time.Time, spread float64) Memory {
	m.Failures, m.Last, m.Open, m.Checked = 0, r, false, true
	if len(r.Steps) == 0 && len(m.History) > 0 && m.History[0].Outcome == v1.OutcomeApplied && m.History[0].Generation == r.Generation {
		return m // found again as it was left: nothing to report
	}
	m.Succeeded = now
	m.History = noted(m.History, r, now)
	if len(r.Steps) > 0 {
		m.Mends++
		m.Next = now.Add(Backoff(firstMend, lastMend, m.Mends, spread))
	}
	return m
}

// superseded: what comes next is begun at once, also if it is the same desire again.
func (m Memory) superseded(r Result, now time.Time) Memory {
	m.Last, m.Open, m.Mends, m.Next = r, false, 0, time.Time{}
	if r.Outcome == v1.OutcomeRolledBack {
		m.History = noted(m.History, r, now)
	}
	return m
}

// Backoff is how long to wait after so many failures in a row: doubled each time up to the limit, a fifth more or less.
func Backoff(first, limit time.Duration, failures int, spread float64) time.Duration {
	wait := limit
	if doublings := max(failures, 1) - 1; doublings < 30 {
		wait = min(limit, first<<doublings)
	}
	return time.Duration(float64(wait) * (0.8 + 0.4*spread))
}

// The bounds of texts in bytes, so that the object stays small whatever happens.
const (
	textLength = 512
	stepLength = 160
)

// noted puts an attempt in front. One that ended as the newest did takes its place: a desire that fails for a day leaves what came
// before it readable. Times are to the second, as the API server keeps them: what is compared with it must be so too.
func noted(history []v1.Attempt, r Result, now time.Time) []v1.Attempt {
	entry := v1.Attempt{
		Time: metav1.NewTime(now.Truncate(time.Second)), Generation: r.Generation, Outcome: r.Outcome,
		Message: shortened(r.Message), Changes: shortList(r.Steps),
	}
	if len(history) > 0 && r.Outcome != v1.OutcomeApplied {
		first := history[0]
		if first.Outcome == entry.Outcome && first.Generation == entry.Generation && first.Message == entry.Message && slices.Equal(first.Changes, entry.Changes) {
			history = history[1:]
		}
	}
	return bounded(slices.Insert(slices.Clone(history), 0, entry))
}

func bounded(history []v1.Attempt) []v1.Attempt { return history[:min(len(history), v1.HistoryLimit)] }

func shortList(steps []string) (list []string) {
	for i, s := range steps {
		if i == v1.ChangesLimit-1 && len(steps) > v1.ChangesLimit {
			return append(list, moreText(len(steps)-i))
		}
		list = append(list, cut(s, stepLength))
	}
	return list
}

// earliest returns the first of the times that are not zero.
func earliest(times ...time.Time) time.Time {
	times = slices.DeleteFunc(times, time.Time.IsZero)
	if len(times) == 0 {
		return time.Time{}
	}
	return slices.MinFunc(times, func(a, b time.Time) int { return cmp.Compare(a.UnixNano(), b.UnixNano()) })
}
