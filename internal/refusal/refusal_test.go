package refusal

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// What each refusal says is what an API server says; that of roles and of the policy of deploy/own-node.yaml is held to a real one in deploy.
func TestExplained(t *testing.T) {
	things := schema.GroupResource{Group: "nmstate.io", Resource: "nodenetworkstates"}
	for _, c := range []struct{ message, want string }{
		{`User "jane" cannot patch resource "nodenetworkstates" in API group "nmstate.io" at the cluster scope`, "bind the role"},
		{`User "jane" cannot list resource "x" in API group "" in the namespace "a": RBAC: clusterrole.rbac.authorization.k8s.io "b" not found`, "bind the role"},
		{`ValidatingAdmissionPolicy 'flowkeep-own-node' with binding 'flowkeep-own-node' denied request: an agent writes…`, "--node-name must be"},
		{`ValidatingAdmissionPolicy 'acme' with binding 'acme' denied request: User "a" cannot do that`, "validatingadmissionpolicy acme -o yaml"},
		{`admission webhook "acme.example.org" denied the request: no`, "webhook acme.example.org"},
		{`exceeded quota: small`, ""},
	} {
		err := apierrors.NewForbidden(things, "node1", errors.New(c.message))
		got := Explained(fmt.Errorf("write: %w", err), "bind the role")
		if !errors.Is(got, err) || !strings.Contains(got.Error(), c.message) || !strings.Contains(got.Error(), c.want) || c.want != "bind the role" && strings.Contains(got.Error(), "bind the role") {
			t.Errorf("%v; want %q", got, c.want)
		}
	}
	for _, err := range []error{nil, errors.New(`User "jane" cannot`), apierrors.NewNotFound(things, `: User "a" cannot b`)} {
		if got := Explained(err, "bind the role"); got != err { //nolint:errorlint // the very same
			t.Errorf("%v", got)
		}
	}
}
