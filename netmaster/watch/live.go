package watch

import (
	"context"
	"fmt"

	"github.com/flowkeep/flowkeep/internal/kube"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// Version tells a NetworkPolicy from those of its name before and after it, and its specifications from each other.
type Version struct {
	UID        string
	Generation int64
	Mode       string // policy.Policy.Mode: an annotation, which no generation tells of
}

// Version asks the API server for a NetworkPolicy as it is now, which may be newer than what was watched; false if there is
// none.
func (w *Watcher) Version(ctx context.Context, namespace, name string) (Version, bool, error) {
	p, err := w.client.NetworkingV1().NetworkPolicies(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return Version{}, false, nil
	case err != nil:
		return Version{}, false, fmt.Errorf("ask the API server for NetworkPolicy %s/%s: %w", namespace, name, err)
	}
	return Version{string(p.UID), p.Generation, kube.Policy(p).Mode()}, true, nil
}

// lastApplied is kubectl's own copy of what was applied.
const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// Manifest asks the API server for a NetworkPolicy in YAML, without what only machines write there; false if there is none.
func (w *Watcher) Manifest(ctx context.Context, namespace, name string) (text string, there bool, err error) {
	p, err := w.client.NetworkingV1().NetworkPolicies(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return "", false, nil
	case err != nil:
		return "", false, fmt.Errorf("ask the API server for NetworkPolicy %s/%s: %w", namespace, name, err)
	}
	p.APIVersion, p.Kind = "networking.k8s.io/v1", "NetworkPolicy"
	p.ManagedFields, p.ResourceVersion, p.UID, p.CreationTimestamp, p.Generation = nil, "", "", metav1.Time{}, 0
	delete(p.Annotations, lastApplied)
	b, err := yaml.Marshal(p)
	return string(b), true, err
}
