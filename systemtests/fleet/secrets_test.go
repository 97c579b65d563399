package fleet_test

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"
)

func secretPath(namespace, name string) string {
	return "/api/v1/namespaces/" + namespace + "/secrets/" + name
}

// certificate creates a TLS Secret. Its content is not a valid certificate, since no component parses it here.
func (w *world) certificate(name, content string) {
	w.Helper()
	w.on(w.Hub, w.ns, fmt.Sprintf(`{apiVersion: v1, kind: Secret, metadata: {name: %s}, type: kubernetes.io/tls, data: {tls.crt: %s, tls.key: a2V5}}`,
		name, base64.StdEncoding.EncodeToString([]byte(content))))
}

// TLS Secrets of listeners go along where the class has them, to the clusters that the Placement names and to no
// others. Copies of policies have the annotations of the class, and what each cluster reports of a gateway is in an
// annotation of it.
func TestFleetSecrets(t *testing.T) {
	w := newSynced(t)
	w.certificate("cert", "one")
	w.place("first", "c1")
	w.class(rateLimits, `listenerSecrets: "true"`, `policyAnnotations: '{kuadrant.io/policy-synced: "true"}'`)
	w.on(w.Hub, w.ns, fmt.Sprintf(`{apiVersion: %s, kind: Gateway, metadata: {name: web, labels: {cluster.open-cluster-management.io/placement: first}},
		spec: {gatewayClassName: %s, listeners: [{name: https, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: cert}]}}]}}`, gatewayAPI, w.ns))
	w.rates("limits", "web", 10)
	w.there(w.c1, gatewayPath(w.ns, "web"))
	w.says(w.Hub, gatewayPath(w.ns, "web"), "fleet.flowkeep.io/Synced", "False", "SecretUnreadable", "flowkeep-policy-sync-secrets")
	w.must(w.ReadSecrets(w.ctx, w.ns))
	w.shows(w.c1, secretPath(w.ns, "cert"), base64.StdEncoding.EncodeToString([]byte("one")), "data", "tls.crt")
	w.says(w.Hub, gatewayPath(w.ns, "web"), "fleet.flowkeep.io/Synced", "True")
	w.shows(w.c1, ratesPath(w.ns, "limits"), "true", "metadata", "annotations", "kuadrant.io/policy-synced")
	w.certificate("cert", "two")
	w.shows(w.c1, secretPath(w.ns, "cert"), base64.StdEncoding.EncodeToString([]byte("two")), "data", "tls.crt")
	w.tell(w.c1, gatewayPath(w.ns, "web"), func(generation string) string {
		return fmt.Sprintf(`{"addresses": [{"type": "IPAddress", "value": "192.0.2.9"}], "conditions": %s, "listeners": [{"name": "https", "attachedRoutes": 2,
			"supportedKinds": [], "conditions": []}]}`, conditionList(generation, "Accepted True Accepted", "Programmed True Programmed"))
	})
	w.shows(w.Hub, gatewayPath(w.ns, "web"), `{"c1":{"addresses":[{"type":"IPAddress","value":"192.0.2.9"}],"attachedRoutes":{"https":2}}}`,
		"metadata", "annotations", "fleet.flowkeep.io/clusters")
	works, err := w.works()
	w.must(err)
	for _, work := range works {
		if text := manifests(works); work.Metadata.Namespace == "c2" || strings.Count(text, `"tls.key"`) != 1 {
			t.Errorf("works carry %s", text)
		}
	}
	w.parameters(rateLimits, `listenerSecrets: "false"`)
	w.gone(w.c1, secretPath(w.ns, "cert"))
	w.there(w.c1, gatewayPath(w.ns, "web"))
	w.must(w.Hub.Delete(w.ctx, secretPath(w.ns, "cert"), settling))
}
