package deploy

import (
	"encoding/json"
	"flag"
	"fmt"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/internal/reference"
)

var update = flag.Bool("update", false, "write docs/reference anew")

// holders say who has a role: programs by their ServiceAccounts, and people, to whom an administrator gives it.
var holders = map[string]string{
	"flowkeep-netmaster":              "netmaster",
	"flowkeep-node-config":            "netmaster node-config",
	"flowkeep-policy-sync":            "netmaster policy-sync, on the hub",
	"flowkeep-policy-sync-parameters": "netmaster policy-sync, in the namespaces of its parameters",
	"flowkeep-policy-sync-secrets":    "netmaster policy-sync, in the namespaces of gateways with Secrets that go along",
	"flowkeep-policy-sync-kinds":      "netmaster policy-sync, on the hub",
	"flowkeep-policy-sync-all-kinds":  "netmaster policy-sync, on the hub: the rules of all roles with the label `fleet.flowkeep.io/aggregate-to-policy-sync`",
	"flowkeep-node-state":             "netplugin node-state, on every node",
	"flowkeep-macvtap":                "netplugin macvtap, on every node",
	"flowkeep-view":                   "people: netctl",
	"flowkeep-capture":                "people: netctl capture and trace, in a namespace",
	"flowkeep-admin":                  "people: all of netctl",
	"flowkeep-wait":                   "people who have edit or admin: netctl policy wait",
	"flowkeep-services-view":          "people who have view, edit or admin: netctl service",
	"flowkeep-node-state-view":        "people: netctl node-state",
	"flowkeep-macvtap-view":           "people: netctl macvtap",
	"flowkeep-fleet-view":             "people: netctl fleet, on the hub",
	"flowkeep-fleet-view-parameters":  "people: netctl fleet, in the namespaces of parameters",
}

// rights are what each role may do, as a document.
func rights(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	b.WriteString("# Rights at the API server\n\nWritten by `scripts/generate` from `deploy/roles.yaml`, which says for what each rule is. " +
		"netplugin, flowkeep-cni, Open vSwitch and memcached have none: their pods mount no token for the API server.\n")
	for _, o := range objects(t, "roles.yaml") {
		name := at(o, "metadata", "name").(string)
		who, where := holders[name], "the cluster"
		if who == "" {
			t.Errorf("it is not said who has %s", name)
		}
		if namespace, ok := at(o, "metadata", "namespace").(string); ok {
			where = "namespace " + namespace
		}
		fmt.Fprintf(&b, "\n## %s %s\n\nOf %s. Who has it: %s.\n", o["kind"], name, where, who)
		text, err := json.Marshal(o["rules"])
		if err != nil {
			t.Fatal(err)
		}
		var rules []rule
		if err := json.Unmarshal(text, &rules); err != nil {
			t.Fatal(err)
		}
		if len(rules) > 0 {
			b.WriteString("\n| group | resources | only these | verbs |\n|---|---|---|---|\n")
		}
		for _, r := range rules {
			groups := strings.Join(r.APIGroups, ", ")
			if groups == "" {
				groups = "core"
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", groups, strings.Join(r.Resources, ", "), strings.Join(r.ResourceNames, ", "), strings.Join(r.Verbs, ", "))
		}
	}
	return b.String()
}

func TestReference(t *testing.T) {
	reference.CheckFile(t, rights(t), "../docs/reference/rights.md", *update)
}

// Of what is always installed, netmaster's pods alone have a token for the API server.
func TestTokens(t *testing.T) {
	all := objects(t, "flowkeep.yaml")
	accounts := map[string]bool{}
	for _, o := range all {
		if o["kind"] == "ServiceAccount" {
			accounts[at(o, "metadata", "name").(string)] = at(o, "automountServiceAccountToken") != false
		}
	}
	pods := 0
	for _, o := range all {
		spec, ok := at(o, "spec", "template", "spec").(map[string]any)
		if !ok {
			continue
		}
		pods++
		name, account := at(o, "metadata", "name").(string), "default"
		if a, ok := spec["serviceAccountName"].(string); ok {
			account = a
		}
		mounted, known := accounts[account]
		if own, ok := spec["automountServiceAccountToken"].(bool); ok {
			mounted, known = own, true
		}
		if !known || mounted != (name == "netmaster") {
			t.Errorf("%s: a token is mounted: %t, of account %s", name, mounted, account)
		}
	}
	if pods < 3 {
		t.Fatalf("only %d kinds of pods were seen", pods)
	}
}
