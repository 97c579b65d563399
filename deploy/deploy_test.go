// Package deploy has no code: its tests hold the manifests to the programs and the documents.
package deploy

import (
	"bytes"
	"cmp"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/api/wellknown"
	"sigs.k8s.io/yaml"
)

func read(t *testing.T, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// objects are those of a file of manifests.
func objects(t *testing.T, file string) (all []map[string]any) {
	t.Helper()
	for one := range bytes.SplitSeq(read(t, file), []byte("\n---\n")) {
		var o map[string]any
		if err := yaml.UnmarshalStrict(one, &o); err != nil {
			t.Fatalf("%s: %v\n%s", file, err, one)
		}
		if len(o) > 0 {
			all = append(all, o)
		}
	}
	return all
}

type alert struct {
	Alert, Expr string
	Labels      map[string]string
	Annotations map[string]string
}

func alerts(t *testing.T) (all []alert) {
	t.Helper()
	var file struct{ Groups []struct{ Rules []alert } }
	if err := yaml.Unmarshal(read(t, "chart/files/rules.yaml"), &file); err != nil {
		t.Fatal(err)
	}
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	if len(all) == 0 {
		t.Fatal("there are no alerts")
	}
	return all
}

// queries are all expressions of the dashboard.
func queries(t *testing.T) (all []string) {
	t.Helper()
	var dashboard struct {
		Panels []struct {
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(read(t, "chart/files/dashboard.json"), &dashboard); err != nil {
		t.Fatal(err)
	}
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			all = append(all, target.Expr)
		}
	}
	if len(all) == 0 {
		t.Fatal("the dashboard asks for nothing")
	}
	return all
}

var (
	heading       = regexp.MustCompile(`(?m)^#+ (.+)$`)
	notSlug       = regexp.MustCompile(`[^a-z0-9 -]`)
	metric        = regexp.MustCompile(`\bflowkeep_[a-z0-9_]+`)
	inTable       = regexp.MustCompile("(?m)^\\| `(flowkeep_[a-z0-9_]+)` \\| ([a-z]+) \\|")
	ourKey        = regexp.MustCompile(`((?:[a-z]+\.)?flowkeep\.io/[a-z0-9-]+): `)
	containerPort = regexp.MustCompile(`containerPort: (\d+)`)
	command       = regexp.MustCompile("(?m)(?:^    |`)netctl ([a-z-]+(?: [a-z-]+)*)")
	inText        = regexp.MustCompile(`\]\(#([a-z0-9-]+)\)`)
)

// anchors are those that GitHub gives the chapters of a document.
func anchors(text []byte) map[string]bool {
	all := map[string]bool{}
	for _, m := range heading.FindAllSubmatch(text, -1) {
		all[strings.ReplaceAll(notSlug.ReplaceAllString(strings.ToLower(string(m[1])), ""), " ", "-")] = true
	}
	return all
}

// Each alert says how bad it is and what is the matter, and leads to a chapter that is there.
func TestAlertsHaveRunbooks(t *testing.T) {
	const document = "https://github.com/flowkeep/flowkeep/blob/main/docs/troubleshooting.md#"
	chapters := anchors(read(t, "../docs/troubleshooting.md"))
	names := map[string]bool{}
	for _, a := range alerts(t) {
		anchor, found := strings.CutPrefix(a.Annotations["runbook_url"], document)
		switch {
		case !found || !chapters[anchor]:
			t.Errorf("%s: docs/troubleshooting.md has no chapter %q", a.Alert, a.Annotations["runbook_url"])
		case a.Annotations["summary"] == "" || !slices.Contains([]string{"critical", "warning"}, a.Labels["severity"]):
			t.Errorf("%s has no summary, or severity %q", a.Alert, a.Labels["severity"])
		case names[a.Alert]:
			t.Errorf("%s is there twice", a.Alert)
		}
		names[a.Alert] = true
	}
}

// What troubleshooting refers to is there: its own chapters, and netctl's commands.
func TestTroubleshootingRefersToWhatIsThere(t *testing.T) {
	text := read(t, "../docs/troubleshooting.md")
	chapters := anchors(text)
	for _, m := range inText.FindAllSubmatch(text, -1) {
		if !chapters[string(m[1])] {
			t.Errorf("there is no chapter #%s", m[1])
		}
	}
	commands := read(t, "../docs/reference/netctl.md")
	for _, m := range command.FindAllSubmatch(text, -1) {
		words := strings.Fields(string(m[1]))
		of := "\n## netctl " + words[0]
		group := bytes.Contains(commands, []byte(of+" "))
		if group && len(words) > 1 {
			of += " " + words[1]
		}
		if !bytes.Contains(commands, []byte(of+"\n")) {
			t.Errorf("netctl has no command %q", m[1])
		}
	}
}

// The dashboard and the alerts ask for metrics that the programs have.
func TestMetricsAreThere(t *testing.T) {
	has := map[string]bool{}
	for _, file := range []string{"netmaster", "netplugin"} {
		for _, m := range inTable.FindAllSubmatch(read(t, "../docs/reference/"+file+"-metrics.md"), -1) {
			has[string(m[1])] = true
			if string(m[2]) == "histogram" {
				for _, suffix := range []string{"_bucket", "_count", "_sum"} {
					has[string(m[1])+suffix] = true
				}
			}
		}
	}
	asked := queries(t)
	for _, a := range alerts(t) {
		asked = append(asked, a.Expr)
	}
	for _, q := range asked {
		for _, name := range metric.FindAllString(q, -1) {
			if !has[name] {
				t.Errorf("no program has %s, which %q asks for", name, q)
			}
		}
	}
	if len(has) < 50 {
		t.Errorf("docs/reference has only %d metrics", len(has))
	}
}

// Containers listen where the reference says.
func TestPortsAreKnown(t *testing.T) {
	known := map[string]bool{}
	for _, p := range append(wellknown.Ports, wellknown.Others...) {
		known[cmp.Or(map[bool]string{true: strconv.Itoa(p.Manifests)}[p.Manifests != 0], p.Default[strings.LastIndex(p.Default, ":")+1:])] = true
	}
	templates, err := filepath.Glob("chart/templates/*.yaml")
	if err != nil || len(templates) == 0 {
		t.Fatal("no templates", err)
	}
	seen := 0
	for _, file := range templates {
		for _, m := range containerPort.FindAllSubmatch(read(t, file), -1) {
			if seen++; !known[string(m[1])] {
				t.Errorf("%s: port %s is not in api/wellknown", file, m[1])
			}
		}
	}
	if seen < 10 {
		t.Fatalf("only %d ports were seen", seen)
	}
}

// Annotations and labels of ours that the manifests have are in the reference.
func TestKeysAreKnown(t *testing.T) {
	known := map[string]bool{}
	for _, k := range wellknown.Keys {
		known[k.Name] = true
	}
	files, err := filepath.Glob("chart/templates/*")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, file := range append(files, "roles.yaml", "flowkeep.yaml", "own-node.yaml") {
		for _, m := range ourKey.FindAllSubmatch(read(t, file), -1) {
			if seen++; !known[string(m[1])] {
				t.Errorf("%s: %s is not in api/wellknown", file, m[1])
			}
		}
	}
	if seen < 2 {
		t.Fatalf("only %d were seen", seen)
	}
}

// documented reports what in a schema has no description, and which values differ from what the schema has.
func documented(t *testing.T, at string, schema map[string]any, value any) {
	if at != "" && schema["description"] == nil {
		t.Errorf("values.schema.json does not say what %s is", at)
	}
	properties, _ := schema["properties"].(map[string]any)
	values, is := value.(map[string]any)
	if properties == nil || !is {
		return
	}
	for name, p := range properties {
		v, there := values[name]
		if !there && name != "global" {
			t.Errorf("values.yaml does not have %s.%s", at, name)
		}
		documented(t, strings.TrimPrefix(at+"."+name, "."), p.(map[string]any), v)
	}
	if schema["additionalProperties"] != false {
		t.Errorf("what is written wrong in %q is taken", at)
	}
}

// Each value is in the schema with a description, and has a default; helm lint holds values to it (scripts/manifests).
func TestValuesAreDocumented(t *testing.T) {
	var schema, values map[string]any
	if err := json.Unmarshal(read(t, "chart/values.schema.json"), &schema); err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(read(t, "chart/values.yaml"), &values); err != nil {
		t.Fatal(err)
	}
	refs := schema["definitions"].(map[string]any)
	for name, p := range schema["properties"].(map[string]any)["network"].(map[string]any)["properties"].(map[string]any) {
		if ref, _ := p.(map[string]any)["$ref"].(string); ref != "" && refs[strings.TrimPrefix(ref, "#/definitions/")] == nil {
			t.Errorf("network.%s refers to %s", name, ref)
		}
	}
	described(schema, refs)
	documented(t, "", schema, values)
}

// TestChart_Budgets compares the names of netmaster.budgets in the schema with netmaster's flags.
func TestChart_Budgets(t *testing.T) {
	var schema map[string]any
	if err := json.Unmarshal(read(t, "chart/values.schema.json"), &schema); err != nil {
		t.Fatal(err)
	}
	var flags []string
	for _, m := range regexp.MustCompile(`(?m)^\| `+"`--max-([a-z-]+) int`"+` .* budget: `).FindAllStringSubmatch(string(read(t, "../docs/reference/netmaster.md")), -1) {
		flags = append(flags, m[1])
	}
	patterns, _ := at(schema, "properties", "netmaster", "properties", "budgets", "patternProperties").(map[string]any)
	if want := "^(" + strings.Join(flags, "|") + ")$"; len(flags) < 20 || patterns[want] == nil {
		t.Errorf("the pattern of netmaster.budgets must be %s", want)
	}
}

// TestChart_KubeVersion compares the chart's oldest Kubernetes with the requirements and with netctl doctor.
func TestChart_KubeVersion(t *testing.T) {
	m := regexp.MustCompile(`kubeVersion: ">=(1\.\d+)\.0-0"`).FindSubmatch(read(t, "chart/Chart.yaml"))
	if m == nil {
		t.Fatal("the chart has no kubeVersion")
	}
	for file, text := range map[string]string{
		"../docs/install.md":          "| Kubernetes | " + string(m[1]) + " or later;",
		"../netctl/doctor/cluster.go": "older than " + string(m[1]) + ":",
		"../docs/certificates.md":     "Kubernetes " + string(m[1]) + " or later",
	} {
		if !strings.Contains(string(read(t, file)), text) {
			t.Errorf("%s has no %q", file, text)
		}
	}
}

// described gives what refers to a definition that one's description.
func described(schema, refs map[string]any) {
	for _, p := range schema {
		at, is := p.(map[string]any)
		if !is {
			continue
		}
		if ref, _ := at["$ref"].(string); ref != "" && at["description"] == nil {
			if of, found := refs[strings.TrimPrefix(ref, "#/definitions/")].(map[string]any); found {
				at["description"] = of["description"]
			}
		}
		described(at, refs)
	}
}

// at follows names into an object.
func at(o any, names ...string) any {
	for _, name := range names {
		m, _ := o.(map[string]any)
		o = m[name]
	}
	return o
}

// Pods of the manifests say what they need, how they are, and how important they are; what is privileged is known here.
func TestPodsAreComplete(t *testing.T) {
	privileged := map[string]bool{"netplugin": true, "openvswitch": true}
	seen := 0
	for _, o := range objects(t, "flowkeep.yaml") {
		pod := at(o, "spec", "template", "spec")
		if pod == nil {
			continue
		}
		if at(pod, "priorityClassName") == nil {
			t.Errorf("%s has no priority class", at(o, "metadata", "name"))
		}
		for _, c := range at(pod, "containers").([]any) {
			seen++
			name := at(c, "name").(string)
			for _, what := range []string{"resources", "livenessProbe", "readinessProbe", "securityContext", "imagePullPolicy"} {
				if at(c, what) == nil {
					t.Errorf("container %s has no %s", name, what)
				}
			}
			if is := at(c, "securityContext", "privileged") == true; is != privileged[name] {
				t.Errorf("container %s: privileged is %v", name, is)
			}
			if !privileged[name] && (at(c, "securityContext", "runAsNonRoot") != true || at(c, "securityContext", "readOnlyRootFilesystem") != true) {
				t.Errorf("container %s may be root, or write its image", name)
			}
		}
	}
	if seen < 3 {
		t.Fatalf("there are %d containers", seen)
	}
}

// TestGoMemoryLimits has each container of Go programs with a memory limit set GOMEMLIMIT to 90 % of it.
func TestGoMemoryLimits(t *testing.T) {
	seen := 0
	for _, o := range objects(t, "flowkeep.yaml") {
		containers, _ := at(o, "spec", "template", "spec", "containers").([]any)
		for _, c := range containers {
			name := at(c, "name").(string)
			limit, limited := at(c, "resources", "limits", "memory").(string)
			if !limited || name == "memcached" { // which is no Go program
				continue
			}
			seen++
			gib, err := strconv.Atoi(strings.TrimSuffix(limit, "Gi"))
			if err != nil {
				t.Fatalf("container %s has the memory limit %q: have this test read it", name, limit)
			}
			want, got := strconv.Itoa(gib<<30*9/10), any(nil)
			env, _ := at(c, "env").([]any)
			for _, e := range env {
				if at(e, "name") == "GOMEMLIMIT" {
					got = at(e, "value")
				}
			}
			if got != want {
				t.Errorf("container %s has GOMEMLIMIT %v, want %s", name, got, want)
			}
		}
	}
	if seen != 2 {
		t.Errorf("%d containers of Go programs have a memory limit, want those of netmaster and netplugin", seen)
	}
}

var variable = regexp.MustCompile(`\$\(([A-Z_]+)\)`)

// What arguments take from the environment is there: Kubernetes passes on as it is what it does not know.
func TestVariablesAreThere(t *testing.T) {
	services := map[string]bool{}
	for _, o := range objects(t, "flowkeep.yaml") {
		if o["kind"] == "Service" {
			services[strings.ToUpper(strings.ReplaceAll(at(o, "metadata", "name").(string), "-", "_"))+"_SERVICE_HOST"] = true
		}
	}
	seen := 0
	for _, o := range objects(t, "flowkeep.yaml") {
		for _, kind := range []string{"containers", "initContainers"} {
			containers, _ := at(o, "spec", "template", "spec", kind).([]any)
			for _, c := range containers {
				there := maps.Clone(services)
				env, _ := at(c, "env").([]any)
				for _, e := range env {
					there[at(e, "name").(string)] = true
				}
				args, _ := at(c, "args").([]any)
				for _, a := range args {
					for _, m := range variable.FindAllStringSubmatch(a.(string), -1) {
						seen++
						if !there[m[1]] {
							t.Errorf("%s: %s has no %s", at(o, "metadata", "name"), a, m[1])
						}
					}
				}
			}
		}
	}
	if seen < 3 {
		t.Fatalf("%d variables were seen", seen)
	}
}

type rule struct{ APIGroups, Resources, ResourceNames, Verbs []string }

// No role of a program may do everything, read Secrets that are not its own, or change what NetworkPolicy or RBAC say.
func TestRolesAreNarrow(t *testing.T) {
	bound := map[string]bool{}
	for _, o := range objects(t, "flowkeep.yaml") {
		if kind := o["kind"].(string); strings.HasSuffix(kind, "RoleBinding") {
			bound[at(o, "roleRef", "name").(string)] = true
		}
	}
	if !bound["flowkeep-netmaster"] {
		t.Fatal("nobody has flowkeep-netmaster")
	}
	for _, o := range objects(t, "flowkeep.yaml") {
		name := at(o, "metadata", "name").(string)
		if kind := o["kind"].(string); kind != "Role" && kind != "ClusterRole" || !bound[name] {
			continue
		}
		text, err := json.Marshal(o["rules"])
		if err != nil {
			t.Fatal(err)
		}
		var rules []rule
		if err := json.Unmarshal(text, &rules); err != nil {
			t.Fatal(err)
		}
		for _, r := range rules {
			if why := tooWide(r); why != "" {
				t.Errorf("%s %s: %v: %s", o["kind"], name, r, why)
			}
		}
	}
}

func tooWide(r rule) string {
	writes := slices.ContainsFunc(r.Verbs, func(v string) bool { return !slices.Contains([]string{"get", "list", "watch"}, v) })
	has := func(resource string) bool { return slices.Contains(r.Resources, resource) }
	switch {
	case slices.Contains(r.Verbs, "*"), has("*"), slices.Contains(r.APIGroups, "*"):
		return "everything"
	case slices.Contains(r.APIGroups, "rbac.authorization.k8s.io") && (writes || len(r.ResourceNames) == 0),
		slices.Contains(r.Verbs, "impersonate"), has("pods/exec"), has("nodes/proxy"):
		return "that is a way to all rights"
	case has("secrets") && len(r.ResourceNames) == 0: // also to create: a new one can be had filled with any ServiceAccount's token
		return "all Secrets"
	case writes && (has("networkpolicies") || has("pods") || has("namespaces") || has("nodes")):
		return "what is enforced may not be changed by who enforces it"
	}
	return ""
}

// What the chart takes of deploy/ as it is: ordinary files that are the same, since a symbolic link comes out of many an archive as a file with a path in it.
func TestTheChartsCopies(t *testing.T) {
	names, err := filepath.Glob("crds/*.yaml")
	if err != nil || len(names) == 0 {
		t.Fatal(names, err)
	}
	for _, name := range append(names, "roles.yaml", "own-node.yaml") {
		copied := filepath.Join("chart/files", name)
		if info, err := os.Lstat(copied); err != nil || !info.Mode().IsRegular() || !bytes.Equal(read(t, copied), read(t, name)) {
			t.Errorf("%s is not %s (%v): scripts/manifests copies it", copied, name, err)
		}
	}
	// With its label netctl uninstall knows a kind that kubernetes-nmstate has too.
	if !bytes.Contains(read(t, "chart/templates/crds.yaml"), []byte("with $crd.metadata.labels")) {
		t.Error("the chart leaves out labels of CustomResourceDefinitions")
	}
	if have, err := filepath.Glob("chart/files/crds/*"); err != nil || len(have) != len(names) {
		t.Errorf("the chart has %v (%v), and crds %v", have, err, names)
	}
}
