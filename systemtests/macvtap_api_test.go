package systemtests

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

// macvtapCase is the spec of a policy that the API server takes, or refuses with these words.
type macvtapCase struct {
	Policy json.RawMessage
	Says   string
}

// Nonsense is refused on apply, with a sentence that says what is wrong; what makes sense is taken.
func TestMacvtapPoliciesAreCheckedOnApply(t *testing.T) {
	w := setup(t)
	w.applyCRDs()
	raw, err := os.ReadFile("testdata/macvtap/policies.json")
	w.must(err)
	var cases []macvtapCase
	w.must(json.Unmarshal(raw, &cases))
	api, err := w.API(w.ctx)
	w.must(err)
	for _, c := range cases {
		object := fmt.Sprintf(`{"apiVersion": "macvtap.network.kubevirt.io/v1alpha1", "kind": "MacvtapNetworkNodePolicy", "metadata": {"name": "tried"}, "spec": %s}`, c.Policy)
		_, err := api.Ask(w.ctx, "POST", "/apis/macvtap.network.kubevirt.io/v1alpha1/namespaces/default/macvtapnetworknodepolicies?dryRun=All&fieldValidation=Strict", []byte(object))
		var status *cluster.StatusError
		var told struct{ Message string }
		switch {
		case c.Says == "" && err != nil:
			t.Errorf("%s: %v", c.Policy, err)
		case c.Says != "" && (!errors.As(err, &status) || json.Unmarshal([]byte(status.Body), &told) != nil || !strings.Contains(told.Message, c.Says)):
			t.Errorf("%s: %v, and not %q", c.Policy, err, c.Says)
		}
	}
}
