package controller

import (
	"fmt"
	"slices"

	"github.com/flowkeep/flowkeep/fleet"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Secrets are watched one by one, those alone that listeners of gateways name whose class has them go along.

// slimSecret keeps of a Secret what is sent.
func slimSecret(o *unstructured.Unstructured) any {
	kept := fleet.SlimSecret(o.Object)
	if kept == nil {
		return nil
	}
	return &object{Object: kept}
}

func secretFeed(name fleet.Name) feed {
	return feed{resource: secretResource, namespace: name.Namespace, name: name.Name}
}

// sendsSecrets reports whether a class has Secrets go along.
func (st *subscriptions) sendsSecrets() bool {
	for _, c := range st.classes {
		if c.Parameters.Secrets {
			return true
		}
	}
	return false
}

// settleSecrets adds the Secrets that are to be watched.
func (st *subscriptions) settleSecrets(want map[feed]bool) {
	st.unsettled = false
	if !st.sendsSecrets() {
		return
	}
	st.w.eachRow(gateways, func(_ fleet.Name, row any) {
		o := row.(*object).Object
		class, _, _ := unstructured.NestedString(o, "spec", "gatewayClassName")
		c := st.classes[class]
		if c == nil || !c.Parameters.Secrets || fleet.IsCopyOrGoing(o) || fleet.PlacementOf(o).Name == "" {
			return
		}
		for _, name := range fleet.SecretRefs(o) {
			want[secretFeed(name)] = true
			st.open(secretFeed(name), secrets, fleet.Kind{})
		}
	})
}

// secret returns a Secret as far as it is known.
func (st *subscriptions) secret(name fleet.Name) fleet.Secret {
	s, t := fleet.Secret{Name: name}, st.w.tables[secretFeed(name)]
	switch {
	case t == nil || t.err == nil && !t.synced:
		s.Err = fmt.Errorf("Secret %s has not been read yet", name)
	case t.err != nil:
		s.Err = fmt.Errorf("Secret %s cannot be read: %w; bind the ClusterRole flowkeep-policy-sync-secrets in its namespace",
			name, t.err)
	default:
		if o, ok := t.rows[name].(*object); ok {
			s.Object = o.Object
		}
	}
	return s
}

// touchSecret marks the gateways with a listener that names a Secret.
func (st *subscriptions) touchSecret(name fleet.Name) {
	st.w.eachRow(gateways, func(gateway fleet.Name, row any) {
		if gateway.Namespace == name.Namespace && slices.Contains(fleet.SecretRefs(row.(*object).Object), name) {
			st.w.touchGateway(gateway)
		}
	})
}

// secretStates returns how the Secrets of a gateway are in its clusters.
func (c *reporter) secretStates(k *known, g *fleet.Gateway) (all []fleet.SecretStates) {
	for _, s := range g.Secrets {
		states := c.states(k, fleet.SecretSource(s.Name), "Secret", g.Parameters.SpokeName(s.Name), g.Clusters)
		all = append(all, fleet.SecretStates{Name: s.Name, States: states})
	}
	return all
}
