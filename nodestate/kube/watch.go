package kube

import (
	"context"

	v1 "github.com/flowkeep/flowkeep/nodestate/api/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/cache"
)

// Watch follows the node's object until ctx ends.
func (c *Client) Watch(ctx context.Context) {
	source := cache.NewListWatchFromClient(c.states, v1.ResourceState, "", fields.OneTermEqualSelector("metadata.name", c.node))
	_, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: source, ObjectType: &v1.NodeNetworkState{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    c.saw,
			UpdateFunc: func(_, now any) { c.saw(now) },
			DeleteFunc: func(any) { c.gone() },
		},
	})
	controller.RunWithContext(ctx)
}

func (c *Client) saw(what any) {
	o, ok := what.(*v1.NodeNetworkState)
	if !ok {
		return
	}
	c.mu.Lock()
	c.seen = o
	ours := c.written != nil && c.written.UID == o.UID && c.written.ResourceVersion == o.ResourceVersion
	c.mu.Unlock()
	if !ours {
		c.signal()
	}
}

func (c *Client) gone() {
	c.mu.Lock()
	c.seen, c.written = nil, nil
	c.mu.Unlock()
	c.signal()
}

func (c *Client) signal() {
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

func (c *Client) wrote(o *v1.NodeNetworkState) {
	c.mu.Lock()
	c.written = o
	c.mu.Unlock()
}

// latest is the newer of what the watch saw and what was written last; nil where the watch has seen nothing.
func (c *Client) latest() *v1.NodeNetworkState {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.seen == nil || c.written == nil || c.seen.UID != c.written.UID {
		return c.seen
	}
	if order, err := resourceversion.CompareResourceVersion(c.written.ResourceVersion, c.seen.ResourceVersion); err == nil && order > 0 {
		return c.written
	}
	return c.seen
}
