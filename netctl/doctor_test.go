package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/internal/mtls"
)

// sickObjects are those of a cluster with much to object to. Times are replaced.
const sickObjects = `
/:
- {metadata: {name: version}, gitVersion: v1.29.1}
/api/v1/nodes:
- {metadata: {name: node1}, spec: {podCIDRs: [10.244.0.0/16]}, status: {addresses: [{type: InternalIP, address: 10.244.9.9}], nodeInfo: {operatingSystem: linux}}}
- {metadata: {name: node2}, spec: {podCIDR: 10.244.2.0/24}, status: {nodeInfo: {operatingSystem: linux}}}
- {metadata: {name: node3}, status: {nodeInfo: {operatingSystem: windows}}}
/api/v1/namespaces:
- metadata: {name: shop}
/api/v1/pods:
- {metadata: {namespace: shop, name: db, labels: {app: db}}, spec: {nodeName: node1, containers: [{name: db}]}, status: {podIP: 10.244.1.5}}
/apis/networking.k8s.io/v1/networkpolicies:
- {metadata: {namespace: shop, name: nobody}, spec: {podSelector: {matchLabels: {app: dbb}}, policyTypes: [Ingress]}}
/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases:
- {metadata: {name: node1, managedFields: [{manager: kubelet, operation: Update, time: "NOW"}]}, spec: {renewTime: "LATER.000000Z"}}
- {metadata: {name: node2, managedFields: [{manager: kubelet, operation: Update, time: "NOW"}]}, spec: {renewTime: "SAME.000000Z"}}
/apis/apps/v1/daemonsets:
- {metadata: {namespace: kube-system, name: calico-node}}
- {metadata: {namespace: kube-system, name: kube-proxy}}
/apis/apps/v1/deployments:
- {metadata: {namespace: kube-system, name: coredns}}
- {metadata: {namespace: nmstate, name: nmstate-operator}}
/apis/apiextensions.k8s.io/v1/customresourcedefinitions:
- {metadata: {name: nodenetworkstates.nmstate.io}, spec: {group: nmstate.io, names: {plural: nodenetworkstates}, versions: [{name: v1beta1, served: true, storage: true}]}}
- {metadata: {name: adminnetworkpolicies.policy.networking.k8s.io}, spec: {group: policy.networking.k8s.io, names: {plural: adminnetworkpolicies}, versions: [{name: v1alpha1, served: true, storage: true}]}}
/apis/policy.networking.k8s.io/v1alpha1/adminnetworkpolicies:
- metadata: {name: a}
- metadata: {name: b}
- metadata: {name: c}
/api/v1/namespaces/kube-system/configmaps:
- {metadata: {name: extension-apiserver-authentication}, data: {}}
`

// wellObjects are those of a cluster that is as it should be.
const wellObjects = `
/:
- {metadata: {name: version}, gitVersion: v1.36.3}
/api/v1/nodes:
- {metadata: {name: node1}, spec: {podCIDRs: [10.244.1.0/24, "fd00:244:1::/64"]}, status: {addresses: [{type: InternalIP, address: 192.0.2.11}], nodeInfo: {operatingSystem: linux}}}
/apis/networking.k8s.io/v1/networkpolicies: []
/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases:
- {metadata: {name: node1, managedFields: [{manager: kubelet, operation: Update, time: "NOW"}]}, spec: {renewTime: "SAME.000000Z"}}
/apis/apps/v1/daemonsets:
- {metadata: {namespace: kube-system, name: kube-proxy}}
/apis/apps/v1/deployments: []
/apis/apiextensions.k8s.io/v1/customresourcedefinitions: []
/api/v1/namespaces/kube-system/configmaps:
- {metadata: {name: extension-apiserver-authentication}, data: {requestheader-client-ca-file: AUTHORITY}}
`

func doctorCluster(t *testing.T, objects string) (*bench, *apiServer) {
	t.Helper()
	dir := t.TempDir()
	if err := mtls.Init(dir); err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	quoted, _ := json.Marshal(string(ca))
	const layout = "2006-01-02T15:04:05"
	now := time.Now().UTC()
	return nodeCluster(t, strings.NewReplacer("NOW", now.Format(time.RFC3339), "SAME", now.Format(layout), "LATER", now.Add(time.Minute).Format(layout), "AUTHORITY", string(quoted)).Replace(objects))
}

// What differs from run to run: where the API server is, and until when a certificate is valid.
var varies = regexp.MustCompile(`https://127\.0\.0\.1:\d+/behind/a/path|\d{4}-\d\d-\d\d`)

// Every form, as it was looked at and found good; -update writes the file anew.
func TestDoctorOutputs(t *testing.T) {
	var all strings.Builder
	for _, cluster := range []string{sickObjects, wellObjects} {
		b, _ := doctorCluster(t, cluster)
		for _, form := range outputs {
			out, errOut, code := b.run("doctor", "-o", form)
			fmt.Fprintf(&all, "$ netctl doctor -o %s\n%s%s(exit code %d)\n\n", form, varies.ReplaceAllString(out, "…"), errOut, code)
		}
	}
	golden(t, "testdata/doctor.txt", all.String())
}

// Who may read nothing, or asks nobody, gets no verdict, and is told why.
func TestDoctorThatCannotLook(t *testing.T) {
	b, s := doctorCluster(t, wellObjects)
	s.refuse = func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, `{"kind": "Status", "message": "jane may not"}`)
		return true
	}
	b.prints(2, "doctor", "unknown", "kubernetes", "jane may not", "unknown", "nodes", "unknown", "clock", "unknown", "crds", "not all could be looked at")
	b.prints(2, "doctor --context nowhere --timeout 1m", "unknown", "connection refused")
	b.prints(2, "doctor --context other", "does not exist")
	b.prints(2, "doctor nodes", `no command "nodes"; is it node?`)
	b.prints(2, "doctor node --traffic-mode vxlan", "use route, geneve or auto")
	b.prints(2, "doctor node --peer node2", "is no address")
	b.prints(2, "doctor --server 127.0.0.1:1", "asks netmaster itself")
	s.refuse = func(w http.ResponseWriter, _ *http.Request) bool { // a server that sends junk without an end
		for range 1 << 10 {
			if _, err := w.Write([]byte(strings.Repeat("\x1b[2J{[", 1<<10))); err != nil {
				break
			}
		}
		return true
	}
	if out, _, code := b.run("doctor"); code != 2 || strings.Contains(out, "\x1b") {
		t.Errorf("exit code %d:\n%q", code, out)
	}
}

// On a node the clock is compared where a kubeconfig is given, also by who may ask for nothing.
func TestDoctorNode(t *testing.T) {
	b, s := doctorCluster(t, wellObjects)
	ahead := time.Duration(0)
	s.refuse = func(w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("Date", time.Now().Add(ahead).UTC().Format(http.TimeFormat))
		w.WriteHeader(http.StatusForbidden)
		return true
	}
	dir := t.TempDir()
	line := "doctor node --state-dir " + dir + " --cni-conf-dir " + dir + " --ovs-run-dir " + dir
	if out, errOut, _ := b.run(strings.Fields(line)...); !strings.Contains(out, "agrees with the API server's") {
		t.Errorf("%s%s", out, errOut)
	}
	if err := os.WriteFile(filepath.Join(dir, "05-x.conf"), []byte(`{"type": "calico\u001b[2J", "name": "x"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	ahead = time.Hour
	out, _, code := b.run(strings.Fields(line)...)
	if code != 1 || !strings.Contains(out, "behind the API server's") || !strings.Contains(out, "05-x.conf") || strings.Contains(out, "\x1b") {
		t.Errorf("exit code %d:\n%s", code, out)
	}
}
