package watch

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// kept is an object in an informer's store: the converted value, and the metadata that client-go needs.
type kept[S any] struct {
	metav1.ObjectMeta
	value *S
}

func keep[S any](o any, value *S) *kept[S] {
	k := &kept[S]{value: value}
	if m, ok := o.(metav1.Object); ok {
		k.Namespace, k.Name = m.GetNamespace(), m.GetName()
		k.UID, k.ResourceVersion = m.GetUID(), m.GetResourceVersion()
	}
	return k
}
