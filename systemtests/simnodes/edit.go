package simnodes

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"
)

// An Edit is the course of one change of a policy.
type Edit struct {
	Sent     time.Time
	Accepted time.Time // by the API server
	Watched  time.Time // a watch of the API server has delivered it
	Enforced time.Time // the last node of the policy's pods has the rule
}

// An Editor edits policies of one namespace. Its methods are not safe for concurrent use.
type Editor struct {
	rig       *Rig
	sim       *Sim
	namespace int
	nodes     int // those with pods of the namespace
	port      int
	watched   chan event
}

// event is an edit that a watch of the API server has delivered.
type event struct {
	rule string
	at   time.Time
}

// Editor returns an editor of a namespace. It waits for the nodes of the process sim only, and watches until ctx ends.
func (r *Rig) Editor(ctx context.Context, sim *Sim, namespace int) *Editor {
	nodes := map[int]bool{}
	for _, p := range r.pods {
		if p.namespace == namespace && sim.has(p.node) {
			nodes[p.node] = true
		}
	}
	e := &Editor{rig: r, sim: sim, namespace: namespace, nodes: len(nodes), port: 20000, watched: make(chan event, 1)}
	go e.watch(ctx)
	return e
}

// watch watches the edited policy, again where a watch ends.
func (e *Editor) watch(ctx context.Context) {
	for ctx.Err() == nil {
		_ = e.rig.Hub.Watch(ctx, policiesPath(e.namespace), func(_ string, object json.RawMessage) {
			now := time.Now()
			select {
			case <-e.watched: // of an edit that is over
			default:
			}
			e.watched <- event{ruleOf(object), now}
		})
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// ruleOf returns the first rule of a policy with a port as rulePort does; empty if there is none.
func ruleOf(object json.RawMessage) string {
	var p struct {
		Metadata struct{ Namespace, Name string }
		Spec     struct {
			Ingress []struct{ Ports []struct{ Port int } }
		}
	}
	if json.Unmarshal(object, &p) != nil || len(p.Spec.Ingress) == 0 || len(p.Spec.Ingress[0].Ports) == 0 {
		return ""
	}
	return fmt.Sprintf("%s/%s:%d", p.Metadata.Namespace, p.Metadata.Name, p.Spec.Ingress[0].Ports[0].Port)
}

// delivered waits for the watch to deliver the newest edit; where the watch was interrupted, not for long.
func (e *Editor) delivered(rule string) time.Time {
	for late := time.After(time.Second); ; {
		select {
		case one := <-e.watched:
			if one.rule == rule {
				return one.at
			}
		case <-late:
			return time.Now()
		}
	}
}

// everybody is the policy that selects all pods of its namespace: see kinds.
const everybody = 1

// Edit gives the namespace's widest policy another port and waits until every node has the rule. It fails after limit.
func (e *Editor) Edit(ctx context.Context, limit time.Duration) (edit Edit, err error) {
	e.port = 20000 + (e.port-19999)%40000
	rule := rulePort(e.namespace, everybody, e.port)
	if err := e.sim.expect(ctx, rule); err != nil {
		return edit, err
	}
	edit.Sent = time.Now()
	patch := fmt.Appendf(nil, `[{"op": "replace", "path": "/spec/ingress/0/ports/0/port", "value": %d}]`, e.port)
	path := policiesPath(e.namespace) + "/" + policyName(everybody)
	if err := e.rig.Hub.Do(ctx, http.MethodPatch, path, patch); err != nil {
		return edit, err
	}
	edit.Accepted = time.Now()
	seen, last := 0, int64(0)
	for tick := time.NewTicker(5 * time.Millisecond); ; <-tick.C {
		all, err := e.sim.look(ctx)
		if err != nil {
			return edit, err
		}
		for _, at := range all[rule] {
			seen, last = seen+1, max(last, at)
		}
		if seen >= e.nodes {
			tick.Stop()
			edit.Enforced, edit.Watched = time.Unix(0, last), e.delivered(rule)
			return edit, e.sim.post(ctx, "/forget", nil)
		}
		if time.Since(edit.Accepted) > limit {
			tick.Stop()
			return edit, fmt.Errorf("edit of %s: %d of %d nodes have the rule after %v", rule, seen, e.nodes, limit)
		}
	}
}

// NamespaceName returns the name of a namespace by its number.
func (r *Rig) NamespaceName(n int) string { return namespaceName(n) }

// NodeName returns the name of a node by its number.
func (r *Rig) NodeName(n int) string { return nodeName(n) }

// FeedAddress returns the address at which netmaster serves nodes.
func (r *Rig) FeedAddress() string { return r.address(feedPort) }

// AccessAddress returns the address at which netmaster serves the API server.
func (r *Rig) AccessAddress() string { return r.address(accessPort) }

// PKI returns the directory of the authority's key material.
func (r *Rig) PKI() string { return r.pki() }

// A Pod is the identity of a pod of the cluster.
type Pod struct{ Name, UID string }

// PodsOf returns the pods of a namespace.
func (r *Rig) PodsOf(namespace int) (pods []Pod) {
	for _, p := range r.pods {
		if p.namespace == namespace {
			pods = append(pods, Pod{p.name, p.uid})
		}
	}
	return pods
}

// OwnPod creates a pod that is bound to a node.
func (r *Rig) OwnPod(ctx context.Context, namespace, node int) (Pod, error) {
	r.next++
	p := r.newPod(r.next, namespace)
	p.node = node
	err := r.create(ctx, p)
	return Pod{p.name, p.uid}, err
}
