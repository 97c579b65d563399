package attachment

import (
	"cmp"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"
	"time"

	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// Pod is a running pod that its node has not announced. The node may be away.
type Pod struct {
	resolve.UnannouncedPod
	// Overdue: its node was connected for Grace, and the pod counts as not attached. Others may still be announced.
	Overdue bool
}

func (p *Pod) isNotEnforced() bool { return p.Selected && p.Overdue }

// Set is a set of unannounced pods. It is immutable, and safe for concurrent use. Before the first search it is nil,
// which has no pods, and IsKnown is false.
type Set struct {
	pods        []Pod // sorted by namespace and name
	notEnforced []Pod // sorted in the same way
	asOf        time.Time
	digest      uint32
}

// NewSet returns a set. It sorts the pods in place and keeps them.
func NewSet(pods []Pod) *Set {
	slices.SortFunc(pods, func(a, b Pod) int { return a.compare(b.Namespace, b.Name) })
	s := &Set{pods: pods}
	var line []byte
	for i := range pods {
		if pods[i].Overdue {
			line = fmt.Appendf(line[:0], "%s %s %v\n", pods[i].ID(), pods[i].UID, pods[i].Selected)
			s.digest = crc32.Update(s.digest, crc32.IEEETable, line)
		}
		if pods[i].isNotEnforced() {
			s.notEnforced = append(s.notEnforced, pods[i])
		}
	}
	return s
}

func (p *Pod) compare(namespace, name string) int {
	return cmp.Or(cmp.Compare(p.Namespace, namespace), cmp.Compare(p.Name, name))
}

// search returns the index of the first pod that does not come before this one, and whether it is this one.
func search(pods []Pod, namespace, name string) (int, bool) {
	return slices.BinarySearchFunc(pods, namespace, func(p Pod, namespace string) int {
		return p.compare(namespace, name)
	})
}

// IsKnown reports whether unannounced pods have been looked for.
func (s *Set) IsKnown() bool { return s != nil }

// IsNewerThan reports whether all pods were read after a time.
func (s *Set) IsNewerThan(t time.Time) bool { return s != nil && s.asOf.After(t) }

// Digest returns a digest of the pods that are not attached; 0 if there are none.
func (s *Set) Digest() uint32 {
	if s == nil {
		return 0
	}
	return s.digest
}

// Equal reports whether two sets have the same pods in the same state. A pod that was updated in the API server is
// another one.
func (s *Set) Equal(t *Set) bool {
	if s == nil || t == nil {
		return s == t
	}
	return slices.Equal(s.pods, t.pods)
}

// SelectedBy returns the pods that a policy selects, sorted by name. The cost is proportional to the set's pods in the
// policy's namespace.
func (s *Set) SelectedBy(p *policy.Policy) (out []Pod) {
	if s == nil || p == nil {
		return nil
	}
	first, _ := search(s.pods, p.Namespace, "")
	for i := first; i < len(s.pods) && s.pods[i].Namespace == p.Namespace; i++ {
		if p.AppliedTo.Matches(s.pods[i].Labels) {
			out = append(out, s.pods[i])
		}
	}
	return out
}

// Lacks reports whether a pod (namespace/name) is not attached.
func (s *Set) Lacks(id string) bool {
	if s == nil {
		return false
	}
	namespace, name, _ := strings.Cut(id, "/")
	i, ok := search(s.pods, namespace, name)
	return ok && s.pods[i].Overdue
}

// Count returns the number of pods that policies select and that are not attached.
func (s *Set) Count() int { return len(s.NotEnforced()) }

// NotEnforced returns the pods that enforced policies select and that are not attached, sorted. The caller must not
// change them.
func (s *Set) NotEnforced() []Pod {
	if s == nil {
		return nil
	}
	return s.notEnforced
}

// NewlyNotEnforced returns the pods of NotEnforced that an earlier set does not have there.
func (s *Set) NewlyNotEnforced(before *Set) (out []Pod) {
	for _, p := range s.NotEnforced() {
		if _, had := search(before.NotEnforced(), p.Namespace, p.Name); !had {
			out = append(out, p)
		}
	}
	return out
}

// maxNamed limits the pods that a sentence names.
const maxNamed = 10

// Problem returns a sentence about the pods that policies select and that are not attached; empty if there are none.
func (s *Set) Problem() string {
	pods := s.NotEnforced()
	if len(pods) == 0 {
		return ""
	}
	var names []string
	for i := range pods[:min(len(pods), maxNamed)] {
		names = append(names, fmt.Sprintf("%s on %s", pods[i].ID(), pods[i].Node))
	}
	text := joinNames(names, len(pods))
	if len(pods) == 1 {
		return text + " is not wired by Flowkeep, and no policy that selects it is enforced there: " + Remedy
	}
	return fmt.Sprintf("%d pods are not wired by Flowkeep, and no policy that selects them is enforced there: %s: %s",
		len(pods), text, Remedy)
}

// DescribeUnattached returns a sentence, with the remedy, about pods (namespace/name) that are not attached; empty
// without pods.
func DescribeUnattached(pods []string) string {
	text := joinNames(pods[:min(len(pods), maxNamed)], len(pods))
	switch len(pods) {
	case 0:
		return ""
	case 1:
		return text + " is not wired by Flowkeep: " + Remedy
	}
	return text + " are not wired by Flowkeep: " + Remedy
}

// joinNames returns the first names of all, and the number of the others.
func joinNames(first []string, all int) string {
	text := strings.Join(first, ", ")
	if more := all - len(first); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// Remedy is the instruction that attaches such pods.
const Remedy = "recreate such pods; if new ones are not wired either, another CNI configuration comes first " +
	"(netctl doctor node)"
