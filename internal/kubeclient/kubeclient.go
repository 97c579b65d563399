// Package kubeclient makes clients for Flowkeep's own kinds, and explains what the API server refuses.
package kubeclient

import (
	"errors"
	"fmt"

	"github.com/flowkeep/flowkeep/internal/refusal"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
)

// New returns a client for the kinds of one version of a group, which add knows (AddToScheme of its API package). It
// sends no request.
func New(cfg *rest.Config, version schema.GroupVersion, add func(*runtime.Scheme) error) (*rest.RESTClient, error) {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	if err := add(scheme); err != nil {
		return nil, err
	}
	own := rest.CopyConfig(cfg)
	own.GroupVersion, own.APIPath = &version, "/apis"
	own.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	client, err := rest.RESTClientFor(own)
	if err != nil {
		return nil, fmt.Errorf("make a client for %s: %w", version, err)
	}
	return client, nil
}

// IsUnknownKind reports whether the API server does not serve the kind of a request. It returns false if the kind is
// served and the object does not exist.
func IsUnknownKind(err error) bool {
	status, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok || !apierrors.IsNotFound(err) {
		return false
	}
	// Where no Status object answered, client-go's error has the name of the request.
	isClients := apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
	return isClients || status.ErrStatus.Details == nil || status.ErrStatus.Details.Name == ""
}

// Explained returns the error with advice if the API server does not serve the kinds, or if a role is missing.
func Explained(err error, kinds, roles string) error {
	if IsUnknownKind(err) {
		return fmt.Errorf("the API server does not know %s: %w (kubectl apply -f deploy/crds)", kinds, err)
	}
	return refusal.Explained(err, roles)
}
