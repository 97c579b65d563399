package archtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const (
	module  = "github.com/flowkeep/flowkeep/"
	testkit = "internal/testkit"
)

// table is ARCHITECTURE.md's: the first folder that a package lies in decides. What is shared by all programs
// (internal/process) may be imported by main packages and the folders named here.
var table = []struct {
	folder string
	may    []string
}{
	{"api/feed", nil},                             // protobuf alone
	{"api/identity", nil},                         // protobuf alone
	{"api/nmstate", []string{"internal/crdtest"}}, // Kubernetes' own types alone; tests hold them to their CRDs
	{"api/macvtap", []string{"internal/crdtest"}},
	{"api/fleet", []string{"internal/crdtest"}},
	{"api/wellknown", nil},
	{"api", []string{"api", "policydb/policy", "policydb/explain", "policydb/lint"}},
	{"policydb/policy/policytest", []string{"policydb"}}, // helps the tests of the others
	{"policydb/policy", []string{"policydb/policy"}},
	{"policydb/explain", []string{"policydb/policy"}},
	{"policydb/lint", []string{"policydb/policy", "policydb/explain"}},
	{"policydb/store", []string{"policydb/policy", "policydb/store", "internal/schema"}},
	{"policydb/labelcache", []string{"policydb/policy", "policydb/labelcache"}},
	{"netmaster", []string{"api", "policydb", "netmaster", "internal"}},
	{"netplugin/macvtap/tap", []string{"internal/macvtap"}},                                              // devices, for the agent and the CNI plugin
	{"netplugin/macvtap/cni", []string{"netplugin/macvtap/tap", "internal/macvtap", "internal/process"}}, // a small program that ends at once
	{"netplugin", []string{"api", "policydb/policy", "ofctl", "netplugin", "internal"}},
	{"ofctl", []string{"ofctl"}},
	{"deploy", []string{"api/wellknown", "internal/reference", "internal/refusal"}},
	{"netctl", []string{"api", "policydb/policy", "policydb/explain", "policydb/lint", "netctl", "internal"}},
	{"internal/verdicts", []string{"internal", "api", "policydb", "netmaster", "netplugin", "ofctl"}}, // tests through several parts
	{"internal/wire", []string{"internal/wire", "api/feed", "policydb/policy"}},                       // the feed's messages ↔ values
	{"internal/kube", []string{"internal/kube", "policydb/policy", "api/wellknown"}},                  // Kubernetes objects → values
	{"internal/nmstate", []string{"internal/nmstate"}},                                                // state documents, pure
	{"internal/nodeconfig", []string{"internal/nodeconfig", "internal/nmstate", "internal/lease", "internal/refusal", "api/nmstate"}},
	{"internal/fleet", []string{"internal/fleet", "api/fleet", "api/wellknown"}}, // hub objects ↔ works, pure
	{"internal/reference", []string{"internal/reference", "api/wellknown"}},
	{"internal/macvtap/report", []string{"internal/macvtap", "api/macvtap", "policydb/policy"}},
	{"internal/macvtap", []string{"policydb/policy"}},
	{testkit, nil}, // test support, for all
	{"internal", []string{"internal"}},
}

// confined modules may be imported only by these packages of ours.
var confined = []struct {
	module string
	by     []string
}{
	{"k8s.io/client-go", []string{"netmaster", "netmaster/authority", "netmaster/watch", "netmaster/policysync", "netmaster/enforcement", "netctl/apiserver", "internal/nodeconfig/handler", "internal/lease", "netplugin/nodestate/kube", "netplugin/macvtap/kube"}},
	{"github.com/ovn-org/libovsdb", []string{"ofctl/ovsdb"}},
	{"k8s.io/kubelet", []string{"netplugin/macvtap/deviceplugin", "netplugin/macvtap/podresources"}},
	{"go.etcd.io/bbolt", []string{"policydb/store", "netplugin/", "internal/schema", "internal/schema/schematest"}},
	{"github.com/bradfitz/gomemcache", []string{"policydb/labelcache"}},
}

type goPackage struct {
	ImportPath                         string
	Imports, TestImports, XTestImports []string
}

func packages(t *testing.T) (list []goPackage) {
	t.Helper()
	out, err := exec.Command("go", "list", "-json=ImportPath,Imports,TestImports,XTestImports", module+"...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	dec := json.NewDecoder(bytes.NewReader(out))
	for {
		var p goPackage
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		list = append(list, p)
	}
	if len(list) < 5 {
		t.Fatalf("only %d packages found", len(list))
	}
	return list
}

func TestImportTable(t *testing.T) {
	for _, p := range packages(t) {
		for _, complaint := range complaints(p) {
			t.Error(complaint)
		}
	}
}

func complaints(p goPackage) (list []string) {
	self := strings.TrimPrefix(p.ImportPath, module)
	for _, imported := range slices.Concat(p.Imports, p.TestImports, p.XTestImports) {
		inTest := !slices.Contains(p.Imports, imported)
		if ours, ok := strings.CutPrefix(imported, module); ok && !allowed(self, ours, inTest) {
			list = append(list, self+" must not import "+ours+" (see ARCHITECTURE.md)")
		}
		if !inTest && !confinedTo(self, imported) {
			list = append(list, self+" must not import "+imported+": keep it where it is")
		}
	}
	return list
}

// allowed reports whether one package of ours may import another. Tests may import the test helpers and the other
// packages of policydb as well. Only tests and test helpers may import internal/testkit.
func allowed(self, imported string, inTest bool) bool {
	if within(imported, testkit) {
		return inTest || within(self, testkit) || strings.HasSuffix(self, "test")
	}
	if inTest && (within(imported, "policydb") || strings.HasSuffix(imported, "test")) {
		return true
	}
	for _, row := range table {
		if within(self, row.folder) {
			return slices.ContainsFunc(row.may, func(folder string) bool { return within(imported, folder) })
		}
	}
	return self == "internal_deps"
}

func confinedTo(self, imported string) bool {
	for _, c := range confined {
		if imported == c.module || strings.HasPrefix(imported, c.module+"/") {
			return slices.ContainsFunc(c.by, func(by string) bool {
				return self == by || strings.HasSuffix(by, "/") && strings.HasPrefix(self, by)
			}) || self == "internal_deps"
		}
	}
	return true
}

func within(path, folder string) bool { return path == folder || strings.HasPrefix(path, folder+"/") }

func TestTheTestCanFail(t *testing.T) {
	for _, bad := range []goPackage{
		{ImportPath: module + "netplugin/feed", Imports: []string{module + "netmaster/feed"}},
		{ImportPath: module + "ofctl", Imports: []string{module + "policydb/policy"}},
		{ImportPath: module + "policydb/policy", Imports: []string{module + "policydb/store"}},
		{ImportPath: module + "netmaster/resolve", Imports: []string{"k8s.io/client-go/kubernetes"}},
		{ImportPath: module + "api/feed", Imports: []string{module + "policydb/policy"}},
		{ImportPath: module + "api/nmstate/v1", Imports: []string{module + "policydb/policy"}},
		{ImportPath: module + "internal/nmstate", Imports: []string{module + "api/nmstate/v1"}},
		{ImportPath: module + "api/macvtap/v1alpha1", Imports: []string{module + "internal/macvtap"}},
		{ImportPath: module + "internal/macvtap", Imports: []string{module + "api/macvtap/v1alpha1"}},
		{ImportPath: module + "internal/fleet", Imports: []string{"k8s.io/client-go/dynamic"}},
		{ImportPath: module + "api/fleet/v1alpha1", Imports: []string{module + "internal/fleet"}},
		{ImportPath: module + "netplugin/endpoints", Imports: []string{module + "internal/testkit/netns"}},
		{ImportPath: module + "internal/nmstate", Imports: []string{module + "internal/testkit/netns"}},
		{ImportPath: module + "internal/testkit/netns", Imports: []string{module + "internal/process"}},
		{ImportPath: module + "newfolder", Imports: []string{module + "api/feed"}},
		{ImportPath: module + "policydb/explain", Imports: []string{module + "policydb/store"}},
	} {
		if len(complaints(bad)) != 1 {
			t.Errorf("%s importing %v: %v", bad.ImportPath, bad.Imports, complaints(bad))
		}
	}
	for _, good := range []goPackage{
		{ImportPath: module + "ofctl", TestImports: []string{module + "internal/testkit/netns"}},
		{ImportPath: module + "netplugin/macvtap/taptest", Imports: []string{module + "internal/testkit/netns"}},
	} {
		if list := complaints(good); len(list) > 0 {
			t.Errorf("%s: %v", good.ImportPath, list)
		}
	}
}
