package fleet

import (
	"regexp"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// PolicyWithoutUs returns the status of a policy that goes along with gateways no more, without our conditions; changed
// is false where there is nothing of ours.
func PolicyWithoutUs(controller gatewayv1.GatewayController, p *Policy) (status Object, changed bool) {
	old := statusOf(p.Object)
	if !slices.ContainsFunc(listOf(old, "ancestors"), func(e any) bool { return isEntryOf(e, controller) }) &&
		!slices.ContainsFunc(listOf(old, "conditions"), func(c any) bool { return domainOf(controller).owns(typeOf(c)) }) {
		return old, false
	}
	return PolicyStatus(controller, &PolicyReport{Policy: *p}, metav1.Time{})
}

// ourWords are how what we say of Accepted and Programmed begins.
var ourWords = regexp.MustCompile(`^(in \d+ clusters?$|not in \d+ of \d+ clusters?: |it goes to no cluster$|it has no label ` +
	regexp.QuoteMeta(LabelPlacement) + `|there is no Placement |GatewayClass \S+: )`)

// GatewayWithoutUs returns the status of a Gateway that is another controller's now, or of none, without our
// conditions; changed is false where there is nothing of ours. Accepted and Programmed are of types that every
// controller has, so they go only while they are in our words, and addresses and listeners only with Programmed: a new
// controller may have written its own already.
func GatewayWithoutUs(controller gatewayv1.GatewayController, gateway Object) (status Object, changed bool) {
	old, own := statusOf(gateway), domainOf(controller)
	conditions := listOf(old, "conditions")
	if IsCopyOrGoing(gateway) || !slices.ContainsFunc(conditions, func(c any) bool { return own.owns(typeOf(c)) }) {
		return old, false
	}
	status = old
	conditions = slices.DeleteFunc(slices.Clone(conditions), func(c any) bool {
		m, _ := c.(map[string]any)
		switch typ := typeOf(c); {
		case own.owns(typ):
			return true
		case (typ == conditionAccepted || typ == conditionProgrammed) && ourWords.MatchString(textOf(m, "message")):
			if typ == conditionProgrammed {
				status = with(with(status, "addresses", nil), "listeners", nil)
			}
			return true
		}
		return false
	})
	return with(status, "conditions", conditions), true
}

// IsCopyOrGoing reports whether an object counts as absent: it is being deleted, or is a copy, on a hub that is a spoke
// too.
func IsCopyOrGoing(o Object) bool { return absent(o) }
