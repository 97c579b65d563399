package crdtest

import (
	"maps"
	"reflect"
	"testing"
)

func TestComparisonCanFail(t *testing.T) {
	type free map[string]any
	type sample struct {
		Name       string `json:"name"`
		Generation int64  `json:"generation"`
		Any        free   `json:"any,omitempty"`
	}
	g := Group{Free: []reflect.Type{reflect.TypeFor[free]()}}
	described := func(typ, format string) Property { return Property{Type: typ, Format: format, Description: "x"} }
	keeps := described("object", "")
	keeps.Preserve = true
	good := described("object", "")
	good.Required = []string{"name", "generation"}
	good.Properties = map[string]Property{"name": described("string", ""), "generation": described("integer", "int64"), "any": keeps}
	if wrong := g.compare("p", reflect.TypeFor[sample](), good); len(wrong) != 0 {
		t.Fatal(wrong)
	}
	for _, spoil := range []func(*Property){
		func(p *Property) { p.Description = "" },
		func(p *Property) { p.Required = nil },
		func(p *Property) { delete(p.Properties, "name") },
		func(p *Property) { p.Properties["more"] = described("string", "") },
		func(p *Property) { p.Properties["name"] = described("boolean", "") },
		func(p *Property) { p.Properties["generation"] = described("integer", "int32") },
		func(p *Property) { p.Properties["name"] = Property{Type: "string"} },
		func(p *Property) { p.Properties["any"] = described("object", "") },
	} {
		bad := good
		bad.Properties = maps.Clone(good.Properties)
		spoil(&bad)
		if len(g.compare("p", reflect.TypeFor[sample](), bad)) == 0 {
			t.Errorf("nothing wrong was found in %+v", bad)
		}
	}
}
