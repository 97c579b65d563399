package systemtests

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

// holds queries a node until it says so of a Service: changes come once a second.
func (w *world) holds(node, service string, wants ...string) {
	w.Helper()
	w.must(cluster.Until(w.ctx, settling, func() error {
		text, err := w.NetctlAs(w.ctx, "", "service", "show", service, "--node", node, "--from-node")
		missing := slices.DeleteFunc(slices.Clone(wants), func(want string) bool { return strings.Contains(text, want) })
		if err != nil || len(missing) > 0 {
			return errors.Join(err, fmt.Errorf("%s of %s without %q:\n%s", service, node, missing, text))
		}
		return nil
	}))
}

// TestServicesOnNodes: nodes hold Services and their endpoints as the API server has them, and what their pods would get
// of these.
func TestServicesOnNodes(t *testing.T) {
	w := setup(t)
	ns := threePods(w)
	service(w, ns, "b")
	for _, node := range []string{"node1", "node2"} {
		w.holds(node, ns+"/b", "(ClusterIP): translated, ready endpoints", ns+"/b", "1/1")
	}
	w.apply(ns, `{apiVersion: v1, kind: Service, metadata: {name: local}, spec: {internalTrafficPolicy: Local,
		selector: {app: b}, ports: [{port: 8000, targetPort: 80}]}}`)
	w.apply(ns, `{apiVersion: v1, kind: Service, metadata: {name: nobody}, spec: {selector: {app: nobody},
		ports: [{port: 8000, targetPort: 80}]}}`)
	w.holds("node1", ns+"/local", "translated, internalTrafficPolicy: Local, endpoints of the node")
	w.holds("node2", ns+"/local", "dropped, internalTrafficPolicy: Local, and no endpoint of the node serves")
	w.holds("node2", ns+"/nobody", "rejected, there are no endpoints")
	text, err := w.Netctl(w.ctx, "service", "ls", "-n", ns)
	w.must(err)
	if !strings.Contains(text, "nobody") {
		t.Errorf("netctl service ls:\n%s", text)
	}
}
