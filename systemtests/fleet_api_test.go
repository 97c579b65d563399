package systemtests

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

// fleetCase is an object of group fleet.flowkeep.io that the API server takes, or refuses with these words.
type fleetCase struct {
	Kind string
	Spec json.RawMessage
	Says string
}

const fleetPath = "/apis/fleet.flowkeep.io/v1alpha1/namespaces/default/"

// Nonsense is refused on apply, with words that say what is wrong; what makes sense is taken as it was written.
func TestFleetObjectsAreCheckedOnApply(t *testing.T) {
	w := setup(t)
	w.applyCRDs()
	raw, err := os.ReadFile("testdata/fleet/objects.json")
	w.must(err)
	var cases []fleetCase
	w.must(json.Unmarshal(raw, &cases))
	api, err := w.API(w.ctx)
	w.must(err)
	resources := map[string]string{"PolicyOverride": "policyoverrides", "NetworkPolicySet": "networkpolicysets", "NetworkPolicyEnforcement": "networkpolicyenforcements"}
	for _, c := range cases {
		object := map[string]any{"apiVersion": "fleet.flowkeep.io/v1alpha1", "kind": c.Kind, "metadata": map[string]string{"name": "tried"}}
		if c.Spec != nil {
			object["spec"] = c.Spec
		}
		text, err := json.Marshal(object)
		w.must(err)
		_, err = api.Ask(w.ctx, "POST", fleetPath+resources[c.Kind]+"?dryRun=All&fieldValidation=Strict", text)
		var status *cluster.StatusError
		var told struct{ Message string }
		switch {
		case c.Says == "" && err != nil:
			t.Errorf("%s %s: %v", c.Kind, c.Spec, err)
		case c.Says != "" && (!errors.As(err, &status) || json.Unmarshal([]byte(status.Body), &told) != nil || !strings.Contains(told.Message, c.Says)):
			t.Errorf("%s %s: %v, and not %q", c.Kind, c.Spec, err, c.Says)
		}
	}
}
