package watch

import (
	"context"
	"fmt"

	"github.com/flowkeep/flowkeep/policydb/kube"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// Version identifies a specification of a NetworkPolicy.
type Version struct {
	UID        string // distinguishes recreated policies of the same name
	Generation int64
	Mode       string // policy.Policy.Mode: an annotation, which does not change the generation
}

// Version reads a NetworkPolicy from the API server, which may be newer than the watched one; false if there is none.
func (w *Watcher) Version(ctx context.Context, namespace, name string) (Version, bool, error) {
	p, err := w.client.NetworkingV1().NetworkPolicies(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return Version{}, false, nil
	case err != nil:
		return Version{}, false, fmt.Errorf("read NetworkPolicy %s/%s from the API server: %w", namespace, name, err)
	}
	return Version{string(p.UID), p.Generation, kube.Policy(p).Mode()}, true, nil
}

// lastApplied is the annotation with kubectl's copy of the applied manifest.
const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// Manifest reads a NetworkPolicy from the API server and returns its YAML without generated fields; false if there
// is none.
func (w *Watcher) Manifest(ctx context.Context, namespace, name string) (text string, there bool, err error) {
	p, err := w.client.NetworkingV1().NetworkPolicies(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return "", false, nil
	case err != nil:
		return "", false, fmt.Errorf("read NetworkPolicy %s/%s from the API server: %w", namespace, name, err)
	}
	p.APIVersion, p.Kind = "networking.k8s.io/v1", "NetworkPolicy"
	p.ManagedFields, p.ResourceVersion, p.UID, p.CreationTimestamp, p.Generation = nil, "", "", metav1.Time{}, 0
	delete(p.Annotations, lastApplied)
	b, err := yaml.Marshal(p)
	return string(b), true, err
}
