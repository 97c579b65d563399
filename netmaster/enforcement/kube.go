package enforcement

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/flowkeep/flowkeep/api/fleet/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// lookAgain is how soon a kind that came is noticed.
const lookAgain = 5 * time.Second

// Client is API by Kubernetes.
type Client struct {
	rest  *rest.RESTClient
	log   *slog.Logger
	again time.Duration // how often it is asked whether the objects are served, while they are not
	told  string        // why nothing is reported, as it was last said
}

// NewClient makes a client. Nobody is asked yet.
func NewClient(cfg *rest.Config, log *slog.Logger) (*Client, error) {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	own := rest.CopyConfig(cfg)
	own.GroupVersion, own.APIPath = &v1alpha1.GroupVersion, "/apis"
	own.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	client, err := rest.RESTClientFor(own)
	if err != nil {
		return nil, fmt.Errorf("make a client for reports of enforcement: %w", err)
	}
	return &Client{rest: client, log: log, again: lookAgain}, nil
}

// Follow watches while the API server serves the objects, and else asks now and then whether it does.
func (c *Client) Follow(ctx context.Context, n *News) {
	again := time.NewTicker(c.again)
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

// isServed says once why not.
func (c *Client) isServed(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	err := c.rest.Get().Resource(v1alpha1.ResourceEnforcement).Param("limit", "1").Do(ctx).Error()
	text := ""
	switch {
	case apierrors.IsNotFound(err):
		text = "the API server has no NetworkPolicyEnforcement (kubectl apply -f deploy/crds)"
	case apierrors.IsForbidden(err):
		text = "netmaster may not list NetworkPolicyEnforcement (apply deploy/roles.yaml)"
	case err != nil:
		return false // the API server is away, as others tell
	}
	if text != c.told {
		c.told = text
		if text == "" {
			c.log.Info("enforcement is reported")
		} else {
			c.log.Info("no enforcement is reported until the cause is gone", "cause", text)
		}
	}
	return err == nil
}

// watch until the objects are served no more, or ctx ends.
func (c *Client) watch(ctx context.Context, n *News) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	informer := cache.NewSharedIndexInformer(cache.NewListWatchFromClient(c.rest, v1alpha1.ResourceEnforcement, metav1.NamespaceAll, fields.Everything()),
		&v1alpha1.NetworkPolicyEnforcement{}, 0, nil)
	err := errors.Join(
		informer.SetTransform(func(o any) (any, error) {
			if o, ok := o.(metav1.Object); ok {
				o.SetManagedFields(nil) // the API server keeps its own
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

// Write puts the status of an object as it was seen, so that of one that has changed since nothing is written.
func (c *Client) Write(ctx context.Context, o *v1alpha1.NetworkPolicyEnforcement) (*v1alpha1.NetworkPolicyEnforcement, error) {
	out := new(v1alpha1.NetworkPolicyEnforcement)
	err := c.rest.Put().Resource(v1alpha1.ResourceEnforcement).Namespace(o.Namespace).Name(o.Name).SubResource("status").Body(o).Do(ctx).Into(out)
	return out, err
}

// isRefused: the API server is well, and does not take this object's status.
func isRefused(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsRequestEntityTooLargeError(err)
}

// isOvertaken: the object is another by now, or gone.
func isOvertaken(err error) bool { return apierrors.IsConflict(err) || apierrors.IsNotFound(err) }
