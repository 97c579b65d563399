package controller

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	nmstatev1 "github.com/flowkeep/flowkeep/nodestate/api/v1"
	"github.com/flowkeep/flowkeep/nodestate/nodeconfig"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
)

// refusal has the policies whose wishes for a node the API server refuses together, though it took each policy alone.
// Trying fewer at a time finds the one, so that it does not hold up the others.
type refusal struct {
	generation int64            // of the node's object, as this handler knows it
	guilty     map[string]blame // refused alone
	suspects   map[string]blame // refused together with others
}

// blame holds as long as the policy is as it was, and all that the node had of others besides.
type blame struct {
	policy     types.UID
	generation int64
	besides    []nmstatev1.PolicyRef
	why        string
}

// whyLimit is the largest part of the API server's message that is reported, in bytes: it may name each of hundreds
// of interfaces.
const whyLimit = 1000

func shortened(text string) string {
	if len(text) <= whyLimit {
		return text
	}
	return strings.ToValidUTF8(text[:whyLimit], "") + "…"
}

// refuses reports whether the API server will never accept the object as it is.
func refuses(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsRequestEntityTooLargeError(err)
}

// nodeOf returns the node as the decision gets it.
func (h *Handler) nodeOf(o *corev1.Node) *nodeconfig.Node {
	n := &nodeconfig.Node{Object: o, State: h.stateOf(o.Name)}
	if s := h.states[o.Name]; s != nil {
		n.Memory = s.memory
	}
	if h.Central { // the handler of one node is that node's agent itself
		n.Silent = nodeconfig.Silence(o, n.State)
	}
	r := h.refused[o.Name]
	if r == nil {
		return n
	}
	if s := h.states[o.Name]; s == nil || s.object.Generation != r.generation {
		delete(h.refused, o.Name) // the object has changed since: it may be accepted now
		return n
	}
	n.Refused, n.Held = h.blamed(o.Name, r.guilty), h.blamed(o.Name, r.suspects)
	return n
}

// blamed is why policies are not tried, of those whose blame holds.
func (h *Handler) blamed(node string, all map[string]blame) map[string]string {
	found := map[string]string{}
	for _, p := range h.policies {
		b, ok := all[p.object.Name]
		if !ok || b.policy != p.object.UID || b.generation != p.object.Generation {
			continue
		}
		now := besides(h.states[node].object, p.object.Name)
		if !slices.ContainsFunc(b.besides, func(r nmstatev1.PolicyRef) bool { return !slices.Contains(now, r) }) {
			found[p.object.Name] = b.why
		}
	}
	return found
}

// refuse blames a policy that was tried alone, or half of those that were tried together. It reports whether there is
// one.
func (h *Handler) refuse(node string, tried []string, because error) bool {
	if len(tried) == 0 {
		return false
	}
	r := h.refused[node]
	if r == nil {
		r = &refusal{generation: h.states[node].object.Generation, guilty: map[string]blame{}, suspects: map[string]blame{}}
		h.refused[node] = r
	}
	into, why := r.suspects, "waits until it is found with which policy the API server refuses the node's desired state"
	if len(tried) == 1 {
		clear(r.suspects)
		into, why = r.guilty, shortened(fmt.Sprintf("the API server refuses what the node's desired state would be%s: %v", listed(besides(h.states[node].object, tried[0])), because))
	}
	for _, p := range h.policies {
		if slices.Contains(tried[len(tried)/2:], p.object.Name) {
			into[p.object.Name] = blame{p.object.UID, p.object.Generation, besides(h.states[node].object, p.object.Name), why}
		}
	}
	h.Log.Warn("the API server refuses a node's desired state", "node", node, "with", tried, "error", shortened(because.Error()))
	return true
}

// besides is what the node has of other policies: with them one may be too much that is none by itself.
func besides(o *nmstatev1.NodeNetworkState, policy string) []nmstatev1.PolicyRef {
	if o.Spec.FromPolicies == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(o.Spec.FromPolicies.Policies), func(r nmstatev1.PolicyRef) bool { return r.Name == policy })
}

func listed(refs []nmstatev1.PolicyRef) string {
	const most = 5
	if len(refs) == 0 {
		return ""
	}
	var names []string
	for _, r := range refs[:min(len(refs), most)] {
		names = append(names, r.Name)
	}
	if more := len(refs) - most; more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return " with what it has of " + strings.Join(names, ", ")
}

// accepted has the policies tried again that were left out of an accepted write.
func (h *Handler) accepted(node string, generation int64, again map[string]bool) {
	if r := h.refused[node]; r != nil {
		r.generation = generation
		h.release(node, again)
	}
}

func (h *Handler) release(node string, again map[string]bool) {
	if r := h.refused[node]; r != nil && len(r.suspects) > 0 {
		clear(r.suspects)
		again[node] = true
	}
}

// releaseIdle has the suspects tried of nodes for which nothing else is.
func (h *Handler) releaseIdle(round *nodeconfig.Round, again map[string]bool) {
	for _, node := range slices.Sorted(maps.Keys(round.Decisions)) {
		if len(round.Decisions[node].Claims) == 0 {
			h.release(node, again)
		}
	}
}
