// Package kube is the macvtap agent's door to Kubernetes: policies and the node's labels come in, the status of the node's MacvtapNode and its
// entries in policies' statuses go out.
package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/internal/etcdrestore"
	"github.com/flowkeep/flowkeep/internal/kubeclient"
	"github.com/flowkeep/flowkeep/macvtap/agent"
	"github.com/flowkeep/flowkeep/macvtap/api/v1alpha1"
	"github.com/flowkeep/flowkeep/macvtap/report"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

// requestLimit is how long the API server may take to answer.
const requestLimit = 15 * time.Second

// Client is agent.Cluster for one node. Call Follow once.
type Client struct {
	node    string
	log     *slog.Logger
	macvtap *rest.RESTClient
	core    coreclient.CoreV1Interface

	nodes, policies, own *watched

	mu      sync.Mutex
	written *v1alpha1.MacvtapNode // as the API server answered the last write
	asked   map[string]time.Time  // when it was last asked whether a node is there
}

// New makes a client by a kubeconfig; an empty path means the ServiceAccount of the pod this runs in. It sends no
// request.
func New(kubeconfig, userAgent, node string, log *slog.Logger) (*Client, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("find the cluster: %w (give --kubeconfig, or --policies=false)", err)
	}
	cfg.UserAgent = userAgent
	return newClient(cfg, node, log)
}

func newClient(cfg *rest.Config, node string, log *slog.Logger) (*Client, error) {
	c := &Client{node: node, log: log, asked: map[string]time.Time{}}
	cfg = rest.CopyConfig(cfg)
	cfg.Wrap(etcdrestore.Wrap(c.restored))
	core, err := coreclient.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	client, err := kubeclient.New(cfg, v1alpha1.GroupVersion, v1alpha1.AddToScheme)
	if err != nil {
		return nil, err
	}
	c.macvtap, c.core = client, core
	return c, nil
}

// restored forgets what was written, because its version is above those of an API server that was restored from a
// backup. The watches list everything again.
func (c *Client) restored(err error) {
	c.log.Warn("watches start again", "error", err)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.written = nil
}

// watched is a watch and what it has seen.
type watched struct {
	store      cache.Store
	controller cache.Controller

	mu  sync.Mutex
	err error // of the last list or watch that was begun
}

// watch what a selector chooses; changed is called when something came, went or is another, and when err is.
func watchOf(from cache.Getter, resource string, which fields.Selector, kind runtime.Object, same func(a, b any) bool, changed func()) *watched {
	w := new(watched)
	note := func(err error) {
		w.mu.Lock()
		news := fmt.Sprint(w.err) != fmt.Sprint(err)
		w.err = err
		w.mu.Unlock()
		if news {
			changed()
		}
	}
	plain := cache.NewListWatchFromClient(from, resource, metav1.NamespaceAll, which)
	noted := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list, err := plain.ListWithContext(ctx, o)
			note(err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			stream, err := plain.WatchWithContext(ctx, o)
			if !apierrors.IsInvalid(err) && !apierrors.IsResourceExpired(err) { // those that the informer deals with by a list
				note(err)
			}
			return stream, err
		},
	}
	w.store, w.controller = cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: noted, ObjectType: kind, Transform: slim,
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { changed() },
			UpdateFunc: func(old, now any) {
				if !same(old, now) {
					changed()
				}
			},
			DeleteFunc: func(any) { changed() },
		},
	})
	return w
}

func (w *watched) trouble() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// slim drops what is not read here: of nodes all but labels.
func slim(o any) (any, error) {
	switch o := o.(type) {
	case *corev1.Node:
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: o.Name, UID: o.UID, Labels: o.Labels, ResourceVersion: o.ResourceVersion}}, nil
	case metav1.Object:
		o.SetManagedFields(nil)
	}
	return o, nil
}

func sameLabels(a, b any) bool {
	x, y := a.(*corev1.Node), b.(*corev1.Node)
	return x.UID == y.UID && maps.Equal(x.Labels, y.Labels)
}

// samePolicy: statuses are written by all nodes, and no news but of the own entry.
func samePolicy(node string) func(a, b any) bool {
	return func(a, b any) bool {
		x, y := a.(*v1alpha1.MacvtapNetworkNodePolicy), b.(*v1alpha1.MacvtapNetworkNodePolicy)
		return x.UID == y.UID && x.Generation == y.Generation && sameEntry(entryOf(x, node), entryOf(y, node))
	}
}

// Follow calls handle with policies and labels, and with errors of the API server, until ctx ends.
func (c *Client) Follow(ctx context.Context, handle func(*agent.Intent, error)) {
	moved := make(chan struct{}, 1)
	changed := func() {
		select {
		case moved <- struct{}{}:
		default:
		}
	}
	this := fields.OneTermEqualSelector(metav1.ObjectNameField, c.node)
	c.mu.Lock()
	c.nodes = watchOf(c.core.RESTClient(), "nodes", this, &corev1.Node{}, sameLabels, changed)
	c.policies = watchOf(c.macvtap, v1alpha1.ResourcePolicy, fields.Everything(), &v1alpha1.MacvtapNetworkNodePolicy{}, samePolicy(c.node), changed)
	c.own = watchOf(c.macvtap, v1alpha1.ResourceNode, this, &v1alpha1.MacvtapNode{}, func(_, now any) bool { return c.wrote(now) }, changed)
	c.mu.Unlock()
	var all sync.WaitGroup
	defer all.Wait()
	for _, w := range []*watched{c.nodes, c.policies, c.own} {
		all.Go(func() { w.controller.RunWithContext(ctx) })
	}
	limit := time.NewTimer(requestLimit)
	defer limit.Stop()
	beat := time.NewTicker(synced)
	defer beat.Stop()
	for waiting := true; ; {
		select {
		case <-ctx.Done():
			return
		case <-moved:
		case <-beat.C:
			if !waiting {
				continue
			}
		case <-limit.C:
			if waiting {
				handle(nil, fmt.Errorf("the API server did not answer within %v", requestLimit))
			}
			continue
		}
		intent, err := c.intent()
		if waiting = intent == nil && err == nil; !waiting {
			handle(intent, err)
		}
	}
}

// synced is how often it is looked whether all is known, until it is.
const synced = 100 * time.Millisecond

// intent is what the API server says, as far as it is known; nil without an error: not yet.
func (c *Client) intent() (*agent.Intent, error) {
	nodes, policies := c.nodes.trouble(), c.policies.trouble()
	missing := kubeclient.IsUnknownKind(policies)
	if err := errors.Join(explained(nodes), explained(policies)); err != nil && (!missing || nodes != nil) {
		return nil, err
	}
	if !c.nodes.controller.HasSynced() || !missing && !c.policies.controller.HasSynced() {
		return nil, nil
	}
	o, ok, _ := c.nodes.store.GetByKey(c.node)
	if !ok {
		return nil, fmt.Errorf("there is no Node %s (give --node-name)", c.node)
	}
	i := &agent.Intent{Labels: o.(*corev1.Node).Labels, Absent: missing}
	for _, p := range c.listed() {
		i.Policies = append(i.Policies, report.Policy(p))
	}
	return i, nil
}

// listed are all policies, by namespace and name.
func (c *Client) listed() (list []*v1alpha1.MacvtapNetworkNodePolicy) {
	for _, o := range c.policies.store.List() {
		list = append(list, o.(*v1alpha1.MacvtapNetworkNodePolicy))
	}
	slices.SortFunc(list, func(a, b *v1alpha1.MacvtapNetworkNodePolicy) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	return list
}

// explained returns the error with advice, also where the API server did not respond.
func explained(err error) error {
	if _, responded := errors.AsType[*apierrors.StatusError](err); err != nil && !responded {
		return fmt.Errorf("the API server does not answer: %w", err)
	}
	const roles = "bind the ClusterRole flowkeep-macvtap of deploy/roles.yaml"
	return kubeclient.Explained(err, v1alpha1.GroupVersion.Group, roles)
}
