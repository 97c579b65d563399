package watch

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// kept is what an informer keeps of an object: the value that counts, and the little of the metadata that client-go asks
// for.
type kept[S any] struct {
	metav1.ObjectMeta
	value *S
}

func keep[S any](o any, value *S) *kept[S] {
	k := &kept[S]{value: value}
	if m, ok := o.(metav1.Object); ok {
		k.Namespace, k.Name, k.UID, k.ResourceVersion = m.GetNamespace(), m.GetName(), m.GetUID(), m.GetResourceVersion()
	}
	return k
}
