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

// Access authorises clients of the aggregated API and follows the front proxy's CA, using the API server.
type Access struct {
	client kubernetes.Interface
	log    *slog.Logger
}

// NewAccess returns an Access.
func NewAccess(client kubernetes.Interface, log *slog.Logger) *Access { return &Access{client, log} }

// Review asks the API server, by a SubjectAccessReview, whether a user is allowed a request.
func (a *Access) Review(ctx context.Context, r *access.Request) (allowed bool, reason string, err error) {
	review := &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User:   r.User.Name,
			UID:    r.User.UID,
			Groups: r.User.Groups,
			Extra:  map[string]authorizationv1.ExtraValue{},
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Verb:      r.Verb,
				Group:     inspect.Group,
				Version:   inspect.APIVersion,
				Resource:  r.Resource,
				Name:      r.Name,
				Namespace: r.Namespace,
			},
		},
	}
	for key, values := range r.User.Extra {
		review.Spec.Extra[key] = values
	}
	out, err := a.client.AuthorizationV1().SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
	switch {
	case err != nil:
		return false, "", fmt.Errorf("create a SubjectAccessReview: %w", err)
	case !out.Status.Allowed && out.Status.EvaluationError != "" && !out.Status.Denied:
		return false, "", fmt.Errorf("the API server cannot say: %s", out.Status.EvaluationError)
	}
	return out.Status.Allowed && !out.Status.Denied, out.Status.Reason, nil
}

const (
	frontProxyNamespace = "kube-system"
	frontProxyName      = "extension-apiserver-authentication"
)

// FollowFrontProxy calls update with the published front proxy configuration, now and on each change, until ctx
// ends. Nil data means that none is published.
func (a *Access) FollowFrontProxy(ctx context.Context, update func(data map[string]string)) error {
	factory := informers.NewSharedInformerFactoryWithOptions(a.client, 0, informers.WithNamespace(frontProxyNamespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("metadata.name", frontProxyName).String()
		}))
	put := func(obj any) {
		if c, ok := obj.(*corev1.ConfigMap); ok && c.Name == frontProxyName {
			update(c.Data)
		}
	}
	informer := factory.Core().V1().ConfigMaps().Informer()
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    put,
		UpdateFunc: func(_, obj any) { put(obj) },
		DeleteFunc: func(any) { update(nil) },
	}); err != nil {
		return err
	}
	factory.Start(ctx.Done())
	<-ctx.Done()
	factory.Shutdown()
	return nil
}

// Announce makes the API server check now whether netmaster is available. Otherwise it takes up to half a minute. It
// has no effect if netmaster is not registered or has no right to update the APIService.
func (a *Access) Announce(ctx context.Context) {
	rest := a.client.Discovery().RESTClient()
	if rest == nil {
		return
	}
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, wellknown.AnnotationServingSince,
		time.Now().UTC().Format(time.RFC3339Nano))
	err := rest.Patch(types.MergePatchType).
		AbsPath("/apis/apiregistration.k8s.io/v1/apiservices/" + inspect.APIVersion + "." + inspect.Group).
		Body([]byte(patch)).
		Do(ctx).
		Error()
	if err != nil {
		a.log.Debug("could not update the APIService", "error", err)
	}
}
