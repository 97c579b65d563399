// Package kube is the node-state agent's door to Kubernetes: the node's NodeNetworkState, read, watched and reported, Events, and probes.
package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/api/wellknown"
	"github.com/flowkeep/flowkeep/internal/etcdrestore"
	"github.com/flowkeep/flowkeep/internal/kubeclient"
	"github.com/flowkeep/flowkeep/nodestate"
	v1 "github.com/flowkeep/flowkeep/nodestate/api/v1"
	"github.com/flowkeep/flowkeep/nodestate/nmstate"
	"github.com/flowkeep/flowkeep/nodestate/nodeconfig"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/connrotation"
)

// requestLimit is how long the API server may take to answer.
const requestLimit = 10 * time.Second

// Client speaks for one node. It is nodestate.Objects, and safe for concurrent use.
type Client struct {
	node   string
	config *rest.Config
	dialer *connrotation.Dialer
	states *rest.RESTClient
	nodes  typedcorev1.NodeInterface
	own    *nodeWatch
	events record.EventBroadcaster
	warn   record.EventRecorder

	restored chan error // the first restore of etcd that was noticed

	mu      sync.Mutex
	seen    *v1.NodeNetworkState // by the watch
	written *v1.NodeNetworkState // as the API server answered the last write
	changed chan struct{}
}

// Config finds the cluster by a kubeconfig; an empty path means the ServiceAccount of the pod this runs in.
func Config(kubeconfig, userAgent string) (*rest.Config, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("find the cluster: %w (give --kubeconfig)", err)
	}
	cfg.UserAgent = userAgent
	return cfg, nil
}

// New returns a client of the node's name; it sends no request yet.
func New(cfg *rest.Config, node string) (*Client, error) {
	cfg = rest.CopyConfig(cfg)
	c := &Client{
		node:     node,
		config:   rest.CopyConfig(cfg),
		changed:  make(chan struct{}, 1),
		restored: make(chan error, 1),
	}
	// A changed network may leave connections that look well and carry nothing: they must be given up by hand.
	c.dialer = connrotation.NewDialer((&net.Dialer{Timeout: requestLimit, KeepAlive: requestLimit}).DialContext)
	cfg.Dial = c.dialer.DialContext
	cfg.Wrap(etcdrestore.Wrap(c.noteRestore))
	core, err := typedcorev1.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	c.nodes = core.Nodes()
	c.own = newNodeWatch(core.RESTClient(), node, c.signal)
	if c.states, err = kubeclient.New(cfg, v1.GroupVersion, v1.AddToScheme); err != nil {
		return nil, err
	}
	c.events = record.NewBroadcaster()
	c.events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: core.Events("")})
	source := corev1.EventSource{Component: wellknown.NodeStateEvents, Host: node}
	c.warn = c.events.NewRecorder(runtime.NewScheme(), source)
	return c, nil
}

// Close ends what sends Events.
func (c *Client) Close() { c.events.Shutdown() }

// Changed is signalled when the object is another than this agent wrote.
func (c *Client) Changed() <-chan struct{} { return c.changed }

// Get is what the watch last saw, or where it has seen nothing, what the API server says.
func (c *Client) Get(ctx context.Context) (*nodestate.Object, error) {
	if o := c.latest(); o != nil {
		return objectOf(o), nil
	}
	o, err := c.get(ctx)
	if err != nil || o == nil {
		return nil, err
	}
	return objectOf(o), nil
}

// Addresses returns the Node's addresses, none where the Node cannot be read.
func (c *Client) Addresses(ctx context.Context) []netip.Addr {
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	node, err := c.nodes.Get(ctx, c.node, metav1.GetOptions{})
	if err != nil {
		return nil
	}
	return nodeconfig.Addresses(node)
}

func (c *Client) get(ctx context.Context) (*v1.NodeNetworkState, error) {
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	o := new(v1.NodeNetworkState)
	err := c.states.Get().Resource(v1.ResourceState).Name(c.node).Do(ctx).Into(o)
	if isNoObject(err) {
		return nil, nil
	}
	if err != nil {
		return nil, c.explained(err)
	}
	return o, nil
}

// Create makes the object, which goes with the Node, and reports.
func (c *Client) Create(
	ctx context.Context, node *nodestate.Node, status v1.NodeNetworkStateStatus,
) (*nodestate.Object, error) {
	managed := true
	o := &v1.NodeNetworkState{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1.GroupVersion.String(), Kind: v1.KindState},
		ObjectMeta: metav1.ObjectMeta{Name: c.node},
		Spec:       v1.NodeNetworkStateSpec{Managed: &managed, NodeName: c.node},
	}
	if node != nil {
		o.OwnerReferences = []metav1.OwnerReference{reference(*node)}
	}
	limited, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	made := new(v1.NodeNetworkState)
	if err := c.states.Post().Resource(v1.ResourceState).Body(o).Do(limited).Into(made); err != nil {
		if apierrors.IsAlreadyExists(err) {
			return nil, nodestate.ErrStale
		}
		return nil, c.explained(err)
	}
	c.wrote(made)
	status.ObservedGeneration = made.Generation
	for i := range status.Conditions {
		status.Conditions[i].ObservedGeneration = made.Generation
	}
	return c.Report(ctx, objectOf(made), status)
}

// Report writes the status. If the object is another by now, but its desire is not, it is the newer one that is written.
func (c *Client) Report(ctx context.Context, o *nodestate.Object, status v1.NodeNetworkStateStatus) (*nodestate.Object, error) {
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	answer, err := c.put(ctx, o, o.ResourceVersion, status)
	if apierrors.IsConflict(err) {
		now, readErr := c.get(ctx)
		if readErr != nil {
			return nil, readErr
		}
		if now == nil || string(now.UID) != o.UID || now.Generation != o.Generation {
			return nil, nodestate.ErrStale
		}
		answer, err = c.put(ctx, o, now.ResourceVersion, status)
	}
	switch {
	case isNoObject(err), apierrors.IsConflict(err):
		return nil, nodestate.ErrStale
	case err != nil:
		return nil, c.explained(err)
	}
	return answer, nil
}

func (c *Client) put(ctx context.Context, o *nodestate.Object, version string, status v1.NodeNetworkStateStatus) (*nodestate.Object, error) {
	body := &v1.NodeNetworkState{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1.GroupVersion.String(), Kind: v1.KindState},
		ObjectMeta: metav1.ObjectMeta{Name: o.Name, UID: types.UID(o.UID), ResourceVersion: version},
		Spec:       v1.NodeNetworkStateSpec{NodeName: o.Name},
		Status:     status,
	}
	answer := new(v1.NodeNetworkState)
	if err := c.states.Put().Resource(v1.ResourceState).Name(o.Name).SubResource("status").Body(body).Do(ctx).Into(answer); err != nil {
		return nil, err
	}
	c.wrote(answer)
	return objectOf(answer), nil
}

// Warn makes an Event.
func (c *Client) Warn(o *nodestate.Object, reason wellknown.EventReason, message string) {
	c.warn.Event(&corev1.ObjectReference{
		APIVersion: v1.GroupVersion.String(), Kind: v1.KindState, Name: o.Name, UID: types.UID(o.UID),
	}, corev1.EventTypeWarning, string(reason), message)
}

// explained returns the error with advice. If the API server did not respond, it closes all connections.
func (c *Client) explained(err error) error {
	status, responded := errors.AsType[*apierrors.StatusError](err)
	if !responded {
		c.dialer.CloseAll()
		return fmt.Errorf("the API server does not answer: %w", err)
	}
	const roles = "bind the ClusterRole flowkeep-node-state of deploy/roles.yaml"
	return kubeclient.Explained(status, "NodeNetworkState", roles)
}

// isNoObject reports whether the object does not exist, while the API server serves its kind.
func isNoObject(err error) bool { return apierrors.IsNotFound(err) && !kubeclient.IsUnknownKind(err) }

// objectOf is what the agent needs of an object.
func objectOf(o *v1.NodeNetworkState) *nodestate.Object {
	out := &nodestate.Object{
		Name: o.Name, UID: string(o.UID), ResourceVersion: o.ResourceVersion, Generation: o.Generation,
		Managed: o.Spec.IsManaged(), Status: *o.Status.DeepCopy(),
		Volatile: o.Annotations[wellknown.AnnotationAllowVolatile] == "true",
		Owner:    ownerOf(o), Created: o.CreationTimestamp.Time,
	}
	if text, err := json.Marshal(&v1.NodeNetworkState{TypeMeta: o.TypeMeta, ObjectMeta: o.ObjectMeta, Spec: o.Spec}); err == nil {
		out.Size = len(text)
	}
	if o.Spec.DesiredState == nil || len(o.Spec.DesiredState.Raw) == 0 {
		return out
	}
	out.Desired, out.DesiredErr = nmstate.Parse(o.Spec.DesiredState.Raw)
	out.Desire = string(o.Spec.DesiredState.Raw)
	if canonical, err := json.Marshal(nmstate.Canonical(out.Desired)); err == nil && out.DesiredErr == nil {
		out.Desire = string(canonical)
	}
	if out.Volatile {
		out.Desire += " " + wellknown.AnnotationAllowVolatile // what was refused is tried again
	}
	return out
}
