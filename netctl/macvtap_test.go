package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/macvtap"
	"github.com/flowkeep/flowkeep/macvtap/api/v1alpha1"
	"github.com/flowkeep/flowkeep/macvtap/report"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// macvtapPolicies are the seed's, and a younger one that disagrees.
const macvtapPolicies = `
- metadata: {name: policy-1, namespace: macvtap-cni}
  spec:
    nodeSelector: {matchLabels: {macvtapAware: "true"}}
    parentSelector:
    - {parentIface: bond1, mode: private, quantity: 25, resourceName: bondedIface}
    - {parentIface: eth1, mode: vepa, resourceName: quickDataplane}
    - {parentIface: eth2, resourceName: dataplane}
- metadata: {name: policy-2, namespace: macvtap-cni}
  spec:
    nodeSelector: {matchLabels: {macvtapAware: "true"}}
    parentSelector: [{parentIface: eth1, resourceName: quickDataplane}, {parentIface: "eth*", quantity: 0}, {parentIface: "*"}]
`

// macvtapNodes are what agents of some nodes write.
func macvtapNodes(t *testing.T) string {
	t.Helper()
	var objects []v1alpha1.MacvtapNetworkNodePolicy
	if err := yaml.UnmarshalStrict([]byte(macvtapPolicies), &objects); err != nil {
		t.Fatal(err)
	}
	device := func(name string) macvtap.Link {
		return macvtap.Link{Name: name, Physical: true, Up: true, MAC: "52:54:00:00:00:01", MTU: 1500}
	}
	lo, bond1 := macvtap.Link{Name: "lo", Loopback: true, Up: true}, macvtap.Link{Name: "bond1", Kind: "bond", Up: true, MTU: 9000}
	config, err := macvtap.ParseConfig([]byte(`[{"name": "x", "lowerDevice": "eth0"}, {"name": "y", "lowerDevice": "eth9"}, {"name": "z", "lowerDevice": "eth0", "mode": "brigde"}]`))
	if err != nil {
		t.Fatal(err)
	}
	port := device("eth3")
	port.Master, port.MasterKind = 9, "bridge"
	var nodes []v1alpha1.MacvtapNode
	for _, n := range []struct {
		name    string
		in      macvtap.Input
		holders []macvtap.Holder
	}{
		{"h3", macvtap.Input{Links: []macvtap.Link{lo, device("eth0"), device("eth1"), {Name: "veth1", Kind: "veth", Up: true}}}, nil},
		{"h1", macvtap.Input{Links: []macvtap.Link{lo, bond1, device("eth0"), device("eth1"), {Name: "eth1.7", Kind: "vlan", Up: true}}, Labels: map[string]string{"macvtapAware": "true"}},
			[]macvtap.Holder{{Resource: "bondedIface", Device: macvtap.DeviceID("bondedIface", "bond1", 10), Namespace: "shop", Pod: "vm-2", Container: "compute"},
				{Resource: "bondedIface", Device: macvtap.DeviceID("bondedIface", "bond1", 9), Namespace: "shop", Pod: "vm-1", Container: "compute"}}},
		{"h4", macvtap.Input{Config: config, Links: []macvtap.Link{device("eth0"), port}}, nil},
		{"h5", macvtap.Input{Links: []macvtap.Link{device("eth0"), port}, Known: map[string][]string{"eth3": {"eth3"}, "eth7": {"eth7"}}}, nil},
		{"h6", macvtap.Input{Links: []macvtap.Link{{Name: "ens3", Kind: "dummy"}}, Labels: map[string]string{"macvtapAware": "true"}}, nil},
	} {
		for i := range objects {
			n.in.Policies = append(n.in.Policies, report.Policy(&objects[i]))
		}
		node := v1alpha1.MacvtapNode{}
		node.Name = n.name
		node.Status, _ = report.Node(report.Facts{In: n.in, Exposure: macvtap.Select(n.in), Holders: n.holders}, node.Status, metav1.Unix(1000, 0))
		nodes = append(nodes, node)
	}
	silent := v1alpha1.MacvtapNode{}
	silent.Name = "h7"
	raw, err := json.Marshal(map[string]any{macvtapPath: append(nodes, silent)})
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func TestMacvtapOutputs(t *testing.T) {
	b, _ := nodeCluster(t, macvtapNodes(t))
	var all strings.Builder
	for _, command := range []string{"ls", "explain h1", "explain h3", "explain h4", "explain h5", "explain h6", "explain h7"} {
		for _, form := range outputs {
			if command != "ls" && command != "explain h1" && form != "table" {
				continue
			}
			out, errOut, code := b.run(append(strings.Fields("macvtap "+command), "-o", form)...)
			fmt.Fprintf(&all, "$ netctl macvtap %s -o %s\n%s%s(exit code %d)\n\n", command, form, out, errOut, code)
		}
	}
	golden(t, "testdata/macvtap.txt", all.String())
}

func TestMacvtapErrors(t *testing.T) {
	b, s := nodeCluster(t, macvtapNodes(t))
	b.prints(exitUsage, "macvtap explan", "has no command \"explan\"; is it explain?")
	b.prints(exitUsage, "macvtap explain", "takes [NODE]")
	b.prints(exitUsage, "macvtap explain a/b", `"a/b" is no node's name`)
	b.prints(exitFailed, "macvtap explain h9", "node h9 has no MacvtapNode", "netctl macvtap ls")
	s.refuse = func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, `{"kind": "Status", "message": "User \"jane\" cannot list"}`)
		return true
	}
	b.prints(exitFailed, "macvtap ls", `403 Forbidden`, `User "jane" cannot list`)
	b, _ = nodeCluster(t, "{}")
	b.prints(exitFailed, "macvtap ls", "this cluster knows no MacvtapNode: kubectl apply -f deploy/crds")
	t.Setenv("FLOWKEEP_SERVER", "127.0.0.1:1")
	b.flags = nil
	b.prints(exitUsage, "macvtap ls", "reads the API server's objects")
}

func TestMacvtapCompletion(t *testing.T) {
	b, _ := nodeCluster(t, macvtapNodes(t))
	flags := b.flags
	b.flags = nil
	out, _, _ := b.run(append([]string{"__complete", "macvtap", "explain"}, append(flags, "")...)...)
	if !strings.HasPrefix(out, "h3\nh1\nh4\nh5\nh6\nh7\n:4") {
		t.Errorf("completed to %q", out)
	}
}

// What docs/macvtap.md shows is what netctl prints.
func TestMacvtapGuide(t *testing.T) {
	guide, err := os.ReadFile("../docs/macvtap.md")
	if err != nil {
		t.Fatal(err)
	}
	outputs, err := os.ReadFile("testdata/macvtap.txt")
	if err != nil {
		t.Fatal(err)
	}
	_, shown, _ := strings.Cut(string(guide), "$ netctl macvtap explain h5\n")
	shown, _, _ = strings.Cut(shown, "\nHere")
	if shown = strings.TrimSpace(strings.ReplaceAll(shown, "\n    ", "\n")); len(shown) < 200 || !strings.Contains(string(outputs), strings.TrimPrefix(shown, "    ")) {
		t.Errorf("netctl prints something else than\n%s", shown)
	}
}
