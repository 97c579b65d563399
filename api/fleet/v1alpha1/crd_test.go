package v1alpha1

import (
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

// crd is what of a CustomResourceDefinition the tests look at.
type crd struct {
	Metadata struct{ Name string }
	Spec     struct {
		Group, Scope string
		Names        struct {
			Kind, ListKind, Plural, Singular string
			ShortNames                       []string
		}
		Versions []struct {
			Name                     string
			Subresources             struct{ Status *struct{} }
			AdditionalPrinterColumns []struct{ Name, JSONPath string }
			Schema                   struct{ OpenAPIV3Schema property }
		}
	}
}

type property struct {
	Type, Format, Description string
	Properties                map[string]property
	AdditionalProperties      *property
	Items                     *property
	Required                  []string
	Validations               []struct{ Rule, Message string } `json:"x-kubernetes-validations"`
	Preserve                  bool                             `json:"x-kubernetes-preserve-unknown-fields"`
}

func readCRD(t *testing.T, plural string) (c crd) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("../../../deploy/crds", plural+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(raw, &c); err != nil {
		t.Fatal(err)
	}
	return c
}

var kinds = []struct {
	kind, plural, short string
	object, list        runtime.Object
}{
	{KindOverride, ResourceOverride, "pov", &PolicyOverride{}, &PolicyOverrideList{}},
	{KindSet, ResourceSet, "nps", &NetworkPolicySet{}, &NetworkPolicySetList{}},
	{KindEnforcement, ResourceEnforcement, "npe", &NetworkPolicyEnforcement{}, &NetworkPolicyEnforcementList{}},
}

func TestCRDsAreTheTypes(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	for _, k := range kinds {
		c := readCRD(t, k.plural)
		n := c.Spec.Names
		if n.Kind != k.kind || n.Plural != k.plural || n.ListKind != k.kind+"List" || !slices.Equal(n.ShortNames, []string{k.short}) ||
			c.Metadata.Name != k.plural+"."+GroupVersion.Group || c.Spec.Group != GroupVersion.Group || c.Spec.Scope != "Namespaced" ||
			len(c.Spec.Versions) != 1 || c.Spec.Versions[0].Name != GroupVersion.Version || c.Spec.Versions[0].Subresources.Status == nil {
			t.Errorf("%s: names, scope or versions are not the types': %+v", k.plural, n)
		}
		for o, name := range map[runtime.Object]string{k.object: k.kind, k.list: k.kind + "List"} {
			if gvks, _, err := scheme.ObjectKinds(o); err != nil || len(gvks) != 1 || gvks[0] != GroupVersion.WithKind(name) {
				t.Errorf("the scheme has %T as %v (%v)", o, gvks, err)
			}
		}
		for _, complaint := range compare(k.kind, reflect.TypeOf(k.object).Elem(), c.Spec.Versions[0].Schema.OpenAPIV3Schema) {
			t.Error(complaint)
		}
	}
}

// compare tells where a Go type and a schema are not of one shape, and which property is not described.
func compare(path string, typ reflect.Type, p property) (wrong []string) {
	if typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	if p.Description == "" && !strings.HasSuffix(path, "[]") && !strings.HasSuffix(path, ".metadata") {
		wrong = append(wrong, path+" has no description")
	}
	if want := kindOf(typ); want != p.Type+p.Format {
		return append(wrong, path+" is "+p.Type+p.Format+" in the CRD and "+want+" in Go")
	}
	switch {
	case typ == reflect.TypeFor[Patch]():
		if !p.Preserve {
			wrong = append(wrong, path+" would lose keys")
		}
	case typ == reflect.TypeFor[metav1.ObjectMeta](), typ == reflect.TypeFor[metav1.Time]():
	case typ.Kind() == reflect.Slice:
		return append(wrong, compare(path+"[]", typ.Elem(), *p.Items)...)
	case typ.Kind() == reflect.Struct && !p.Preserve:
		return append(wrong, compareFields(path, typ, p)...)
	}
	return wrong
}

func compareFields(path string, typ reflect.Type, p property) (wrong []string) {
	fields := map[string]reflect.StructField{}
	for field := range typ.Fields() {
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		if options == "inline" || name == "" {
			continue
		}
		fields[name] = field
		_, described := p.Properties[name]
		if !described && strings.HasPrefix(typ.PkgPath(), "github.com/flowkeep/") {
			wrong = append(wrong, path+"."+name+" is not in the CRD")
		}
		optional := strings.Contains(options, "omit") || name == "spec"
		if described && slices.Contains(p.Required, name) == optional && name != "spec" {
			wrong = append(wrong, path+"."+name+" is required in one of Go and the CRD")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.Properties)) {
		field, ok := fields[name]
		if !ok {
			if name != "apiVersion" && name != "kind" {
				wrong = append(wrong, path+"."+name+" is not in Go")
			}
			continue
		}
		wrong = append(wrong, compare(path+"."+name, field.Type, p.Properties[name])...)
	}
	return wrong
}

// kindOf is type and format of a schema for a Go type.
func kindOf(typ reflect.Type) string {
	if typ == reflect.TypeFor[metav1.Time]() {
		return "stringdate-time"
	}
	switch typ.Kind() {
	case reflect.String:
		return "string"
	case reflect.Bool:
		return "boolean"
	case reflect.Int32:
		return "integerint32"
	case reflect.Int64:
		return "integerint64"
	case reflect.Slice:
		return "array"
	}
	return "object"
}

func TestComparisonCanFail(t *testing.T) {
	typ := reflect.TypeFor[Lacking]()
	good := property{Type: "object", Description: "x", Required: []string{"cluster", "reason", "message"}, Properties: map[string]property{
		"cluster": {Type: "string", Description: "x"}, "reason": {Type: "string", Description: "x"}, "message": {Type: "string", Description: "x"}}}
	if wrong := compare("p", typ, good); len(wrong) != 0 {
		t.Fatal(wrong)
	}
	for _, spoil := range []func(*property){
		func(p *property) { p.Description = "" },
		func(p *property) { p.Required = nil },
		func(p *property) { delete(p.Properties, "cluster") },
		func(p *property) { p.Properties["more"] = property{Type: "string", Description: "x"} },
		func(p *property) { p.Properties["cluster"] = property{Type: "boolean", Description: "x"} },
		func(p *property) { p.Properties["cluster"] = property{Type: "string"} },
	} {
		bad := good
		bad.Properties = maps.Clone(good.Properties)
		spoil(&bad)
		if len(compare("p", typ, bad)) == 0 {
			t.Errorf("nothing wrong was found in %+v", bad)
		}
	}
}

// Printer columns show what is there: their paths end in fields of the types.
func TestPrinterColumns(t *testing.T) {
	part := regexp.MustCompile(`\.([A-Za-z]+)|\[\?\(@\.type=="([A-Za-z]+)"\)\]`)
	known := []string{ConditionAccepted, ConditionDistributed, ConditionEnforced}
	for _, k := range kinds {
		version := readCRD(t, k.plural).Spec.Versions[0]
		for _, column := range version.AdditionalPrinterColumns {
			if strings.HasPrefix(column.JSONPath, ".metadata.") {
				continue
			}
			p := version.Schema.OpenAPIV3Schema
			for _, m := range part.FindAllStringSubmatch(column.JSONPath, -1) {
				next, ok := p.Properties[m[1]]
				switch {
				case m[2] != "" && slices.Contains(known, m[2]):
					p = *p.Items
				case ok:
					p = next
				case !ok:
					t.Errorf("column %s of %s: %s leads nowhere", column.Name, k.plural, column.JSONPath)
				}
			}
			if p.Type == "object" || p.Type == "array" {
				t.Errorf("column %s of %s shows a whole %s", column.Name, k.plural, p.Type)
			}
		}
	}
}

// Each rule says what is wrong in a sentence: what to write, not only what not to.
func TestRulesHaveSentences(t *testing.T) {
	rules := 0
	for _, k := range kinds {
		readCRD(t, k.plural).Spec.Versions[0].Schema.OpenAPIV3Schema.walk(func(p property) {
			for _, v := range p.Validations {
				rules++
				if len(v.Message) < 20 || len(v.Message) > 160 || v.Rule == "" {
					t.Errorf("%q: %q", v.Rule, v.Message)
				}
			}
		})
	}
	if rules < 20 {
		t.Errorf("%d rules", rules)
	}
}

func (p property) walk(visit func(property)) {
	visit(p)
	if p.Items != nil {
		p.Items.walk(visit)
	}
	for _, below := range p.Properties {
		below.walk(visit)
	}
}

// The API server refuses a whole CRD for one regular expression that is none.
func TestExpressions(t *testing.T) {
	quoted := regexp.MustCompile(`matches\('((?:[^'\\]|\\.)*)'\)`)
	for _, k := range kinds {
		readCRD(t, k.plural).Spec.Versions[0].Schema.OpenAPIV3Schema.walk(func(p property) {
			for _, v := range p.Validations {
				for _, m := range quoted.FindAllStringSubmatch(v.Rule, -1) {
					if _, err := regexp.Compile(strings.ReplaceAll(m[1], `\\`, `\`)); err != nil {
						t.Errorf("%s: %v", v.Rule, err)
					}
				}
			}
		})
	}
}
