package kube

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/flowkeep/flowkeep/internal/kubeclient"
	"github.com/flowkeep/flowkeep/macvtap"
	"github.com/flowkeep/flowkeep/macvtap/agent"
	"github.com/flowkeep/flowkeep/macvtap/api/v1alpha1"
	"github.com/flowkeep/flowkeep/macvtap/report"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// Conditions of MacvtapNodes in addition to those of package report.
const (
	conditionRegistered = "Registered"    // True: the kubelet follows the devices of all resources
	conditionPolicies   = "PoliciesKnown" // True: the API server serves policies and labels
	conditionInUse      = "InUseKnown"    // True: the kubelet lists which pods hold devices
)

// Report brings the node's MacvtapNode and its entries in policies to what the report says. What they say already is not written.
func (c *Client) Report(ctx context.Context, r agent.Report) error {
	c.mu.Lock()
	following := c.own != nil
	c.mu.Unlock()
	if !following {
		return errors.New("the API server is not followed yet")
	}
	if !c.hasNode() && c.nodes.controller.HasSynced() {
		return fmt.Errorf("there is no Node %s (give --node-name)", c.node) // its object would stay for ever
	}
	errs := []error{c.reportNode(ctx, r)}
	for _, p := range c.listed() {
		errs = append(errs, c.reportPolicy(ctx, r, p), c.tidy(ctx, p, time.Now()))
	}
	return errors.Join(errs...)
}

func (c *Client) hasNode() bool {
	_, ok, _ := c.nodes.store.GetByKey(c.node)
	return ok
}

func (c *Client) reportNode(ctx context.Context, r agent.Report) error {
	if !c.own.controller.HasSynced() {
		if err := c.own.trouble(); err != nil {
			return explained(err)
		}
	}
	o, err := c.object(ctx)
	if err != nil {
		return fmt.Errorf("make the MacvtapNode: %w", explained(err))
	}
	status, changed := statusOf(r, o.Status, metav1.Now())
	if !changed {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	body := &v1alpha1.MacvtapNode{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.KindNode},
		ObjectMeta: metav1.ObjectMeta{Name: c.node, UID: o.UID, ResourceVersion: o.ResourceVersion}, Status: status,
	}
	answer := new(v1alpha1.MacvtapNode)
	if err := c.macvtap.Put().Resource(v1alpha1.ResourceNode).Name(c.node).SubResource("status").Body(body).Do(ctx).Into(answer); err != nil {
		return fmt.Errorf("write the status of the MacvtapNode: %w", explained(err))
	}
	c.keep(answer)
	return nil
}

// statusOf is package report's, with what the agent knows besides.
func statusOf(r agent.Report, old v1alpha1.MacvtapNodeStatus, now metav1.Time) (v1alpha1.MacvtapNodeStatus, bool) {
	status, _ := report.Node(r.Facts, old, now)
	for _, c := range []metav1.Condition{registered(r), policiesKnown(r), inUseKnown(r)} {
		c.LastTransitionTime = now
		meta.SetStatusCondition(&status.Conditions, c)
	}
	return status, !equality.Semantic.DeepEqual(status, old)
}

func registered(r agent.Report) metav1.Condition {
	var missing []string
	for _, resource := range r.Facts.Exposure.Resources {
		if state := r.Registrations[resource.Name]; !state.Registered {
			missing = append(missing, resource.Name)
		}
	}
	if len(missing) == 0 {
		return metav1.Condition{Type: conditionRegistered, Status: metav1.ConditionTrue, Reason: "Followed", Message: "the kubelet follows the devices of all resources"}
	}
	first := r.Registrations[missing[0]].Why
	if len(missing) > 5 {
		missing = append(missing[:5:5], fmt.Sprintf("%d more", len(missing)-5))
	}
	message := fmt.Sprintf("the kubelet does not follow %s: %s", strings.Join(missing, ", "), first)
	return metav1.Condition{Type: conditionRegistered, Status: metav1.ConditionFalse, Reason: "NotFollowed", Message: bounded(message)}
}

func policiesKnown(r agent.Report) metav1.Condition {
	for _, t := range r.Trouble {
		if t.Reason == agent.ReasonUnknown {
			return metav1.Condition{Type: conditionPolicies, Status: metav1.ConditionFalse, Reason: t.Reason, Message: bounded(t.Message)}
		}
	}
	return metav1.Condition{Type: conditionPolicies, Status: metav1.ConditionTrue, Reason: "Followed", Message: "policies and labels are as the API server has them"}
}

func inUseKnown(r agent.Report) metav1.Condition {
	if r.HoldersWhy != "" {
		return metav1.Condition{Type: conditionInUse, Status: metav1.ConditionFalse, Reason: "KubeletDoesNotTell", Message: bounded(r.HoldersWhy)}
	}
	return metav1.Condition{
		Type:    conditionInUse,
		Status:  metav1.ConditionTrue,
		Reason:  "Asked",
		Message: "the kubelet lists which pods hold devices",
	}
}

// bounded is what a condition's message may be.
func bounded(message string) string {
	const most = 1000
	return strings.ToValidUTF8(message[:min(len(message), most)], "")
}

// object is the node's, made if there is none. It goes with the Node.
func (c *Client) object(ctx context.Context) (*v1alpha1.MacvtapNode, error) {
	if o := c.latest(); o != nil {
		return o, nil
	}
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	o := new(v1alpha1.MacvtapNode)
	err := c.macvtap.Get().Resource(v1alpha1.ResourceNode).Name(c.node).Do(ctx).Into(o)
	if err == nil || !apierrors.IsNotFound(err) || kubeclient.IsUnknownKind(err) {
		return o, err
	}
	body := &v1alpha1.MacvtapNode{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.KindNode},
		ObjectMeta: metav1.ObjectMeta{Name: c.node},
	}
	n, ok, _ := c.nodes.store.GetByKey(c.node)
	if !ok {
		return nil, errors.New("its Node is not known yet") // it would not go with it
	}
	body.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: c.node, UID: n.(*corev1.Node).UID}}
	if err := c.macvtap.Post().Resource(v1alpha1.ResourceNode).Body(body).Do(ctx).Into(o); err != nil {
		return nil, err
	}
	c.keep(o)
	return o, nil
}

func (c *Client) keep(o *v1alpha1.MacvtapNode) {
	c.mu.Lock()
	c.written = o
	c.mu.Unlock()
}

// wrote reports whether an object that the watch saw is what was written here.
func (c *Client) wrote(o any) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	seen := o.(*v1alpha1.MacvtapNode)
	return c.written != nil && c.written.UID == seen.UID && c.written.ResourceVersion == seen.ResourceVersion
}

// latest is the newer of what the watch saw and what was written last; nil where the watch has seen nothing.
func (c *Client) latest() *v1alpha1.MacvtapNode {
	c.mu.Lock()
	defer c.mu.Unlock()
	o, ok, _ := c.own.store.GetByKey(c.node)
	if !ok {
		return nil
	}
	seen := o.(*v1alpha1.MacvtapNode)
	if c.written == nil || c.written.UID != seen.UID {
		return seen
	}
	if order, err := resourceversion.CompareResourceVersion(c.written.ResourceVersion, seen.ResourceVersion); err == nil && order > 0 {
		return c.written
	}
	return seen
}

// attempts to write an entry that other nodes' entries got in the way of.
const attempts = 8

// reportPolicy brings the node's entry of a policy to what the report says. A report that knows another version of the policy says nothing of
// this one: the next does.
func (c *Client) reportPolicy(ctx context.Context, r agent.Report, p *v1alpha1.MacvtapNetworkNodePolicy) (err error) {
	for i := range attempts {
		if !knows(r, p) {
			return nil
		}
		var entry *v1alpha1.PolicyNode
		if e, ok := report.PolicyNode(r.Facts, c.node, p); ok {
			entry = &e
		}
		status, changed := report.SetNode(p.Status, c.node, entry)
		if !changed || p.DeletionTimestamp != nil {
			return nil
		}
		err = c.writePolicy(ctx, p, status)
		if err == nil || apierrors.IsNotFound(err) && !kubeclient.IsUnknownKind(err) {
			return nil
		}
		if !apierrors.IsConflict(err) {
			break
		}
		if p, err = c.policyAfter(ctx, p, time.Duration(rand.Int64N(int64(50*time.Millisecond)<<i))); err != nil || p == nil {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("write the status of a policy: %w", explained(err))
	}
	return nil
}

// askedEvery is how often a Node is looked up.
const askedEvery = 30 * time.Minute

// tidy takes from a policy's status the entry of a node that is no more, which cannot do so itself. Each node looks after the entry behind its
// own alone, so that all are looked after, by few questions. What can't be written now is found again.
func (c *Client) tidy(ctx context.Context, p *v1alpha1.MacvtapNetworkNodePolicy, now time.Time) error {
	other := report.After(p.Status, c.node)
	if other == "" || p.DeletionTimestamp != nil || !c.ask(other, now) {
		return nil
	}
	asking, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	_, err := c.core.Nodes().Get(asking, other, metav1.GetOptions{})
	switch {
	case err == nil:
		return nil
	case !apierrors.IsNotFound(err):
		return fmt.Errorf("ask whether there is a Node %s: %w", other, explained(err))
	}
	c.mu.Lock()
	delete(c.asked, other)
	c.mu.Unlock()
	status, _ := report.SetNode(p.Status, other, nil)
	if err := c.writePolicy(ctx, p, status); err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		return fmt.Errorf("write the status of a policy: %w", explained(err))
	}
	c.log.Info("removed the entry of a deleted node from a policy's status", "policy", p.Namespace+"/"+p.Name, "node", other)
	return nil
}

// ask reports whether it is time to, and takes it that it is done.
func (c *Client) ask(node string, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.asked, func(_ string, at time.Time) bool { return now.Sub(at) >= askedEvery })
	if _, recently := c.asked[node]; recently {
		return false
	}
	c.asked[node] = now
	return true
}

// policyAfter is the policy as it is after a pause; nil if it is no more.
func (c *Client) policyAfter(ctx context.Context, p *v1alpha1.MacvtapNetworkNodePolicy, pause time.Duration) (*v1alpha1.MacvtapNetworkNodePolicy, error) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-timer.C:
	}
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	now := new(v1alpha1.MacvtapNetworkNodePolicy)
	err := c.macvtap.Get().Namespace(p.Namespace).Resource(v1alpha1.ResourcePolicy).Name(p.Name).Do(ctx).Into(now)
	if apierrors.IsNotFound(err) && !kubeclient.IsUnknownKind(err) || err == nil && now.UID != p.UID {
		return nil, nil
	}
	return now, err
}

func (c *Client) writePolicy(ctx context.Context, p *v1alpha1.MacvtapNetworkNodePolicy, status v1alpha1.MacvtapNetworkNodePolicyStatus) error {
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	body := p.DeepCopy()
	body.TypeMeta = metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.KindPolicy}
	body.Status = status
	return c.macvtap.Put().Namespace(p.Namespace).Resource(v1alpha1.ResourcePolicy).Name(p.Name).SubResource("status").Body(body).Do(ctx).Error()
}

// knows reports whether the report was made with this very policy.
func knows(r agent.Report, p *v1alpha1.MacvtapNetworkNodePolicy) bool {
	now := report.Policy(p)
	i := slices.IndexFunc(r.Facts.In.Policies, func(o macvtap.Policy) bool { return o.Namespace == now.Namespace && o.Name == now.Name })
	return i >= 0 && reflect.DeepEqual(r.Facts.In.Policies[i], now)
}

// entryOf is a node's entry of a policy, or nil.
func entryOf(p *v1alpha1.MacvtapNetworkNodePolicy, node string) *v1alpha1.PolicyNode {
	for i := range p.Status.Nodes {
		if p.Status.Nodes[i].Node == node {
			return &p.Status.Nodes[i]
		}
	}
	return nil
}

func sameEntry(a, b *v1alpha1.PolicyNode) bool { return equality.Semantic.DeepEqual(a, b) }
