package fleet

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Reasons of problems with Secrets of listeners.
const (
	ReasonSecretNotFound   = "SecretNotFound"   // the hub has none of the name
	ReasonSecretUnreadable = "SecretUnreadable" // policy sync may not read it
)

// maxSecretBytes bounds the Secrets of one gateway: they are in one work with it.
const maxSecretBytes = 128 << 10

// tlsKeys are the keys of a TLS Secret that a gateway serves with. No others are sent.
var tlsKeys = []string{corev1.TLSCertKey, corev1.TLSPrivateKeyKey}

var secretKind = Kind{GroupVersionKind: schema.GroupVersionKind{Version: "v1", Kind: "Secret"}, Resource: "secrets"}

// Secret is a Secret that a listener of a hub Gateway names.
type Secret struct {
	Name
	// Object is what SlimSecret keeps of it; nil: the hub has none.
	Object Object
	// Err is why it can't be read. What was sent of it stays.
	Err error
}

// SecretSource names a hub Secret as a source.
func SecretSource(n Name) Source { return Source{"", secretKind.Kind, n} }

func isSecret(c *Copy) bool { return c.Source.Kind == secretKind.Kind && c.Source.Group == "" }

// SecretRefs returns the Secrets of a Gateway's own namespace that its listeners' certificateRefs name, in order, each
// once. Those of other namespaces are not
// sent: no ReferenceGrant of the hub is checked.
func SecretRefs(gateway Object) (refs []Name) {
	namespace := nameOf(gateway).Namespace
	mapSecretRefs(object(gateway, "spec"), namespace, func(name Name) Name {
		refs = append(refs, name)
		return name
	})
	slices.SortFunc(refs, Name.Compare)
	return slices.Compact(refs)
}

// mapSecretRefs gives the refs of a Gateway's spec to Secrets of its own namespace other names. The spec is not
// changed.
func mapSecretRefs(spec Object, namespace string, to func(Name) Name) Object {
	all, _ := spec["listeners"].([]any)
	listeners := make([]any, len(all))
	for i, one := range all {
		listener, _ := one.(map[string]any)
		tls := object(listener, "tls")
		refs, has := tls["certificateRefs"].([]any)
		if listeners[i] = one; !has {
			continue
		}
		named := make([]any, len(refs))
		for j, r := range refs {
			ref, _ := r.(map[string]any)
			named[j] = r
			if !refersToSecret(ref, namespace) {
				continue
			}
			name := to(Name{namespace, textOf(ref, "name")})
			ref = renamed(ref, name)
			named[j] = ref
		}
		listener, tls = maps.Clone(listener), maps.Clone(tls)
		tls["certificateRefs"], listener["tls"] = named, tls
		listeners[i] = listener
	}
	if len(all) == 0 {
		return spec
	}
	spec = maps.Clone(spec)
	spec["listeners"] = listeners
	return spec
}

func refersToSecret(ref Object, namespace string) bool {
	kind, own := textOf(ref, "kind"), textOf(ref, "namespace")
	return textOf(ref, "name") != "" && textOf(ref, "group") == "" &&
		(kind == "" || kind == secretKind.Kind) && (own == "" || own == namespace)
}

// SlimSecret returns what is sent of a Secret: its type, and the certificate and its key. It returns nil for one that
// counts as absent.
func SlimSecret(o Object) Object {
	if absent(o) {
		return nil
	}
	data, name := Object{}, nameOf(o)
	for _, key := range tlsKeys {
		if text := textOf(object(o, "data"), key); text != "" {
			data[key] = text
		}
	}
	meta := Object{"namespace": name.Namespace, "name": name.Name}
	if created := textOf(object(o, "metadata"), "creationTimestamp"); created != "" {
		meta["creationTimestamp"] = created
	}
	return Object{"metadata": meta, "type": textOf(o, "type"), "data": data}
}

func (s *Secret) check() error {
	if kind := textOf(s.Object, "type"); kind != string(corev1.SecretTypeTLS) {
		return fmt.Errorf("its type is %q, and only %s goes to clusters", kind, corev1.SecretTypeTLS)
	}
	for _, key := range tlsKeys {
		if textOf(object(s.Object, "data"), key) == "" {
			return fmt.Errorf("it has no %s", key)
		}
	}
	return nil
}

// secrets adds the Secrets of a gateway's listeners. A cluster that no decision names any more keeps what it has of
// them, and gets no others.
func (b *bundler) secrets(g *Gateway) {
	size := 0
	for i := range g.Secrets {
		s := &g.Secrets[i]
		source := SecretSource(s.Name)
		switch {
		case s.Err != nil:
			b.problem(source, "", ReasonSecretUnreadable, "%v; what was sent before stays", s.Err)
			b.holdAll(g.Clusters, source)
			continue
		case s.Object == nil:
			b.problem(source, "", ReasonSecretNotFound, "the hub has no Secret %s", s.Name)
			continue
		}
		c, err := newCopy(s.Object, secretKind, source, g.Parameters.SpokeName(s.Name), nil)
		if err == nil {
			err = s.check()
		}
		if err != nil {
			b.broken(source, g.Clusters, err)
			continue
		}
		if size += c.size(); size > maxSecretBytes {
			b.problem(source, "", ReasonTooLarge,
				"the Secrets of Gateway %s have more than %d bytes; what was sent before stays", g.Name, maxSecretBytes)
			b.holdAll(g.Clusters, source)
			continue
		}
		for _, cluster := range g.Clusters {
			if slices.Contains(g.Kept, cluster) {
				b.hold(cluster, source)
				continue
			}
			b.namespace(cluster, c.Namespace, true)
			b.add(cluster, c)
		}
	}
}

func (b *bundler) holdAll(clusters []string, source Source) {
	for _, c := range clusters {
		b.hold(c, source)
	}
}

// SecretStates is how a Secret of a gateway's listeners is in clusters.
type SecretStates struct {
	Name
	States []State
}

// WithSecrets returns a gateway's states with what its Secrets lack in the clusters where it is there. Of a cluster in
// kept nothing is wanted.
func WithSecrets(states []State, secrets []SecretStates, kept []string) []State {
	states = slices.Clone(states)
	for i := range states {
		s := &states[i]
		if s.Phase != Answered || slices.Contains(kept, s.Cluster) {
			continue
		}
		for _, secret := range secrets {
			at := slices.IndexFunc(secret.States, func(o State) bool { return o.Cluster == s.Cluster })
			if at < 0 || secret.States[at].Phase == Answered {
				continue
			}
			lacks := &secret.States[at]
			s.Phase, s.Reason = NotSent, lacks.Reason
			s.Message = fmt.Sprintf("its Secret %s: %s", secret.Name, lacks.Message)
			if lacks.Phase == Waiting {
				s.Phase = Waiting
			}
			break
		}
	}
	return states
}
