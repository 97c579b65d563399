package archtest

import (
	"fmt"
	"slices"
	"testing"
)

// otherVersions maps the folder of each go.mod that may have other module versions than the product to the reason.
var otherVersions = map[string]string{
	"systemtests/containerd": "containerd v2.4.2 needs Kubernetes libraries that are newer than the product's",
	"systemtests/cyclonus":   "cyclonus v0.5.6 needs the Kubernetes libraries it was written for",
	"systemtests/multus":     "multus v4.1.0 needs the Kubernetes libraries it was written for",
	"systemtests/ocm":        "Open Cluster Management v0.15.0 needs the Kubernetes libraries it was written for",
	"tools":                  "golangci-lint is built once, with the versions of its release",
	"tools/controller-gen":   "controller-gen v0.23.0 needs Kubernetes libraries that are newer than the product's",
	"tools/helm":             "Helm v4.3.1 needs Kubernetes libraries that are newer than the product's",
	"tools/krew":             "Krew v0.5.0 needs the Kubernetes libraries it was written for",
}

// TestModules_HaveTheProductsVersions compares the versions of modules that the product and another go.mod of the
// repository require. The compiler then compiles a package once for the product and the Kubernetes of make demo.
func TestModules_HaveTheProductsVersions(t *testing.T) {
	versions := map[string]map[string]string{}
	for _, folder := range moduleFolders(t) {
		versions[folder] = map[string]string{}
		for _, r := range requirements(t, folder) {
			versions[folder][r.Path] = r.Version
		}
	}
	for _, complaint := range unequalVersions(versions, otherVersions) {
		t.Error(complaint)
	}
}

// unequalVersions returns a line for each module whose version in a folder is not that of the folder ".", and for each
// exception without such a module. The versions are by folder and module.
func unequalVersions(versions map[string]map[string]string, exceptions map[string]string) (list []string) {
	unequal := map[string]bool{}
	for folder, modules := range versions {
		for module, version := range modules {
			own, shared := versions["."][module]
			if !shared || own == version {
				continue
			}
			unequal[folder] = true
			if exceptions[folder] == "" {
				list = append(list, fmt.Sprintf("%s/go.mod requires %s %s, the product %s: run go get %[2]s@%[4]s in %[1]s, or state "+
					"the reason in otherVersions", folder, module, version, own))
			}
		}
	}
	for folder := range exceptions {
		if !unequal[folder] {
			list = append(list, folder+" is listed in otherVersions, and has the versions of the product")
		}
	}
	slices.Sort(list)
	return list
}

func TestUnequalVersions(t *testing.T) {
	versions := map[string]map[string]string{
		".":     {"a": "v1", "b": "v1"},
		"equal": {"a": "v1", "c": "v3"},
		"older": {"a": "v1", "b": "v0"},
	}
	for name, c := range map[string]struct {
		exceptions map[string]string
		want       int
	}{
		"without an exception":           {nil, 1},
		"with an exception":              {map[string]string{"older": "reason"}, 0},
		"with one without a reason":      {map[string]string{"older": ""}, 1},
		"with one that is not needed":    {map[string]string{"older": "reason", "equal": "reason"}, 1},
		"with one of a folder that left": {map[string]string{"older": "reason", "left": "reason"}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			if got := unequalVersions(versions, c.exceptions); len(got) != c.want {
				t.Error(got)
			}
		})
	}
}
