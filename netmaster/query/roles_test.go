package query

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/api/inspect"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"
)

// Each question is one that flowkeep-view may ask, or is kept from it on purpose.
func TestRolesNameEveryQuestion(t *testing.T) {
	text, err := os.ReadFile("../../deploy/roles.yaml")
	if err != nil {
		t.Fatal(err)
	}
	view := resourcesOf(t, string(text), "flowkeep-view")
	want := slices.DeleteFunc(NewServer(Config{}).Kinds(), func(kind string) bool { return inspect.RoleFor(kind) != "flowkeep-view" })
	slices.Sort(view)
	if !slices.Equal(view, want) {
		t.Errorf("deploy/roles.yaml: flowkeep-view has %q, want %q", view, want)
	}
	if admin := resourcesOf(t, string(text), "flowkeep-admin"); !slices.Equal(admin, []string{"*"}) {
		t.Errorf("flowkeep-admin has %q", admin)
	}
}

func resourcesOf(t *testing.T, text, name string) []string {
	t.Helper()
	for part := range strings.SplitSeq(text, "\n---\n") {
		var role rbacv1.ClusterRole
		if err := yaml.UnmarshalStrict([]byte(part), &role); err != nil {
			t.Fatal(err)
		}
		if role.Name == name && len(role.Rules) == 1 {
			return role.Rules[0].Resources
		}
	}
	t.Fatalf("there is no role %s", name)
	return nil
}
