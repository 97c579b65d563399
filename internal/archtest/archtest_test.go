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
	// documents stands for the package in the root of the module, which holds the documents.
	documents = "documents"
)

// ourPath returns the folder of a package of ours, and reports whether it is ours.
func ourPath(imported string) (string, bool) {
	if imported+"/" == module {
		return documents, true
	}
	return strings.CutPrefix(imported, module)
}

// table lists the folders of ours that a package may import. The first row with the package's folder decides.
var table = []struct {
	folder string
	may    []string
}{
	{"api/feed", nil},     // protobuf alone
	{"api/identity", nil}, // protobuf alone
	{"api/wellknown", nil},
	{"api", []string{"api", "policydb/policy", "policydb/explain", "policydb/lint", "policydb/service"}},
	{"policydb/policy/policytest", []string{"policydb"}}, // helps the tests of the others
	{"policydb/policy", []string{"policydb/policy"}},
	{"policydb/explain", []string{"policydb/policy"}},
	{"policydb/lint", []string{"policydb/policy", "policydb/explain"}},
	{"policydb/service", []string{"policydb/policy"}},
	{"policydb/store", []string{"policydb/policy", "policydb/store", "internal/schema"}},
	{"policydb/labelcache", []string{"policydb/policy", "policydb/labelcache"}},
	{"policydb/kube", []string{"policydb/kube", "policydb/policy", "policydb/service", "api/wellknown"}}, // Kubernetes objects → values

	// The sibling products: of enforcement they know selectors, the switch library and Flowkeep's own names alone.
	{"nodestate/api", []string{"internal/crdtest"}},             // Kubernetes' own types alone; tests hold them to their CRDs
	{"nodestate/nmstate", []string{"nodestate/nmstate"}},        // state documents, pure
	{"nodestate/controller", []string{"nodestate", "internal"}}, // policies → nodes
	{"nodestate/nodeconfig", []string{"nodestate/nodeconfig", "nodestate/nmstate", "nodestate/api"}},
	{"nodestate", []string{"nodestate", "policydb/policy", "ofctl", "api/wellknown", "internal"}},
	{"macvtap/api", []string{"internal/crdtest"}},
	{"macvtap/tap", []string{"macvtap", "internal/rtnl"}},                   // devices, for the agent and the CNI plugin
	{"macvtap/cni", []string{"macvtap/tap", "macvtap", "internal/process"}}, // a small program that ends at once
	{"macvtap/report", []string{"macvtap", "policydb/policy"}},
	{"macvtap", []string{"macvtap", "policydb/policy", "ofctl", "api/wellknown", "internal"}},
	{"fleet/api", []string{"internal/crdtest"}},
	{"fleet", []string{"fleet", "api/wellknown", "internal"}},

	{documents, nil},
	{"netmaster/docsite/render", []string{"netmaster/docsite", documents, "internal/process"}},
	{"netmaster/docsite", []string{"netmaster/docsite", documents}}, // documents → pages, pure
	{"netmaster/webui", []string{"api", "policydb", "netmaster", "internal", documents}},
	{"netmaster/enforcement", []string{"api", "policydb", "netmaster", "internal", "fleet/api"}}, // writes a status of the fleet's group
	{"netmaster/server", []string{"api", "policydb", "netmaster", "internal", "fleet/api"}},      // its tests
	{"netmaster", []string{"api", "policydb", "netmaster", "internal"}},
	{"netplugin", []string{"api", "policydb/policy", "policydb/service", "ofctl", "netplugin", "internal"}},
	{"ofctl", []string{"ofctl"}},
	{"deploy", []string{"api/wellknown", "internal/reference", "internal/refusal"}},
	{"netctl", []string{"api", "policydb/policy", "policydb/explain", "policydb/lint", "policydb/kube", "netctl", "internal",
		"nodestate", "macvtap", "fleet", // a plan runs the checks of the node's backend
		"netmaster/webui"}}, // netctl web
	{"internal/verdicts", []string{"internal", "api", "policydb", "netmaster", "netplugin", "ofctl"}}, // tests through several parts
	{"internal/keyed", nil}, // sets that senders and receivers keep equal
	// the feed's messages ↔ values
	{"internal/wire", []string{"internal/wire", "internal/keyed", "api/feed", "policydb/policy", "policydb/service"}},
	{"internal/reference", []string{"internal/reference", "api/wellknown"}},
	{testkit, nil}, // test support, for all
	{"internal", []string{"internal"}},
}

// products are homes of the sibling products. The main packages of the programs start them; nothing else of enforcement
// imports them.
var (
	products = []string{"nodestate", "macvtap", "fleet"}
	mains    = []string{"netmaster", "netplugin"}
)

// confined modules may be imported only by these packages of ours.
var confined = []struct {
	module string
	by     []string
}{
	{"k8s.io/client-go", []string{"netmaster", "netmaster/ca", "netmaster/watch", "netmaster/manifests",
		"netmaster/enforcement", "netctl/apiserver", "internal/lease", "internal/kubeclient", "nodestate/controller",
		"nodestate/kube", "macvtap/kube", "fleet/controller"}},
	{"github.com/ovn-org/libovsdb", []string{"ofctl/ovsdb"}},
	{"github.com/contiv/ofnet", []string{"ofctl/independent", "internal/verdicts"}},
	{"github.com/contiv/libOpenflow", []string{"ofctl/independent", "internal/verdicts"}},
	{"k8s.io/kubelet", []string{"macvtap/deviceplugin", "macvtap/podresources"}},
	{"go.etcd.io/bbolt", []string{"policydb/store", "netplugin/", "internal/schema", "internal/schema/schematest"}},
	{"github.com/bradfitz/gomemcache", []string{"policydb/labelcache"}},
}

// barred are modules that a package of ours must not import; a folder that ends with a dot stands for its own package
// without those below.
var barred = []struct {
	folder  string
	modules []string
}{
	{"macvtap.", []string{"k8s.io", "sigs.k8s.io", module + "macvtap/api"}},
	{"fleet.", []string{module + "fleet/controller"}},
	{"nodestate.", []string{module + "nodestate/controller", module + "nodestate/kube", module + "nodestate/native"}},
	{"macvtap/tap", []string{"k8s.io", "sigs.k8s.io"}},
	{"macvtap/cni", []string{"k8s.io", "sigs.k8s.io"}},
	{"macvtap/report", []string{"github.com/vishvananda/netlink"}},
}

func isBarred(self, imported string) bool {
	for _, b := range barred {
		its := within(self, b.folder) || self+"." == b.folder
		if its && slices.ContainsFunc(b.modules, func(m string) bool { return within(imported, m) }) {
			return true
		}
	}
	return false
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
	self, _ := ourPath(p.ImportPath)
	for _, imported := range slices.Concat(p.Imports, p.TestImports, p.XTestImports) {
		inTest := !slices.Contains(p.Imports, imported)
		if ours, ok := ourPath(imported); ok && !allowed(self, ours, inTest) {
			list = append(list, self+" must not import "+ours+" (see ARCHITECTURE.md)")
		}
		if !inTest && (!confinedTo(self, imported) || isBarred(self, imported)) {
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
	if slices.Contains(mains, self) && slices.ContainsFunc(products, func(p string) bool { return within(imported, p) }) {
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
		{ImportPath: module + "nodestate/api/v1", Imports: []string{module + "policydb/policy"}},
		{ImportPath: module + "nodestate/nmstate", Imports: []string{module + "nodestate/api/v1"}},
		{ImportPath: module + "macvtap/api/v1alpha1", Imports: []string{module + "macvtap"}},
		{ImportPath: module + "macvtap", Imports: []string{module + "macvtap/api/v1alpha1"}},
		{ImportPath: module + "fleet", Imports: []string{"k8s.io/client-go/dynamic"}},
		{ImportPath: module + "fleet/api/v1alpha1", Imports: []string{module + "fleet"}},
		{ImportPath: module + "netplugin/endpoints", Imports: []string{module + "internal/testkit/netns"}},
		{ImportPath: module + "nodestate/nmstate", Imports: []string{module + "internal/testkit/netns"}},
		{ImportPath: module + "internal/testkit/netns", Imports: []string{module + "internal/process"}},
		{ImportPath: module + "macvtap/tap", Imports: []string{"k8s.io/api/core/v1"}},
		{ImportPath: module + "netmaster/server", Imports: []string{module + "nodestate"}},
		{ImportPath: module + "nodestate/native", Imports: []string{module + "netplugin/hostnet"}},
		{ImportPath: module + "macvtap/agent", Imports: []string{module + "nodestate"}},
		{ImportPath: module + "newfolder", Imports: []string{module + "api/feed"}},
		{ImportPath: module + "policydb/explain", Imports: []string{module + "policydb/store"}},
		{ImportPath: module + "netplugin/agent", Imports: []string{strings.TrimSuffix(module, "/")}},
		{ImportPath: module + "netmaster/docsite", Imports: []string{module + "internal/process"}},
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
