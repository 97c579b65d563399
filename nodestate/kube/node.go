package kube

import (
	"context"
	"fmt"

	"github.com/flowkeep/flowkeep/nodestate"
	v1 "github.com/flowkeep/flowkeep/nodestate/api/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// nodeWatch follows one Node.
type nodeWatch struct {
	store      cache.Store
	controller cache.Controller
}

// newNodeWatch calls changed when the Node comes, goes, or is another one of the name.
func newNodeWatch(from rest.Interface, name string, changed func()) *nodeWatch {
	w, own := new(nodeWatch), fields.OneTermEqualSelector(metav1.ObjectNameField, name)
	w.store, w.controller = cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewListWatchFromClient(from, "nodes", "", own),
		ObjectType:    &corev1.Node{},
		Transform: func(o any) (any, error) {
			if n, ok := o.(*corev1.Node); ok {
				o = &corev1.Node{ObjectMeta: metav1.ObjectMeta{
					Name: n.Name, UID: n.UID, ResourceVersion: n.ResourceVersion,
					CreationTimestamp: n.CreationTimestamp, DeletionTimestamp: n.DeletionTimestamp,
				}}
			}
			return o, nil
		},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { changed() },
			DeleteFunc: func(any) { changed() },
			UpdateFunc: func(before, now any) {
				if before.(*corev1.Node).UID != now.(*corev1.Node).UID {
					changed()
				}
			},
		},
	})
	return w
}

// Node returns the Node that the watch last saw, or the API server's while the watch has seen nothing.
func (c *Client) Node(ctx context.Context) (*nodestate.Node, error) {
	if c.own.controller.HasSynced() {
		o, ok, err := c.own.store.GetByKey(c.node)
		if err != nil || !ok {
			return nil, err
		}
		return nodeOf(o.(*corev1.Node)), nil
	}
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	n, err := c.nodes.Get(ctx, c.node, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, c.explained(err)
	}
	return nodeOf(n), nil
}

func nodeOf(n *corev1.Node) *nodestate.Node {
	return &nodestate.Node{
		Name:    n.Name,
		UID:     string(n.UID),
		Created: n.CreationTimestamp.Time,
		Deleted: n.DeletionTimestamp != nil,
	}
}

// reference returns a Node as an owner: the garbage collector of Kubernetes deletes the object after the Node.
func reference(n nodestate.Node) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: n.Name, UID: types.UID(n.UID)}
}

// ownerOf returns the UID of the Node with which the object goes, "" if it goes with none.
func ownerOf(o *v1.NodeNetworkState) string {
	for _, r := range o.OwnerReferences {
		if r.APIVersion == "v1" && r.Kind == "Node" {
			return string(r.UID)
		}
	}
	return ""
}

// Own writes the Node as the object's owner, and changes nothing else of it.
func (c *Client) Own(ctx context.Context, o *nodestate.Object, node nodestate.Node) (*nodestate.Object, error) {
	now, err := c.get(ctx)
	if err != nil {
		return nil, err
	}
	if now == nil || string(now.UID) != o.UID || ownerOf(now) != "" {
		return nil, nodestate.ErrStale
	}
	now.OwnerReferences = append(now.OwnerReferences, reference(node))
	now.TypeMeta = metav1.TypeMeta{APIVersion: v1.GroupVersion.String(), Kind: v1.KindState}
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	answer := new(v1.NodeNetworkState)
	err = c.states.Put().Resource(v1.ResourceState).Name(o.Name).Body(now).Do(ctx).Into(answer)
	switch {
	case apierrors.IsConflict(err), isNoObject(err):
		return nil, nodestate.ErrStale
	case err != nil:
		return nil, fmt.Errorf("write the owner: %w", c.explained(err))
	}
	c.wrote(answer)
	return objectOf(answer), nil
}
