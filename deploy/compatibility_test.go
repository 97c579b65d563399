package deploy

import (
	"regexp"
	"strings"
	"testing"
)

// TestCompatibility_Versions compares the tested versions of docs/compatibility.md with the files that pin them.
func TestCompatibility_Versions(t *testing.T) {
	rows := map[string]string{}
	for line := range strings.Lines(string(read(t, "../docs/compatibility.md"))) {
		if cells := strings.Split(line, "|"); len(cells) > 3 {
			rows[strings.TrimSpace(cells[1])] = cells[3]
		}
	}
	for _, c := range []struct{ row, file, pattern string }{
		{"Kubernetes", "../systemtests/kube/go.mod", `(?m)^\tk8s.io/kubernetes v([\d.]+)$`},
		{"Open vSwitch", "images/lock", `(?m)^deb amd64 openvswitch-switch ([\d.]+)-`},
		{"helm, for the chart", "../tools/helm/go.mod", `helm.sh/helm/v4 v([\d.]+)`},
		{"Gateway API, for policy sync", "../systemtests/ocm/crds/go.mod", `sigs.k8s.io/gateway-api v([\d.]+)`},
		{"Gateway API, for policy sync", "../go.mod", `sigs.k8s.io/gateway-api v([\d.]+)`},
		{"Open Cluster Management, for policy sync", "../systemtests/ocm/go.mod", `open-cluster-management.io/ocm v([\d.]+)`},
	} {
		m := regexp.MustCompile(c.pattern).FindSubmatch(read(t, c.file))
		if m == nil {
			t.Errorf("%s has nothing like %s", c.file, c.pattern)
			continue
		}
		if !strings.Contains(rows[c.row], string(m[1])) {
			t.Errorf("docs/compatibility.md: %s was tested with %q, %s has %s", c.row, rows[c.row], c.file, m[1])
		}
	}
}
