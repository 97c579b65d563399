// Package refusal explains a 403 of the API server: RBAC or an admission policy rejected the request.
package refusal

import (
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// ownNode is the ValidatingAdmissionPolicy of deploy/own-node.yaml.
const ownNode = "flowkeep-own-node"

// Explained returns the error with advice if it is a 403: roles for RBAC, other advice for admission, which no role
// overrides.
func Explained(err error, roles string) error {
	if err == nil || !apierrors.IsForbidden(err) {
		return err
	}
	if do := advice(err.Error(), roles); do != "" {
		return fmt.Errorf("%w (%s)", err, do)
	}
	return err
}

// advice goes by the message: the API server gives reason and code of a refusal by the roles to what admission
// refuses, too.
func advice(message, roles string) string {
	policy, byPolicy := between(message, "ValidatingAdmissionPolicy '", "'")
	webhook, byWebhook := between(message, `admission webhook "`, `"`)
	switch {
	case byPolicy && policy == ownNode:
		return "the API server takes who asks for the agent of another node, or of none: --node-name must be the node that the pod of the token runs on; with a kubeconfig, outside of pods, give each node a user of its own"
	case byPolicy:
		return "that is no matter of roles: kubectl get validatingadmissionpolicy " + policy +
			" -o yaml shows what the cluster demands"
	case byWebhook:
		return "that is no matter of roles: the cluster's admission webhook " + webhook + " does not want it"
	case strings.Contains(message, `: User "`) && strings.Contains(message, `" cannot `): // as all authorizers say it
		return roles
	}
	return "" // of a quota, a namespace that is on its way: it says so
}

// between returns the text between begin and end.
func between(text, begin, end string) (word string, ok bool) {
	_, rest, found := strings.Cut(text, begin)
	word, _, ok = strings.Cut(rest, end)
	return word, found && ok
}
