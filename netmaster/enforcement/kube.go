package enforcement

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/flowkeep/flowkeep/fleet/api/v1alpha1"
	"github.com/flowkeep/flowkeep/internal/kubeclient"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// crdPollInterval is the time between checks whether the CRD is served.
const crdPollInterval = 5 * time.Second

// Client is an API based on Kubernetes.
type Client struct {
	rest         *rest.RESTClient
	log          *slog.Logger
	pollInterval time.Duration // time between checks for the CRD
	loggedReason string        // last logged reason for not reporting
}

// NewClient returns a client. It sends no request yet.
func NewClient(cfg *rest.Config, log *slog.Logger) (*Client, error) {
	client, err := kubeclient.New(cfg, v1alpha1.GroupVersion, v1alpha1.AddToScheme)
	if err != nil {
		return nil, err
	}
	return &Client{rest: client, log: log, pollInterval: crdPollInterval}, nil
}

// Follow watches objects while the CRD is served, and otherwise checks for it repeatedly.
func (c *Client) Follow(ctx context.Context, n *News) {
	again := time.NewTicker(c.pollInterval)
	defer again.Stop()
	for {
		if c.isServed(ctx) {
			c.watch(ctx, n)
			n.Clear()
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return
		}
	}
}

// isServed reports whether the CRD is served. It logs changes.
func (c *Client) isServed(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	err := c.rest.Get().Resource(v1alpha1.ResourceEnforcement).Param("limit", "1").Do(ctx).Error()
	text := ""
	switch {
	case apierrors.IsNotFound(err):
		text = "the API server has no NetworkPolicyEnforcement (kubectl apply -f deploy/crds)"
	case apierrors.IsForbidden(err):
		text = "netmaster may not list NetworkPolicyEnforcement (apply deploy/roles.yaml)"
	case err != nil:
		return false // the API server is unavailable, which is logged elsewhere
	}
	if text != c.loggedReason {
		c.loggedReason = text
		if text == "" {
			c.log.Info("enforcement is reported")
		} else {
			c.log.Info("enforcement is not reported", "cause", text)
		}
	}
	return err == nil
}

// watch watches objects until the CRD is no longer served or ctx ends.
func (c *Client) watch(ctx context.Context, n *News) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	informer := cache.NewSharedIndexInformer(
		cache.NewListWatchFromClient(c.rest, v1alpha1.ResourceEnforcement, metav1.NamespaceAll, fields.Everything()),
		&v1alpha1.NetworkPolicyEnforcement{}, 0, nil)
	err := errors.Join(
		informer.SetTransform(func(o any) (any, error) {
			if o, ok := o.(metav1.Object); ok {
				o.SetManagedFields(nil) // not needed
			}
			return o, nil
		}),
		informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
			if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
				cancel()
			}
		}))
	if err == nil {
		_, err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(o any) { n.Put(o.(*v1alpha1.NetworkPolicyEnforcement)) },
			UpdateFunc: func(_, o any) { n.Put(o.(*v1alpha1.NetworkPolicyEnforcement)) },
			DeleteFunc: func(o any) {
				if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(o); err == nil {
					n.Gone(key)
				}
			},
		})
	}
	if err != nil {
		c.log.Error("NetworkPolicyEnforcement can't be watched", "error", err)
		return
	}
	informer.RunWithContext(ctx)
}

// Write writes the status of an object. It fails if the object has changed since it was read.
func (c *Client) Write(ctx context.Context,
	o *v1alpha1.NetworkPolicyEnforcement) (*v1alpha1.NetworkPolicyEnforcement, error) {
	out := new(v1alpha1.NetworkPolicyEnforcement)
	err := c.rest.Put().
		Resource(v1alpha1.ResourceEnforcement).
		Namespace(o.Namespace).
		Name(o.Name).
		SubResource("status").
		Body(o).
		Do(ctx).
		Into(out)
	return out, err
}

// isRefused reports whether the API server rejects this object's status.
func isRefused(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) ||
		apierrors.IsRequestEntityTooLargeError(err)
}

// isOvertaken reports whether the object has changed or was deleted.
func isOvertaken(err error) bool { return apierrors.IsConflict(err) || apierrors.IsNotFound(err) }
