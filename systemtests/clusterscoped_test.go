package systemtests

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	gotoken "go/token"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

// onceACluster holds functions that create the same objects for all tests.
var onceACluster = map[string]bool{
	"applyCRDs": true, // applies the same files for all, once a cluster, and no test deletes what they define
}

// clusterScopedKinds are kinds of Kubernetes without a namespace. Those of deploy/crds are added.
var clusterScopedKinds = []string{
	"AdminNetworkPolicy", "APIService", "BaselineAdminNetworkPolicy", "CertificateSigningRequest", "ClusterNetworkPolicy",
	"ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition", "FlowSchema", "IngressClass",
	"MutatingWebhookConfiguration", "Namespace", "Node", "PersistentVolume", "PriorityClass",
	"PriorityLevelConfiguration", "RuntimeClass", "StorageClass", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding",
	"ValidatingWebhookConfiguration",
}

// The parts of a CustomResourceDefinition and of a manifest that the test reads, in YAML or JSON. The first name in
// metadata is the object's.
var (
	crdKind       = regexp.MustCompile(`\bkind: (\w+), listKind`)
	crdSingular   = regexp.MustCompile(`\bsingular: (\w+)`)
	crdShortNames = regexp.MustCompile(`\bshortNames: \[([\w, ]+)\]`)
	manifestKind  = regexp.MustCompile(`(?:^|[\s{,"])kind"?:\s*"?([^\s,"}]+)`)
	manifestName  = regexp.MustCompile(`(?s)metadata"?:.*?[\s{,"]name"?:\s*"?([^\s,"}]+)`)
)

// clusterScopedNames returns the plurals of the cluster-scoped kinds by each name that kubectl takes, in lower case.
func clusterScopedNames(t *testing.T) map[string]string {
	t.Helper()
	plurals := map[string]string{}
	add := func(kind string, others ...string) {
		plural := pluralOf(kind)
		for _, name := range append(others, strings.ToLower(kind), plural) {
			plurals[name] = plural
		}
	}
	for _, kind := range clusterScopedKinds {
		add(kind)
	}
	for short, kind := range map[string]string{"ns": "namespace", "no": "node", "crd": "customresourcedefinition", "pc": "priorityclass"} {
		plurals[short] = plurals[kind]
	}
	files, err := filepath.Glob(crds + "/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files in %s: %v", len(files), crds, err)
	}
	for _, file := range files {
		if text := read(t, file); strings.Contains(text, "\n  scope: Cluster\n") {
			var short []string
			if names := crdShortNames.FindStringSubmatch(text); names != nil {
				short = strings.Split(names[1], ", ")
			}
			add(crdKind.FindStringSubmatch(text)[1], append(short, crdSingular.FindStringSubmatch(text)[1])...)
		}
	}
	return plurals
}

// pluralOf returns the plural of a kind in the API server's paths.
func pluralOf(kind string) string {
	path := cluster.Path("v1", kind, "", "")
	return path[strings.LastIndex(path, "/")+1:]
}

// objectFinder collects the cluster-scoped objects that a test creates or changes, as "plural/name".
type objectFinder struct {
	plurals map[string]string
	found   map[string]bool
}

// take takes the objects of a call of a method of the test harness. It reports whether the method sends a request to
// the API server.
func (f *objectFinder) take(name string, args []evaluated) bool {
	text := func(i int) string { return args[i].text }
	switch n := len(args); {
	case name == "Apply" && n == 3:
		f.manifest(text(2), text(1) == "")
	case name == "Kubectl" && n > 2:
		f.kubectl(text(1), listOf(args[2:]).list)
	case name == "kubectl" && n > 0:
		f.kubectl("", listOf(args).list)
	case name == "Patch" && n == 3:
		f.request("PATCH", text(1), text(2))
	case name == "Create" && n == 3:
		f.request("POST", text(1), text(2))
	case (name == "Do" || name == "Ask") && n == 4:
		f.request(text(1), text(2), text(3))
	case name == "ask" && n == 6:
		f.request(text(1), text(2), text(4))
	default:
		return false
	}
	return true
}

// add takes an object of a plural, unless its name is the test's own.
func (f *objectFinder) add(plural, name string) {
	if !strings.Contains(name, unique) {
		f.found[plural+"/"+name] = true
	}
}

// manifest takes an object in YAML or JSON. clusterScoped: whatever its kind is.
func (f *objectFinder) manifest(text string, clusterScoped bool) {
	kind, name := manifestKind.FindStringSubmatch(text), manifestName.FindStringSubmatch(text)
	switch {
	case kind == nil && clusterScoped:
		f.add(unknown, unknown)
	case kind == nil:
	case clusterScoped || f.plurals[strings.ToLower(kind[1])] != "":
		f.add(pluralOf(kind[1]), nameIn(name))
	}
}

func nameIn(match []string) string {
	if match == nil {
		return unknown
	}
	return match[1]
}

// kubectl takes the objects of a call of kubectl.
func (f *objectFinder) kubectl(stdin string, args []string) {
	words, file := wordsOf(args)
	if len(words) == 0 || slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(a, "--dry-run") }) {
		return
	}
	switch verb := words[0]; {
	case slices.Contains([]string{"apply", "create", "replace"}, verb) && file == "-":
		f.manifests(stdin)
	case slices.Contains([]string{"apply", "create", "replace"}, verb) && file != "":
		f.files(file)
	case slices.Contains([]string{"create", "label", "annotate", "taint", "patch"}, verb) && len(words) > 1:
		kind, name, slash := strings.Cut(words[1], "/")
		if !slash && len(words) > 2 {
			name = words[2]
		}
		if plural := f.plurals[strings.ToLower(kind)]; plural != "" {
			f.add(plural, name)
		}
	}
}

// wordsOf returns the arguments of kubectl without flags, and the file of -f.
func wordsOf(args []string) (words []string, file string) {
	for i := 0; i < len(args); i++ {
		switch arg := args[i]; {
		case slices.Contains([]string{"-n", "--namespace", "-o", "-l", "-p", "--kubeconfig"}, arg):
			i++
		case arg == "-f" && i+1 < len(args):
			i++
			file = args[i]
		case !strings.HasPrefix(arg, "-"):
			words = append(words, arg)
		}
	}
	return words, file
}

// files takes the objects of a file of the repository, or of a folder's files.
func (f *objectFinder) files(path string) {
	names := []string{path}
	if inside, err := filepath.Glob(path + "/*.yaml"); err == nil && len(inside) > 0 {
		names = inside
	}
	for _, name := range names {
		if text, err := os.ReadFile(name); err == nil { // others are written by the test
			f.manifests(string(text))
		}
	}
}

// manifests takes the objects of YAML documents.
func (f *objectFinder) manifests(text string) {
	for _, document := range strings.Split(text, "\n---") {
		f.manifest(document, strings.Trim(document, unknown) == "" && document != "")
	}
}

// request takes the object of a request to the API server.
func (f *objectFinder) request(method, path, body string) {
	u, err := url.Parse(path)
	if err != nil || !slices.Contains([]string{"POST", "PUT", "PATCH"}, method) || u.Query().Has("dryRun") {
		return
	}
	parts := strings.Split(strings.Trim(u.Path, "/"), "/")
	switch {
	case parts[0] == "api" && len(parts) > 2:
		parts = parts[2:]
	case parts[0] == "apis" && len(parts) > 3:
		parts = parts[3:]
	default:
		return
	}
	if parts[0] == "namespaces" && len(parts) > 2 && parts[2] != "status" {
		return
	}
	name := nameIn(manifestName.FindStringSubmatch(body))
	if len(parts) > 1 {
		name = parts[1]
	}
	f.add(parts[0], name)
}

// sharedObjects returns the cluster-scoped objects that each shared test of these files creates or changes.
func sharedObjects(t *testing.T, files []*ast.File) map[string][]string {
	t.Helper()
	d, plurals := declarationsOf(files), clusterScopedNames(t)
	objects := map[string][]string{}
	for _, name := range slices.Sorted(maps.Keys(d.functions)) {
		if !strings.HasPrefix(name, "Test") || name == "TestMain" || !isShared(name) {
			continue
		}
		f := &objectFinder{plurals, map[string]bool{}}
		newEvaluator(d, onceACluster, f.take).run(name)
		objects[name] = slices.Sorted(maps.Keys(f.found))
	}
	return objects
}

// collisions returns the objects that several tests create, and those with an unknown name.
func collisions(objects map[string][]string) (list []string) {
	creators := map[string][]string{}
	for _, test := range slices.Sorted(maps.Keys(objects)) {
		for _, o := range objects[test] {
			creators[o] = append(creators[o], test)
		}
	}
	for _, o := range slices.Sorted(maps.Keys(creators)) {
		switch tests := strings.Join(creators[o], " and "); {
		case strings.Contains(o, unknown):
			list = append(list, fmt.Sprintf("%s: the name of a cluster-scoped object (%s) cannot be read from the source: "+
				"put the test's id into it, or write it as a constant", tests, strings.ReplaceAll(o, unknown, "…")))
		case len(creators[o]) > 1:
			list = append(list, fmt.Sprintf("%s run in parallel, and create or change %s: put the test's id into its name, "+
				"or list all but one in sets_test.go", tests, o))
		}
	}
	return list
}

// TestClusterScopedObjects_OfSharedTests fails if two shared tests create or change a cluster-scoped object of a name. It
// evaluates the source (see evaluator) of the tests and of the package cluster, and knows these ways: Apply, Create,
// Patch, Do and Ask of the API, and kubectl apply, create, replace, label, annotate, taint and patch, with manifests in
// texts or files of the repository. A dry run creates nothing.
//
// It cannot see:
//   - what other programs create: netctl, a kubelet, Flowkeep's own processes;
//   - a manifest that the test writes into a file and passes by its name;
//   - a manifest for kubectl, or a path for Patch, Do and Ask, that begins with an unknown text: a field other than id,
//     an element of a slice of structs, the result of a function of another package;
//   - the values of a variable in branches and loops other than the last one;
//   - what a function of onceACluster creates.
func TestClusterScopedObjects_OfSharedTests(t *testing.T) {
	objects := sharedObjects(t, parseFiles(t, "*_test.go", "cluster/*.go"))
	if len(objects) < 30 {
		t.Errorf("only %d shared tests found", len(objects))
	}
	if found := objects["TestNodeStateWithKubectl"]; !slices.Contains(found, "nodenetworkstates/elsewhere") {
		t.Errorf("TestNodeStateWithKubectl creates a NodeNetworkState, and these were found: %q", found)
	}
	for _, complaint := range collisions(objects) {
		t.Error(complaint)
	}
}

// creations are statements of a test by the objects that they create or change.
var creations = map[string][]string{
	"": {
		"w.apply(``, `{apiVersion: v1, kind: Node, metadata: {name: n-TEST}}`)",
		"w.apply(`ns`, `{apiVersion: v1, kind: Pod, metadata: {name: p}}`)",
		"w.Kubectl(w.ctx, text, `apply`, `--dry-run=server`, `-f`, `-`)",
		"user := `jane-` + w.id; w.bind(`clusterrolebinding`, user, `--user=`+user)",
		"w.bind(`rolebinding`, `jane`, `-n`, `ns`, `--user=jane`)",
		"w.must(w.Patch(w.ctx, cluster.PathOf(`Pod`, `ns`, `p`), `{}`))",
		"api.Do(w.ctx, http.MethodDelete, states+`/b`, nil)",
		"api.Ask(w.ctx, `POST`, states+`?dryRun=All`, []byte(text))",
		"w.namespace(`shop`, nil)",
		"w.applyCRDs()",
	},
	"nodes/n": {
		"w.apply(``, `{apiVersion: v1, kind: Node, metadata: {name: n}}`)",
		"w.must(w.Patch(w.ctx, cluster.PathOf(`Node`, ``, `n`), `{}`))",
		"for _, n := range []string{`n`} { w.Kubectl(w.ctx, ``, `label`, `node`, n, `a=b`) }",
		"w.Kubectl(w.ctx, ``, `taint`, `node/n`, `a=b:NoSchedule`)",
	},
	"nodenetworkstates/a": {
		"w.Kubectl(w.ctx, text, `apply`, `-f`, `-`)",
		"w.Kubectl(w.ctx, strings.ReplaceAll(other, `other`, `a`), `apply`, `-f`, `-`)",
		"api.Do(w.ctx, http.MethodPost, states, []byte(`{\"kind\": \"S\", \"metadata\": {\"name\": \"a\"}}`))",
		"api.Do(w.ctx, http.MethodPut, states+`/a`, nil)",
	},
	"namespaces/a namespaces/b": {
		"make := func(name string) { w.Kubectl(w.ctx, ``, `create`, `ns`, name) }; make(`a`); make(`b`)",
		"for _, n := range []string{`a`, `b`} { w.kubectl(`create`, `namespace`, n) }",
	},
	"clusterrolebindings/jane": {"w.bind(`clusterrolebinding`, `jane`, `--user=jane`)"},
	"clusterroles/a":           {"t.Run(`sub`, func(t *testing.T) { w.kubectl(`create`, `clusterrole`, `a`) })"},
	"kinds/a":                  {"w.must(w.Apply(w.ctx, ``, fmt.Sprintf(`{apiVersion: v1, kind: Kind, metadata: {name: %s}}`, `a`)))"},
	"kinds/…":                  {"w.Apply(w.ctx, ``, fmt.Sprintf(`{apiVersion: v1, kind: Kind, metadata: {name: %s}}`, w.node))"},
	"validatingwebhookconfigurations/flowkeep-what-if": {
		"w.Kubectl(w.ctx, ``, `apply`, `-f`, `../deploy/webhook.yaml`)",
	},
}

// TestClusterScopedObjects_AreFound: each way to create an object is seen, and nothing that is the test's own.
func TestClusterScopedObjects_AreFound(t *testing.T) {
	helpers := parseFiles(t, "setup_test.go", "access_test.go", "nodestate_api_test.go")
	for want, bodies := range creations {
		for _, body := range bodies {
			t.Run(body, func(t *testing.T) {
				text := "package p\nconst states = `/apis/nmstate.io/v1/nodenetworkstates`\n" +
					"const text = `\nkind: NodeNetworkState\nmetadata:\n  name: a\n`\n" +
					"const other = `\nkind: NodeNetworkState\nmetadata:\n  name: other\n`\n" +
					"func TestExample(t *testing.T) {\n w := setup(t)\n api, _ := w.API(w.ctx)\n" + body + "\n}"
				example, err := parser.ParseFile(gotoken.NewFileSet(), "example.go", text, parser.SkipObjectResolution)
				if err != nil {
					t.Fatal(err)
				}
				objects := sharedObjects(t, append(slices.Clone(helpers), example))
				if got := strings.ReplaceAll(strings.Join(objects["TestExample"], " "), unknown, "…"); got != want {
					t.Errorf("found %q, want %q", got, want)
				}
			})
		}
	}
}

// TestClusterScopedObjects_Collide: the same object of two tests is a failure, and so is one with an unknown name.
func TestClusterScopedObjects_Collide(t *testing.T) {
	for name, c := range map[string]struct {
		objects map[string][]string
		want    string
	}{
		"two names":     {map[string][]string{"TestA": {"nodes/a"}, "TestB": {"nodes/b"}}, ""},
		"two kinds":     {map[string][]string{"TestA": {"nodes/a"}, "TestB": {"namespaces/a"}}, ""},
		"one object":    {map[string][]string{"TestA": {"nodes/a"}, "TestB": {"nodes/a"}}, "TestA and TestB run in parallel"},
		"unknown names": {map[string][]string{"TestA": {"nodes/" + unknown}}, "TestA: the name of a cluster-scoped object"},
	} {
		t.Run(name, func(t *testing.T) {
			got := strings.Join(collisions(c.objects), "\n")
			if !strings.HasPrefix(got, cmp.Or(c.want, got)) || (got == "") != (c.want == "") {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}
