package hostile

import (
	"context"
	"fmt"
	"net/http"
)

// namedPolicies is in how many namespaces a policy names a port, of any pod of the cluster.
const namedPolicies = 20

// prepare creates what attacks need besides the cluster.
func (a *Arena) prepare(ctx context.Context) error {
	for n := range namedPolicies {
		path := "/apis/networking.k8s.io/v1/namespaces/" + a.NamespaceName(2+n) + "/networkpolicies"
		object := `{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "named"},
			"spec": {"podSelector": {}, "policyTypes": ["Egress"], "egress": [{"to": [{"namespaceSelector": {}}],
			"ports": [{"port": "http"}]}]}}`
		if err := a.Hub.Do(ctx, http.MethodPost, path, []byte(object)); err != nil {
			return fmt.Errorf("policy with a named port: %w", err)
		}
	}
	return a.permitQueries(ctx)
}
