package kube

import (
	"context"
	"sync"

	v1 "github.com/flowkeep/flowkeep/nodestate/api/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/cache"
)

// Watch follows the node's object and its Node until ctx ends. It returns etcdrestore.ErrRestored, wrapped, if etcd was
// restored from a backup: what this client has seen and written cannot be compared then with what the API server has,
// and a new one is needed.
func (c *Client) Watch(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	var informers sync.WaitGroup
	defer informers.Wait()
	defer stop()
	source := cache.NewListWatchFromClient(c.states, v1.ResourceState, "", fields.OneTermEqualSelector("metadata.name", c.node))
	_, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: source, ObjectType: &v1.NodeNetworkState{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    c.saw,
			UpdateFunc: func(_, now any) { c.saw(now) },
			DeleteFunc: func(any) { c.gone() },
		},
	})
	informers.Go(func() { c.own.controller.RunWithContext(ctx) })
	informers.Go(func() { controller.RunWithContext(ctx) })
	select {
	case err := <-c.restored:
		return err
	case <-ctx.Done():
		return nil
	}
}

func (c *Client) noteRestore(err error) {
	select {
	case c.restored <- err:
	default: // noticed before
	}
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
