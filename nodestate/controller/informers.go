package controller

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"time"

	nmstatev1 "github.com/flowkeep/flowkeep/nodestate/api/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// Informers are Cache by watches. They mark changes in Dirty.
type Informers struct {
	nodes, states, policies cache.Store
	controllers             []cache.Controller
}

// NewInformers watches one node's objects, or with an empty name all; all policies in either case.
func NewInformers(c *Client, node string, dirty *Dirty) *Informers {
	own := fields.Everything()
	if node != "" {
		own = fields.OneTermEqualSelector(metav1.ObjectNameField, node)
	}
	i := new(Informers)
	i.nodes = i.watch(c.core.RESTClient(), "nodes", own, &corev1.Node{}, slimNode, nodeEvents(dirty))
	i.states = i.watch(c.nmstate, nmstatev1.ResourceState, own, &nmstatev1.NodeNetworkState{}, slim, stateEvents(dirty))
	i.policies = i.watch(c.nmstate, nmstatev1.ResourcePolicy, fields.Everything(), &nmstatev1.NodeNetworkConfigurationPolicy{}, slim, policyEvents(dirty))
	return i
}

func (i *Informers) watch(from rest.Interface, resource string, which fields.Selector, kind runtime.Object, slim cache.TransformFunc, events cache.ResourceEventHandler) cache.Store {
	store, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewListWatchFromClient(from, resource, metav1.NamespaceAll, which),
		ObjectType:    kind, Handler: events, Transform: slim,
	})
	i.controllers = append(i.controllers, controller)
	return store
}

func nodeEvents(dirty *Dirty) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { dirty.Node(nameOf(o)) },
		UpdateFunc: func(old, o any) {
			before, after := old.(*corev1.Node), o.(*corev1.Node)
			if !reflect.DeepEqual(before.Labels, after.Labels) || !reflect.DeepEqual(before.Spec.Taints, after.Spec.Taints) || !reflect.DeepEqual(readiness(before), readiness(after)) {
				dirty.Node(after.Name)
			}
		},
		DeleteFunc: func(any) { dirty.All() }, // those that waited for it may have their turn
	}
}

func stateEvents(dirty *Dirty) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { dirty.Node(nameOf(o)) },
		UpdateFunc: func(_, o any) { dirty.Node(nameOf(o)) },
		DeleteFunc: func(o any) { dirty.Node(nameOf(o)) },
	}
}

func policyEvents(dirty *Dirty) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { dirty.All() },
		UpdateFunc: func(old, o any) {
			before, after := old.(*nmstatev1.NodeNetworkConfigurationPolicy), o.(*nmstatev1.NodeNetworkConfigurationPolicy)
			if before.Generation != after.Generation || before.UID != after.UID || after.DeletionTimestamp != nil {
				dirty.All()
			} else {
				dirty.Told(after.Name)
			}
		},
		DeleteFunc: func(any) { dirty.All() },
	}
}

func nameOf(o any) string {
	key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(o)
	if err != nil {
		return ""
	}
	return key // objects of the whole cluster: the name
}

// Run watches until ctx ends.
func (i *Informers) Run(ctx context.Context) {
	var all sync.WaitGroup
	for _, c := range i.controllers {
		all.Go(func() { c.RunWithContext(ctx) })
	}
	all.Wait()
}

// Synced waits until all objects are known.
func (i *Informers) Synced(ctx context.Context) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for _, c := range i.controllers {
		for !c.HasSynced() {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return fmt.Errorf("wait for the API server's objects: %w", errors.Join(ctx.Err(), errors.New("are the CRDs of deploy/crds applied, and the ClusterRole of deploy/roles.yaml bound?")))
			}
		}
	}
	return nil
}

// Nodes are those that are watched.
func (i *Informers) Nodes() []*corev1.Node { return all[*corev1.Node](i.nodes) }

// State is the node's object, or nil.
func (i *Informers) State(node string) *nmstatev1.NodeNetworkState {
	o, ok, err := i.states.GetByKey(node)
	if !ok || err != nil {
		return nil
	}
	return o.(*nmstatev1.NodeNetworkState)
}

// Policies are all.
func (i *Informers) Policies() []*nmstatev1.NodeNetworkConfigurationPolicy {
	return all[*nmstatev1.NodeNetworkConfigurationPolicy](i.policies)
}

func all[T any](store cache.Store) (list []T) {
	for _, o := range store.List() {
		list = append(list, o.(T))
	}
	return list
}
