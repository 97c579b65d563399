package kube

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func read1(t *testing.T, text string, o Options) (names, notes []string, err error) {
	t.Helper()
	objects, err := ReadFrom("f.yaml", strings.NewReader(text))
	if err != nil {
		return nil, nil, err
	}
	list, notes, err := Policies(objects, o)
	for _, p := range list {
		names = append(names, p.Namespace+"/"+p.Name)
	}
	return names, notes, err
}

const np = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\n"

func TestManifestsAsPeopleWriteThem(t *testing.T) {
	for name, c := range map[string]struct {
		text  string
		want  string
		notes string
		o     Options
	}{
		"one":                         {text: np + "metadata: {name: a, namespace: shop}\n", want: "shop/a"},
		"no namespace":                {text: np + "metadata: {name: a}\n", want: "default/a"},
		"the namespace asked for":     {text: np + "metadata: {name: a}\n", want: "web/a", o: Options{Namespace: "web", Only: true}},
		"documents and comments":      {text: "# first\n---\n" + np + "metadata: {name: a}\n--- # second\n" + np + "metadata: {name: b}\n---\n# nothing\n---\n...\n", want: "default/a default/b"},
		"an end of a document":        {text: np + "metadata: {name: a}\n...\n" + np + "metadata: {name: b}\n", want: "default/a default/b"},
		"content behind the dashes":   {text: "--- {apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: a}}\n---\t{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: b}}", want: "default/a default/b"},
		"of another system":           {text: "\uFEFF" + strings.ReplaceAll(np+"metadata: {name: a}\n---\n"+np+"metadata: {name: b}\n", "\n", "\r\n"), want: "default/a default/b"},
		"JSON, one after the other":   {text: `{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":"a"}} {"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":"b"}}`, want: "default/a default/b"},
		"flow style is no JSON":       {text: "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: a}}", want: "default/a"},
		"a list":                      {text: "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: a}}\n- {apiVersion: v1, kind: Pod, metadata: {name: p}}\n", want: "default/a", notes: "left out: Pod p"},
		"a typed list":                {text: "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicyList\nitems:\n- {metadata: {name: a}}\n- {metadata: {name: b, namespace: x}}\n", want: "default/a x/b"},
		"an empty list":               {text: "apiVersion: v1\nkind: List\nitems: []\n"},
		"other kinds":                 {text: "{apiVersion: apps/v1, kind: Deployment, metadata: {name: d}}\n---\n{apiVersion: projectcalico.org/v3, kind: NetworkPolicy, metadata: {name: c}}\n", notes: "only NetworkPolicies count, left out: Deployment d|only NetworkPolicies count, left out: NetworkPolicy c"},
		"many of another kind":        {text: strings.Repeat("---\n{apiVersion: v1, kind: Pod, metadata: {name: p}}\n", 5), notes: "left out: Pod p, p, p and 2 more"},
		"twice":                       {text: np + "metadata: {name: a}\n---\n" + np + "metadata: {name: a}\n", want: "default/a default/a", notes: "default/a is there twice, in f.yaml, document 1 (line 1) and in f.yaml, document 2 (line 4): the latter counts"},
		"what is to be deleted":       {text: np + "metadata: {name: a}\nspec: {podSelektor: 7}\n", want: "default/a", o: Options{Names: true}},
		"a status and managed fields": {text: np + "metadata: {name: a, resourceVersion: \"7\", managedFields: [{manager: kubectl, operation: Apply}]}\nspec: {podSelector: {}}\n", want: "default/a"},
	} {
		names, notes, err := read1(t, c.text, c.o)
		if err != nil || strings.Join(names, " ") != c.want || !strings.Contains(strings.Join(notes, "|"), c.notes) || (c.notes == "") != (len(notes) == 0) {
			t.Errorf("%s: %q %q %v, want %q %q", name, names, notes, err, c.want, c.notes)
		}
	}
}

// What the API server or kubectl would refuse is refused, with file, document and field.
func TestManifestsThatAreWrong(t *testing.T) {
	spec := func(s string) string { return np + "metadata: {name: a, namespace: shop}\nspec: " + s + "\n" }
	const at = "f.yaml, document 1 (line 1): NetworkPolicy shop/a: "
	for text, want := range map[string]string{
		"a: [":                                "f.yaml, document 1 (line 1): yaml: line 1",
		"# x\n---\nkind: Pod\n---\na: b: c\n": "f.yaml, document 2 (line 4): yaml: line 5",
		"just words":                          "it is no Kubernetes object",
		"[1, 2]":                              "it is no Kubernetes object",
		"a: 1\na: 2\n":                        "already set",
		"metadata: {name: a}":                 "it has no kind",
		"kind: Pod":                           "Pod has no apiVersion",
		"\xff\xfe":                            "no text in UTF-8",
		np:                                    "metadata.name: it has none",
		np + "metadata: {generateName: a-}":   "metadata.name: it has none",
		np + "metadata: {name: A_b}":          `metadata.name: Invalid value: "A_b"`,
		np + "metadata: {name: a, labels: {a: \"b c\"}}":                                    "metadata.labels: Invalid value",
		"{apiVersion: extensions/v1beta1, kind: NetworkPolicy, metadata: {name: a}}":        "it is NetworkPolicy in networking.k8s.io/v1",
		"{apiVersion: networking.k8s.io/v1, kind: networkpolicy, metadata: {name: a}}":      "it is NetworkPolicy in networking.k8s.io/v1",
		"{apiVersion: networking.k8s.io/v1beta1, kind: NetworkPolicy, metadata: {name: a}}": "it is NetworkPolicy in networking.k8s.io/v1",
		spec("{podSelektor: {}}"):                                                         at + `unknown field "spec.podSelektor"`,
		spec("{PodSelector: {}}"):                                                         at + `unknown field "spec.PodSelector"`,
		spec("{podSelector: [1]}"):                                                        at + "cannot unmarshal array",
		spec("{policyTypes: [Ingres]}"):                                                   at + `spec.policyTypes[0]: Unsupported value: "Ingres"`,
		spec("{policyTypes: [Ingress, Egress, Ingress]}"):                                 at + "spec.policyTypes: Invalid value",
		spec("{podSelector: {matchLabels: {\"a b\": c}}}"):                                at + "spec.podSelector.matchLabels",
		spec("{podSelector: {matchExpressions: [{key: a, operator: In}]}}"):               at + "spec.podSelector.matchExpressions[0].values: Required value",
		spec("{podSelector: {matchExpressions: [{key: a, operator: Is, values: [b]}]}}"):  at + "spec.podSelector.matchExpressions[0].operator",
		spec("{ingress: [{from: [{}]}]}"):                                                 at + "spec.ingress[0].from[0]: Required value: must specify a peer",
		spec("{ingress: [{}, {from: [{podSelector: {}, ipBlock: {cidr: 10.0.0.0/8}}]}]}"): at + "spec.ingress[1].from[0]: Forbidden",
		spec("{egress: [{to: [{ipBlock: {cidr: 10.0.0.0}}]}]}"):                           at + "spec.egress[0].to[0].ipBlock.cidr: Invalid value",
		spec("{egress: [{to: [{ipBlock: {}}]}]}"):                                         at + "spec.egress[0].to[0].ipBlock.cidr: Required value",
		spec("{egress: [{to: [{ipBlock: {cidr: 10.0.0.0/8, except: [11.0.0.0/16]}}]}]}"):  at + "spec.egress[0].to[0].ipBlock.except[0]: Invalid value: \"11.0.0.0/16\": must be a strict subset",
		spec("{egress: [{to: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.0.0.0/8]}}]}]}"):   at + "spec.egress[0].to[0].ipBlock.except[0]",
		spec("{ingress: [{ports: [{port: 0}]}]}"):                                         at + "spec.ingress[0].ports[0].port: Invalid value: 0: must be between 1 and 65535",
		spec("{ingress: [{ports: [{port: 70000}]}]}"):                                     at + "spec.ingress[0].ports[0].port",
		spec("{ingress: [{ports: [{port: 80, endPort: 79}]}]}"):                           at + "spec.ingress[0].ports[0].endPort",
		spec("{ingress: [{ports: [{port: web, endPort: 79}]}]}"):                          at + "spec.ingress[0].ports[0].endPort",
		spec("{ingress: [{ports: [{endPort: 79}]}]}"):                                     at + "spec.ingress[0].ports[0].endPort",
		spec("{ingress: [{ports: [{port: \"80\"}]}]}"):                                    at + "spec.ingress[0].ports[0].port: Invalid value: \"80\"",
		spec("{ingress: [{ports: [{port: 80, protocol: ICMP}]}]}"):                        at + `spec.ingress[0].ports[0].protocol: Unsupported value: "ICMP"`,
		spec("{ingress: [{ports: [{port: 8.5}]}]}"):                                       at + "cannot unmarshal",
		"apiVersion: v1\nkind: List\nitems:\n- {}\n- {kind: Pod}\n":                       "f.yaml, document 1 (line 1), item 2: Pod has no apiVersion",
		strings.Repeat("---\nkind: Pod\n", 30):                                            "and 10 more",
	} {
		names, _, err := read1(t, text, Options{})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\n  is read as %q, %v; want %q", text, names, err, want)
		}
	}
	if _, _, err := read1(t, np+"metadata: {name: a, namespace: x}", Options{Namespace: "y", Only: true}); err == nil || !strings.Contains(err.Error(), "metadata.namespace is x, but --namespace is y") {
		t.Error(err)
	}
	bomb := "a: &a [x,x,x,x,x,x,x,x,x]\n"
	for c := 'b'; c < 'k'; c++ {
		bomb += string(c) + ": &" + string(c) + " [" + strings.Repeat("*"+string(c-1)+",", 9) + "]\n"
	}
	if _, _, err := read1(t, bomb, Options{}); err == nil {
		t.Error("a bomb of aliases is read")
	}
}

func TestReadDirectories(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"b.yml": np + "metadata: {name: b}", "a.yaml": np + "metadata: {name: a}", "c.json": `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "c"}}`,
		"readme.md": "no policy", "sub/d.yaml": np + "metadata: {name: d}", "empty/notes.txt": ""} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for recursive, want := range map[bool][]string{false: {"a", "b", "c"}, true: {"a", "b", "c", "d"}} {
		var got []string
		list, err := Read(dir, recursive, nil)
		for _, o := range list {
			got = append(got, o.Name)
		}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("recursive %v: %q, %v", recursive, got, err)
		}
	}
	if list, err := Read("-", false, strings.NewReader(np+"metadata: {name: in}")); err != nil || len(list) != 1 || list[0].Where != "stdin, document 1 (line 1)" {
		t.Errorf("%v, %v", list, err)
	}
	for name, want := range map[string]string{filepath.Join(dir, "none"): "no such file", filepath.Join(dir, "empty"): "no file that ends with", "https://example.com/a.yaml": "curl https://example.com/a.yaml"} {
		if _, err := Read(name, false, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
