package controller

import (
	"context"
	"fmt"
	"time"

	"github.com/flowkeep/flowkeep/internal/kubeclient"
	nmstatev1 "github.com/flowkeep/flowkeep/nodestate/api/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
)

// The Lease of the instance that handles all nodes.
const (
	LeaseName             = "flowkeep-node-config"
	DefaultLeaseNamespace = "kube-system"
)

// requestLimit is how long the API server may take to answer.
const requestLimit = 15 * time.Second

// Client is Objects by client-go; safe for concurrent use.
type Client struct {
	nmstate *rest.RESTClient
	core    coreclient.CoreV1Interface
	leases  coordinationclient.CoordinationV1Interface
	lease   string // its namespace
}

// NewClient returns a client; it sends no request yet.
func NewClient(cfg *rest.Config, leaseNamespace string) (*Client, error) {
	nmstate, err := kubeclient.New(cfg, nmstatev1.GroupVersion, nmstatev1.AddToScheme)
	if err != nil {
		return nil, err
	}
	core, err := coreclient.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	leases, err := coordinationclient.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	return &Client{nmstate, core, leases, leaseNamespace}, nil
}

// UpdateState writes a node's spec.
func (c *Client) UpdateState(ctx context.Context, o *nmstatev1.NodeNetworkState) (*nmstatev1.NodeNetworkState, error) {
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	stored := new(nmstatev1.NodeNetworkState)
	err := c.nmstate.Put().Resource(nmstatev1.ResourceState).Name(o.Name).Body(withKind(o, nmstatev1.KindState)).Do(ctx).Into(stored)
	return stored, explained(err)
}

// UpdatePolicyStatus writes a policy's status.
func (c *Client) UpdatePolicyStatus(ctx context.Context, o *nmstatev1.NodeNetworkConfigurationPolicy) (*nmstatev1.NodeNetworkConfigurationPolicy, error) {
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	stored := new(nmstatev1.NodeNetworkConfigurationPolicy)
	err := c.nmstate.Put().Resource(nmstatev1.ResourcePolicy).Name(o.Name).SubResource("status").Body(withKind(o, nmstatev1.KindPolicy)).Do(ctx).Into(stored)
	return stored, explained(err)
}

func withKind[T runtime.Object](o T, kind string) T {
	o.GetObjectKind().SetGroupVersionKind(nmstatev1.GroupVersion.WithKind(kind))
	return o
}

// NodeExists reports whether the API server has a Node.
func (c *Client) NodeExists(ctx context.Context, name string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	_, err := c.core.Nodes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil, explained(err)
}

// Central asks who holds the Lease. A holder that has not renewed it in time, by this machine's clock, holds it no more; were
// the clock wrong, two would write, which does no harm.
func (c *Client) Central(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	lease, err := c.leases.Leases(c.lease).Get(ctx, LeaseName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", explained(err)
	}
	return holder(lease.Spec, time.Now()), nil
}

func holder(spec coordinationv1.LeaseSpec, now time.Time) string {
	if spec.HolderIdentity == nil || spec.RenewTime == nil || spec.LeaseDurationSeconds == nil {
		return ""
	}
	if lasts := time.Duration(*spec.LeaseDurationSeconds) * time.Second; now.After(spec.RenewTime.Add(lasts)) {
		return ""
	}
	return *spec.HolderIdentity
}

// explained returns the error of the API server with advice.
func explained(err error) error {
	return kubeclient.Explained(err, "group nmstate.io",
		"bind the ClusterRole flowkeep-node-state of deploy/roles.yaml, or for all nodes flowkeep-node-config")
}

// slimNode keeps what policies select by, and whether the node sends heartbeats.
func slimNode(o any) (any, error) {
	n, ok := o.(*corev1.Node)
	if !ok {
		return o, nil
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name, UID: n.UID, ResourceVersion: n.ResourceVersion, Labels: n.Labels},
		Spec:       corev1.NodeSpec{Taints: n.Spec.Taints},
		Status:     corev1.NodeStatus{Conditions: readiness(n)},
	}, nil
}

// readiness is a node's condition Ready, without the heartbeat.
func readiness(n *corev1.Node) (ready []corev1.NodeCondition) {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			ready = append(ready, corev1.NodeCondition{Type: c.Type, Status: c.Status, LastTransitionTime: c.LastTransitionTime})
		}
	}
	return ready
}

// slim drops managedFields, which are not used here.
func slim(o any) (any, error) {
	if m, ok := o.(metav1.Object); ok {
		m.SetManagedFields(nil)
	}
	return o, nil
}
