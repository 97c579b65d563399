package watch

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/api/wellknown"
	"github.com/flowkeep/flowkeep/netmaster/access"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// Access is what netmaster asks the API server for those who come through it.
type Access struct {
	client kubernetes.Interface
	log    *slog.Logger
}

// NewAccess makes one.
func NewAccess(client kubernetes.Interface, log *slog.Logger) *Access { return &Access{client, log} }

// Review asks the API server whether somebody may.
func (a *Access) Review(ctx context.Context, r *access.Request) (allowed bool, reason string, err error) {
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: r.User.Name, UID: r.User.UID, Groups: r.User.Groups, Extra: map[string]authorizationv1.ExtraValue{},
		ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: r.Verb, Group: inspect.Group, Version: inspect.APIVersion, Resource: r.Resource, Name: r.Name, Namespace: r.Namespace}}}
	for key, values := range r.User.Extra {
		review.Spec.Extra[key] = values
	}
	out, err := a.client.AuthorizationV1().SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
	switch {
	case err != nil:
		return false, "", fmt.Errorf("ask the API server: %w", err)
	case !out.Status.Allowed && out.Status.EvaluationError != "" && !out.Status.Denied:
		return false, "", fmt.Errorf("the API server cannot say: %s", out.Status.EvaluationError)
	}
	return out.Status.Allowed && !out.Status.Denied, out.Status.Reason, nil
}

const (
	frontProxyNamespace = "kube-system"
	frontProxyName      = "extension-apiserver-authentication"
)

// FollowFrontProxy tells what the API server publishes of its front proxy, now and whenever it changes, until ctx ends; nil: it
// publishes nothing.
func (a *Access) FollowFrontProxy(ctx context.Context, tell func(data map[string]string)) error {
	factory := informers.NewSharedInformerFactoryWithOptions(a.client, 0, informers.WithNamespace(frontProxyNamespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("metadata.name", frontProxyName).String()
		}))
	put := func(obj any) {
		if c, ok := obj.(*corev1.ConfigMap); ok && c.Name == frontProxyName {
			tell(c.Data)
		}
	}
	informer := factory.Core().V1().ConfigMaps().Informer()
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: put, UpdateFunc: func(_, obj any) { put(obj) }, DeleteFunc: func(any) { tell(nil) }}); err != nil {
		return err
	}
	factory.Start(ctx.Done())
	<-ctx.Done()
	factory.Shutdown()
	return nil
}

// Announce has the API server look again whether netmaster is there: left alone, it does so only after up to half a minute. A
// netmaster that may not, or is not registered, does without.
func (a *Access) Announce(ctx context.Context) {
	rest := a.client.Discovery().RESTClient()
	if rest == nil {
		return
	}
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, wellknown.AnnotationServingSince, time.Now().UTC().Format(time.RFC3339Nano))
	err := rest.Patch(types.MergePatchType).AbsPath("/apis/apiregistration.k8s.io/v1/apiservices/" + inspect.APIVersion + "." + inspect.Group).Body([]byte(patch)).Do(ctx).Error()
	if err != nil {
		a.log.Debug("the API server was not told that netmaster is here", "error", err)
	}
}
