package nodestate

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"time"
	"unicode/utf8"

	v1 "github.com/flowkeep/flowkeep/nodestate/api/v1"
	"github.com/flowkeep/flowkeep/nodestate/nmstate"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Facts are the agent's own facts in the status.
type Facts struct {
	Backend      string
	Capabilities []string
	Bridge       string // Flowkeep's, which is left out
}

// StatusOf is what the object should say. Where current isn't known it goes on saying what it said.
func StatusOf(m Memory, o Observation, facts Facts) (v1.NodeNetworkStateStatus, error) {
	var s v1.NodeNetworkStateStatus
	if o.Object != nil {
		s = *o.Object.Status.DeepCopy()
		s.ObservedGeneration = o.Object.Generation
	}
	s.Backend, s.Capabilities = facts.Backend, facts.Capabilities
	s.History = m.History
	s.LastSuccess = timeOf(m.Succeeded)
	s.Attempt, s.NextAttempt = int32(m.Failures), nil
	if m.Failures > 0 {
		s.NextAttempt = timeOf(m.Next)
	}
	c := condition(m, o)
	c.ObservedGeneration = s.ObservedGeneration
	c.LastTransitionTime = metav1.NewTime(o.Now.Truncate(time.Second))
	meta.SetStatusCondition(&s.Conditions, c)
	if o.ShowErr == nil {
		if err := reportCurrent(&s, o, facts.Bridge); err != nil {
			return s, err
		}
	}
	return s, nil
}

// reportCurrent comes last: the current state has the room that all else leaves.
func reportCurrent(s *v1.NodeNetworkStateStatus, o Observation, bridge string) error {
	var desired nmstate.State
	size := 0
	if o.Object != nil {
		desired, size = o.Object.Desired, o.Object.Size
	}
	own := nmstate.Own(o.Current, desired, bridge)
	s.Interfaces = int32(len(own.Interfaces()))
	s.CurrentState, s.Truncated = &v1.State{Raw: []byte("{}")}, true // their keys take room too
	taken, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("write the status: %w", err)
	}
	own, s.Truncated = nmstate.Truncate(own, desired, nmstate.Room(size+len(taken)))
	raw, err := json.Marshal(own)
	if err != nil {
		return fmt.Errorf("write the current state: %w", err)
	}
	s.CurrentState = &v1.State{Raw: raw}
	return nil
}

// timeOf is to the second, as the API server keeps it: what is compared with it must be so too.
func timeOf(t time.Time) *metav1.Time {
	if t.IsZero() {
		return nil
	}
	at := metav1.NewTime(t.Truncate(time.Second))
	return &at
}

// condition is InSync, with the reason that counts most.
func condition(m Memory, o Observation) metav1.Condition {
	is := func(status metav1.ConditionStatus, reason, text string) metav1.Condition {
		return metav1.Condition{Type: v1.ConditionInSync, Status: status, Reason: reason, Message: text}
	}
	switch {
	case m.Failures > 0:
		return is(metav1.ConditionFalse, failing(m.Last), failure(m))
	case o.ShowErr != nil:
		return is(metav1.ConditionUnknown, v1.ReasonRetrying, shortened("the node's network can't be read: "+o.ShowErr.Error()))
	case o.Object == nil || o.Object.Desired == nil:
		return is(metav1.ConditionTrue, v1.ReasonInSync, "nothing is desired")
	}
	if d := o.differences(); len(d) > 0 {
		return is(metav1.ConditionFalse, v1.ReasonApplying, "differs: "+differencesText(d))
	}
	return is(metav1.ConditionTrue, v1.ReasonInSync, "the node is as desired")
}

func failing(r Result) string {
	switch {
	case r.Refused, r.Outcome == v1.OutcomePartial:
		return v1.ReasonFailing
	case r.Outcome == v1.OutcomeFailed:
		return v1.ReasonRetrying
	}
	return v1.ReasonRolledBack
}

func failure(m Memory) string {
	if m.Next.IsZero() {
		return shortened(m.Last.Message)
	}
	return shortened(fmt.Sprintf("attempt %d: %s", m.Failures, m.Last.Message))
}

// Applying is the status to report while a change is made.
func Applying(before v1.NodeNetworkStateStatus, o Object, steps []string, now time.Time) v1.NodeNetworkStateStatus {
	s := *before.DeepCopy()
	s.ObservedGeneration, s.NextAttempt = o.Generation, nil
	meta.SetStatusCondition(&s.Conditions, metav1.Condition{
		Type: v1.ConditionInSync, Status: metav1.ConditionFalse, Reason: v1.ReasonApplying, ObservedGeneration: o.Generation,
		LastTransitionTime: metav1.NewTime(now.Truncate(time.Second)), Message: shortened(strings.Join(shortList(steps), "; ")),
	})
	return s
}

// SameStatus reports whether replacing status a by b would change nothing.
func SameStatus(a, b v1.NodeNetworkStateStatus) bool {
	if !sameDocument(a.CurrentState, b.CurrentState) {
		return false
	}
	a.CurrentState, b.CurrentState = nil, nil
	return equality.Semantic.DeepEqual(a, b)
}

// sameDocument compares as JSON: the API server keeps no order of keys.
func sameDocument(a, b *v1.State) bool {
	if a == nil || b == nil {
		return a == b
	}
	var left, right any
	return json.Unmarshal(a.Raw, &left) == nil && json.Unmarshal(b.Raw, &right) == nil && reflect.DeepEqual(left, right)
}

// differencesText names the first few.
func differencesText(list []nmstate.Difference) string {
	const most = 5
	var texts []string
	for i, d := range list {
		if i == most {
			texts = append(texts, moreText(len(list)-i))
			break
		}
		texts = append(texts, cut(d.String(), stepLength))
	}
	return shortened(strings.Join(texts, "; "))
}

func moreText(count int) string { return fmt.Sprintf("and %d more", count) }

func shortened(text string) string { return cut(text, textLength) }

// cut cuts to so many bytes, between characters, and shows that it did.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	const mark = "…"
	end := most - len(mark)
	for end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + mark
}
