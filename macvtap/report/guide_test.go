package report

import (
	"bytes"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/macvtap"
	"github.com/flowkeep/flowkeep/macvtap/api/v1alpha1"
	"sigs.k8s.io/yaml"
)

var fenced = regexp.MustCompile("(?s)```(yaml|json)\n(.*?)```")

// exposed is a line of the guide.
type exposed struct {
	Resource, Parent, Mode string
	Quantity               int
}

// What docs/macvtap.md says that the three hosts expose, they expose: the example is read out of the document and run.
func TestGuide(t *testing.T) {
	guide, err := os.ReadFile("../../docs/macvtap.md")
	if err != nil {
		t.Fatal(err)
	}
	var hosts map[string][]string
	var policies []macvtap.Policy
	ran, configs := 0, 0
	for _, m := range fenced.FindAllSubmatch(guide, -1) {
		switch text := m[2]; {
		case string(m[1]) == "json":
			configs++
			if config, err := macvtap.ParseConfig(text); err != nil || len(config.Problems) > 0 || len(config.Entries) != 2 {
				t.Errorf("%s: %+v, %v", text, config, err)
			}
		case bytes.Contains(text, []byte("kind: MacvtapNetworkNodePolicy")):
			o := &v1alpha1.MacvtapNetworkNodePolicy{}
			if err := yaml.UnmarshalStrict(text, o); err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			policies = []macvtap.Policy{Policy(o)}
		case bytes.Contains(text, []byte("kind: NetworkAttachmentDefinition")): // the CNI plugin's
		case hosts == nil:
			if err := yaml.UnmarshalStrict(text, &hosts); err != nil {
				t.Fatal(err)
			}
		default:
			want := map[string][]exposed{}
			if err := yaml.UnmarshalStrict(text, &want); err != nil {
				t.Fatal(err)
			}
			ran++
			if got := exposedBy(hosts, policies); !reflect.DeepEqual(got, want) {
				t.Errorf("%+v, and the guide says %+v", got, want)
			}
		}
	}
	if len(hosts) != 3 || ran != 2 || configs != 1 {
		t.Errorf("%d hosts, %d examples, %d configurations", len(hosts), ran, configs)
	}
}

// exposedBy is what the hosts expose, of which h1 and h2 are tagged.
func exposedBy(hosts map[string][]string, policies []macvtap.Policy) map[string][]exposed {
	got := map[string][]exposed{}
	for host, links := range hosts {
		in := macvtap.Input{Policies: policies, Labels: map[string]string{}}
		if host != "h3" {
			in.Labels["macvtapAware"] = "true"
		}
		for _, name := range links {
			l := macvtap.Link{Name: name, Physical: true, Up: true}
			if strings.HasPrefix(name, "bond") {
				l.Physical, l.Kind = false, "bond"
			}
			in.Links = append(in.Links, l)
		}
		for _, r := range macvtap.Select(in).Resources {
			for _, p := range r.Parents {
				got[host] = append(got[host], exposed{r.Name, p.Link, string(p.Mode), p.Capacity})
			}
		}
	}
	return got
}
