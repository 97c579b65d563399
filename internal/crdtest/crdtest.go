// Package crdtest holds the CustomResourceDefinitions of deploy/crds to the Go types of api/, for the tests there.
package crdtest

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
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"
)

// Group is an API group's version, all of whose kinds have a CustomResourceDefinition in deploy/crds.
type Group struct {
	schema.GroupVersion
	AddToScheme func(*runtime.Scheme) error
	Kinds       []Kind
	// AlsoServed are further versions that the CRDs serve, with the schema of the group's.
	AlsoServed []string
	// Free are types that keep whatever keys they are given.
	Free []reflect.Type
	// Conditions are the types of conditions that printer columns may show.
	Conditions []string
}

// Kind is one of a group's.
type Kind struct {
	Name, Plural, Short, Scope string
	Object, List               runtime.Object
}

// definition has the fields of a CustomResourceDefinition that the tests check.
type definition struct {
	Metadata struct{ Name string }
	Spec     struct {
		Group, Scope string
		Names        struct {
			Kind, ListKind, Plural, Singular string
			ShortNames                       []string
		}
		Versions []struct {
			Name                     string
			Served, Storage          bool
			Subresources             struct{ Status *struct{} }
			AdditionalPrinterColumns []struct{ Name, JSONPath string }
			Schema                   struct{ OpenAPIV3Schema Property }
		}
	}
}

// Property is a schema, or a part of one.
type Property struct {
	Type, Format, Description string
	Properties                map[string]Property
	AdditionalProperties      *Property
	Items                     *Property
	Required                  []string
	Validations               []struct{ Rule, Message string } `json:"x-kubernetes-validations"`
	Preserve                  bool                             `json:"x-kubernetes-preserve-unknown-fields"`
	IntOrString               bool                             `json:"x-kubernetes-int-or-string"`
}

func read(t *testing.T, plural string) (d definition) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("../../../deploy/crds", plural+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(raw, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// serves reports whether the versions are the group's, the stored one first, all with one schema and a status.
func (d definition) serves(g Group) bool {
	var names []string
	for _, v := range d.Spec.Versions {
		names = append(names, v.Name)
		same := reflect.DeepEqual(v.Schema, d.Spec.Versions[0].Schema)
		if !v.Served || v.Storage != (v.Name == g.Version) || !same || v.Subresources.Status == nil {
			return false
		}
	}
	return slices.Equal(names, append([]string{g.Version}, g.AlsoServed...))
}

// Schema returns the schema of a kind, by its plural.
func Schema(t *testing.T, plural string) Property {
	t.Helper()
	return read(t, plural).Spec.Versions[0].Schema.OpenAPIV3Schema
}

// AreTheTypes holds that names, scopes, versions and schemas are those of the types, and that each property is
// described.
func (g Group) AreTheTypes(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := g.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	for _, k := range g.Kinds {
		d := read(t, k.Plural)
		n := d.Spec.Names
		if n.Kind != k.Name || n.Plural != k.Plural || n.ListKind != k.Name+"List" ||
			!slices.Equal(n.ShortNames, []string{k.Short}) ||
			d.Metadata.Name != k.Plural+"."+g.Group || d.Spec.Group != g.Group || d.Spec.Scope != k.Scope ||
			!d.serves(g) {
			t.Errorf("%s: names, scope or versions are not the types': %+v", k.Plural, n)
		}
		for o, name := range map[runtime.Object]string{k.Object: k.Name, k.List: k.Name + "List"} {
			if gvks, _, err := scheme.ObjectKinds(o); err != nil || len(gvks) != 1 || gvks[0] != g.WithKind(name) {
				t.Errorf("the scheme has %T as %v (%v)", o, gvks, err)
			}
		}
		for _, complaint := range g.compare(k.Name, reflect.TypeOf(k.Object).Elem(),
			d.Spec.Versions[0].Schema.OpenAPIV3Schema) {
			t.Error(complaint)
		}
	}
}

// compare returns the differences between a Go type and a schema, and the properties without a description.
func (g Group) compare(path string, typ reflect.Type, p Property) (wrong []string) {
	if typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	if p.Description == "" && !strings.HasSuffix(path, "[]") && !strings.HasSuffix(path, ".metadata") {
		wrong = append(wrong, path+" has no description")
	}
	if want := kindOf(typ); want != p.Type+p.Format && (!p.IntOrString || want != "int-or-string") {
		return append(wrong, path+" is "+p.Type+p.Format+" in the CRD and "+want+" in Go")
	}
	switch {
	case slices.Contains(g.Free, typ):
		if !p.Preserve {
			wrong = append(wrong, path+" would lose keys")
		}
	case typ == reflect.TypeFor[metav1.ObjectMeta](), typ == reflect.TypeFor[metav1.Time](),
		typ == reflect.TypeFor[intstr.IntOrString]():
	case typ.Kind() == reflect.Slice:
		return append(wrong, g.compare(path+"[]", typ.Elem(), *p.Items)...)
	case typ.Kind() == reflect.Struct && !p.Preserve:
		return append(wrong, g.compareFields(path, typ, p)...)
	}
	return wrong
}

func (g Group) compareFields(path string, typ reflect.Type, p Property) (wrong []string) {
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
		wrong = append(wrong, g.compare(path+"."+name, field.Type, p.Properties[name])...)
	}
	return wrong
}

// kindOf returns the schema's type and format for a Go type.
func kindOf(typ reflect.Type) string {
	switch typ {
	case reflect.TypeFor[metav1.Time]():
		return "stringdate-time"
	case reflect.TypeFor[intstr.IntOrString]():
		return "int-or-string"
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

// PrinterColumns holds that printer columns show what is there: their paths end in fields of the types.
func (g Group) PrinterColumns(t *testing.T) {
	part := regexp.MustCompile(`\.([A-Za-z]+)|\[\?\(@\.type=="([A-Za-z]+)"\)\]`)
	for _, k := range g.Kinds {
		version := read(t, k.Plural).Spec.Versions[0]
		for _, column := range version.AdditionalPrinterColumns {
			if strings.HasPrefix(column.JSONPath, ".metadata.") {
				continue
			}
			p := version.Schema.OpenAPIV3Schema
			for _, m := range part.FindAllStringSubmatch(column.JSONPath, -1) {
				next, ok := p.Properties[m[1]]
				switch {
				case m[2] != "" && slices.Contains(g.Conditions, m[2]):
					p = *p.Items
				case ok:
					p = next
				case !ok:
					t.Errorf("column %s of %s: %s leads nowhere", column.Name, k.Plural, column.JSONPath)
				}
			}
			if p.Type == "object" || p.Type == "array" {
				t.Errorf("column %s of %s shows a whole %s", column.Name, k.Plural, p.Type)
			}
		}
	}
}

// RulesHaveSentences fails the test unless each validation rule has a sentence that states what to write, and there are
// at least that many rules.
func (g Group) RulesHaveSentences(t *testing.T, least int) {
	rules := 0
	for _, k := range g.Kinds {
		Schema(t, k.Plural).walk(func(p Property) {
			for _, v := range p.Validations {
				rules++
				if len(v.Message) < 20 || len(v.Message) > 160 || v.Rule == "" {
					t.Errorf("%q: %q", v.Rule, v.Message)
				}
			}
		})
	}
	if rules < least {
		t.Errorf("%d rules", rules)
	}
}

// Expressions holds that regular expressions in rules are such: the API server refuses a whole CRD for one regular
// expression that is none.
func (g Group) Expressions(t *testing.T) {
	quoted := regexp.MustCompile(`matches\('((?:[^'\\]|\\.)*)'\)`)
	for _, k := range g.Kinds {
		Schema(t, k.Plural).walk(func(p Property) {
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

func (p Property) walk(visit func(Property)) {
	visit(p)
	if p.Items != nil {
		p.Items.walk(visit)
	}
	for _, below := range p.Properties {
		below.walk(visit)
	}
}
