package native

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write the documents of the system tests")

// spellings has the documents of all field tests, for the system test that sends them to the API server.
const spellings = "../../systemtests/testdata/nodestate/spellings.json"

// TestSpellingsForTheAPIServer keeps the file up to date: what the backend accepts the API server has to accept.
func TestSpellingsForTheAPIServer(t *testing.T) {
	var lines []string
	add := func(kind, document string) {
		text, err := yaml.YAMLToJSON([]byte(document))
		if err != nil {
			t.Fatalf("%s: %v", document, err)
		}
		lines = append(lines, fmt.Sprintf(`{"%s": %s}`, kind, bytes.TrimSpace(text)))
	}
	for _, f := range fieldTests() {
		for _, value := range f.values {
			add("node", strings.ReplaceAll(f.document, "VALUE", value))
		}
	}
	for _, c := range allExamples(t) {
		switch {
		case c.Says != "":
		case c.Policy != "":
			add("policy", c.Policy)
		default:
			add("node", c.Desired)
		}
	}
	want := "[\n" + strings.Join(lines, ",\n") + "\n]\n"
	if *update {
		if err := os.WriteFile(spellings, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(spellings)
	if err != nil || string(have) != want {
		t.Errorf("%s has other documents than the tests of this package: run this test with -update (%v)", spellings, err)
	}
}
