package policy

import (
	"fmt"
	"strings"
)

// OriginsText names the first few places that rules of a direction came from: "shop/db ingress[0]", or "shop/db
// ingress" for the isolation itself.
func OriginsText(d Direction, origins []Origin) string {
	const most = 3
	var parts []string
	for _, o := range origins[:min(len(origins), most)] {
		if o.Rule < 0 {
			parts = append(parts, fmt.Sprintf("%s %s", o.Policy, d))
		} else {
			parts = append(parts, fmt.Sprintf("%s %s[%d]", o.Policy, d, o.Rule))
		}
	}
	if len(origins) > most {
		parts = append(parts, fmt.Sprintf("and %d more", len(origins)-most))
	}
	return strings.Join(parts, ", ")
}
