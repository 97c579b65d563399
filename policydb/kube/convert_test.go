package kube

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/api/wellknown"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"
)

// read makes a NetworkPolicy of a spec in YAML.
func read(t testing.TB, spec string) *networkingv1.NetworkPolicy {
	t.Helper()
	np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u1", Generation: 7}}
	if err := yaml.UnmarshalStrict([]byte(spec), &np.Spec); err != nil {
		t.Fatal(err)
	}
	return np
}

func TestPolicyDefaults(t *testing.T) {
	db := policy.Selector{Requirements: []policy.Requirement{{Key: "app", Operator: policy.In, Values: []string{"db"}}}}
	everyone := policy.PolicyRule{AnyPeer: true, AnyPort: true}
	for _, c := range []struct {
		name, spec string
		want       policy.Policy
	}{
		{"nothing given isolates for ingress", `{}`, policy.Policy{IsolatesIngress: true}},
		{"egress present, policyTypes absent", `{egress: [{}]}`,
			policy.Policy{IsolatesIngress: true, IsolatesEgress: true, Egress: []policy.PolicyRule{everyone}}},
		{"egress present and empty, policyTypes absent", `{egress: []}`, policy.Policy{IsolatesIngress: true}},
		{"only egress", `{policyTypes: [Egress]}`, policy.Policy{IsolatesEgress: true}},
		{"from absent, from empty", `{ingress: [{}, {from: [], ports: []}]}`,
			policy.Policy{IsolatesIngress: true, Ingress: []policy.PolicyRule{everyone, everyone}}},
		{"an empty podSelector as peer is every pod of the namespace", `{ingress: [{from: [{podSelector: {}}]}]}`,
			policy.Policy{IsolatesIngress: true, Ingress: []policy.PolicyRule{{AnyPort: true, Peers: []policy.Peer{{Pods: &policy.Selector{}}}}}}},
		{"both selectors together", `{podSelector: {matchLabels: {app: db}}, ingress: [{from: [{namespaceSelector: {}, podSelector: {matchLabels: {app: db}}}]}]}`,
			policy.Policy{AppliedTo: db, IsolatesIngress: true, Ingress: []policy.PolicyRule{{AnyPort: true, Peers: []policy.Peer{{Namespaces: &policy.Selector{}, Pods: &db}}}}}},
		{"ports: protocol only, number, range, name", `{ingress: [{ports: [{}, {protocol: UDP, port: 53}, {protocol: SCTP, port: 10, endPort: 20}, {port: http}]}]}`,
			policy.Policy{IsolatesIngress: true, Ingress: []policy.PolicyRule{{AnyPeer: true, Ports: []policy.PolicyPort{
				{Protocol: policy.TCP, First: 0, Last: 65535}, {Protocol: policy.UDP, First: 53, Last: 53},
				{Protocol: policy.SCTP, First: 10, Last: 20}, {Protocol: policy.TCP, Name: "http"}}}}}},
		{"ipBlock of both families", `{egress: [{to: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16]}}, {ipBlock: {cidr: "fd00::/8"}}]}], policyTypes: [Egress]}`,
			policy.Policy{IsolatesEgress: true, Egress: []policy.PolicyRule{{AnyPort: true, Peers: []policy.Peer{
				{Block: &policy.IPBlock{CIDR: netip.MustParsePrefix("10.0.0.0/8"), Except: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}}},
				{Block: &policy.IPBlock{CIDR: netip.MustParsePrefix("fd00::/8")}}}}}}},
		{"all operators", `{podSelector: {matchExpressions: [{key: a, operator: In, values: [x, z]}, {key: b, operator: NotIn, values: [z]}, {key: c, operator: Exists}, {key: d, operator: DoesNotExist}]}}`,
			policy.Policy{IsolatesIngress: true, AppliedTo: policy.Selector{Requirements: []policy.Requirement{
				{Key: "a", Operator: policy.In, Values: []string{"x", "z"}}, {Key: "b", Operator: policy.NotIn, Values: []string{"z"}},
				{Key: "c", Operator: policy.Exists}, {Key: "d", Operator: policy.DoesNotExist}}}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.want.Namespace, c.want.Name, c.want.UID, c.want.Generation = "ns", "p", "u1", 7
			got := Policy(read(t, c.spec))
			if diff := cmp.Diff(&c.want, got, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// What cannot be understood is left out, told, and never makes a list look absent.
func TestHostilePolicies(t *testing.T) {
	for _, c := range []struct {
		name, spec, says string
	}{
		{"unknown protocol", `{ingress: [{ports: [{protocol: ICMP}]}]}`, "ICMP"},
		{"empty protocol", `{ingress: [{ports: [{protocol: ""}]}]}`, "protocol"},
		{"port 0", `{ingress: [{ports: [{port: 0}]}]}`, "0"},
		{"port too large", `{ingress: [{ports: [{port: 65616}]}]}`, "65616"},
		{"negative port", `{ingress: [{ports: [{port: -1}]}]}`, "-1"},
		{"endPort below port", `{ingress: [{ports: [{port: 80, endPort: 79}]}]}`, "79"},
		{"endPort too large", `{ingress: [{ports: [{port: 80, endPort: 65536}]}]}`, "65536"},
		{"endPort with a name", `{ingress: [{ports: [{port: http, endPort: 90}]}]}`, "endPort"},
		{"endPort alone", `{ingress: [{ports: [{endPort: 90}]}]}`, "endPort"},
		{"empty port name", `{ingress: [{ports: [{port: ""}]}]}`, "name"},
		{"host bits", `{ingress: [{from: [{ipBlock: {cidr: 10.0.0.1/8}}]}]}`, "10.0.0.0/8"},
		{"no CIDR", `{ingress: [{from: [{ipBlock: {cidr: 10.0.0.0}}]}]}`, "CIDR"},
		{"leading zeros", `{ingress: [{from: [{ipBlock: {cidr: 010.0.0.0/8}}]}]}`, "CIDR"},
		{"mapped CIDR", `{ingress: [{from: [{ipBlock: {cidr: "::ffff:10.0.0.0/104"}}]}]}`, "IPv4"},
		{"except outside", `{ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8, except: [11.0.0.0/16]}}]}]}`, "11.0.0.0/16"},
		{"except larger", `{ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8, except: [0.0.0.0/0]}}]}]}`, "0.0.0.0/0"},
		{"except of the other family", `{ingress: [{from: [{ipBlock: {cidr: 0.0.0.0/0, except: ["fd00::/8"]}}]}]}`, "fd00::/8"},
		{"except unreadable", `{ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8, except: [x]}}]}]}`, "x"},
		{"block and selector", `{ingress: [{from: [{podSelector: {}, ipBlock: {cidr: 10.0.0.0/8}}]}]}`, "ipBlock"},
		{"empty peer", `{ingress: [{from: [{}]}]}`, "selector"},
		{"bad operator in a peer", `{ingress: [{from: [{podSelector: {matchExpressions: [{key: a, operator: Gt, values: ["1"]}]}}]}]}`, "Gt"},
		{"In without values", `{ingress: [{from: [{namespaceSelector: {matchExpressions: [{key: a, operator: In}]}}]}]}`, "In"},
		{"NotIn without values", `{ingress: [{from: [{podSelector: {matchExpressions: [{key: a, operator: NotIn}]}}]}]}`, "NotIn"},
		{"Exists with values", `{ingress: [{from: [{podSelector: {matchExpressions: [{key: a, operator: Exists, values: [x]}]}}]}]}`, "Exists"},
		{"a key that is none", `{ingress: [{from: [{podSelector: {matchExpressions: [{key: "a b", operator: DoesNotExist}]}}]}]}`, "a b"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := Policy(read(t, c.spec))
			r := p.Ingress[0]
			if !p.IsolatesIngress || len(r.Peers)+len(r.Ports) > 0 || r.AnyPeer && r.AnyPort {
				t.Errorf("%+v lets something through", p)
			}
			if len(p.Problems) != 1 || !strings.Contains(p.Problems[0], c.says) || !strings.Contains(p.Problems[0], "spec.ingress[0].") {
				t.Errorf("problems %q do not speak of %q", p.Problems, c.says)
			}
		})
	}
}

// A policy whose own podSelector makes no sense isolates its whole namespace and allows nothing.
func TestUnreadablePodSelector(t *testing.T) {
	for _, selector := range []string{
		`{matchExpressions: [{key: a, operator: Gt, values: ["1"]}]}`, `{matchExpressions: [{key: a, operator: In}]}`, `{matchLabels: {"": x}}`,
	} {
		p := Policy(read(t, fmt.Sprintf(`{podSelector: %s, ingress: [{}], egress: [{}]}`, selector)))
		if len(p.AppliedTo.Requirements) > 0 || !p.IsolatesIngress || !p.IsolatesEgress || len(p.Ingress)+len(p.Egress) > 0 || len(p.Problems) == 0 {
			t.Errorf("%s: %+v", selector, p)
		}
	}
}

func TestEnforcement(t *testing.T) {
	for value, dryRun := range map[string]bool{"dry-run": true, "audit": true, "enforce": false, "": false, "Audit": false, "Dry-run": false, "dryrun": false, " audit": false, "true": false} {
		np := read(t, `{}`)
		np.Annotations = map[string]string{Enforcement: value, "flowkeep.io/other": "audit"}
		p := Policy(np)
		known := dryRun || value == policy.ModeEnforce
		if p.DryRun != dryRun || known != (len(p.Problems) == 0) || !p.IsolatesIngress {
			t.Errorf("%q: %+v", value, p)
		}
		want := fmt.Sprintf("metadata.annotations: flowkeep.io/enforcement cannot be %q: write dry-run for a dry run, or enforce; until then the policy is enforced", value)
		if !known && (len(p.Problems) != 1 || p.Problems[0] != want) {
			t.Errorf("%q: problems %q", value, p.Problems)
		}
	}
	if p := Policy(read(t, `{}`)); p.DryRun || len(p.Problems) > 0 {
		t.Errorf("without: %+v", p)
	}
}

func TestCopy(t *testing.T) {
	for value, want := range map[string]string{"": "", "9f3c": "9f3c", strings.Repeat("x", 128): strings.Repeat("x", 128), strings.Repeat("x", 129): ""} {
		np := read(t, `{}`)
		np.Annotations = map[string]string{Copy: value}
		if p := Policy(np); p.Copy != want || len(p.Problems) > 0 {
			t.Errorf("%q: %+v", value, p)
		}
	}
	if p := Policy(read(t, `{}`)); p.Copy != "" {
		t.Errorf("without: %+v", p)
	}
}

func TestUnknownPolicyTypeIsolatesBothWays(t *testing.T) {
	p := Policy(read(t, `{policyTypes: [Sideways]}`))
	if !p.IsolatesIngress || !p.IsolatesEgress || len(p.Problems) != 1 {
		t.Errorf("%+v", p)
	}
}

// One bad entry among good ones takes only itself away.
func TestTheRestGoesOn(t *testing.T) {
	p := Policy(read(t, `{ingress: [{from: [{ipBlock: {cidr: 10.0.0.1/8}}, {podSelector: {}}], ports: [{port: 0}, {port: 80}]}]}`))
	if r := p.Ingress[0]; len(r.Peers) != 1 || len(r.Ports) != 1 || len(p.Problems) != 2 {
		t.Errorf("%+v", p)
	}
}

func TestTenThousandPeers(t *testing.T) {
	np := read(t, `{ingress: [{}]}`)
	for i := range 10000 {
		cidr := fmt.Sprintf("10.%d.%d.0/24", i/256, i%256)
		if i%2 == 1 {
			cidr = strings.Repeat("9", 1000)
		}
		np.Spec.Ingress[0].From = append(np.Spec.Ingress[0].From, networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: cidr}})
	}
	p := Policy(np)
	if len(p.Ingress[0].Peers) != 5000 {
		t.Errorf("%d peers", len(p.Ingress[0].Peers))
	}
	if text := strings.Join(p.Problems, "\n"); len(text) > 8000 || !strings.Contains(text, "4980 more") {
		t.Errorf("%d bytes of problems: …%s", len(text), text[max(0, len(text)-200):])
	}
}

func TestEndpoint(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	port := func(name string, n int32, p corev1.Protocol) corev1.ContainerPort {
		return corev1.ContainerPort{Name: name, ContainerPort: n, Protocol: p}
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a", UID: types.UID("u"), Labels: map[string]string{"app": "db"},
			DeletionTimestamp: &metav1.Time{}, CreationTimestamp: metav1.Unix(1000, 0)},
		Spec: corev1.PodSpec{NodeName: "n1",
			Containers: []corev1.Container{
				{Ports: []corev1.ContainerPort{port("http", 80, "TCP"), port("", 81, "TCP"), port("dns", 53, "UDP"), port("http", 80, "TCP")}},
				{Ports: []corev1.ContainerPort{port("http", 8080, "SCTP"), port("wrapped", 65536+80, "TCP"), port("zero", 0, "TCP"), port("odd", 9, "ICMP"), port("default", 7, "")}}},
			InitContainers: []corev1.Container{
				{Ports: []corev1.ContainerPort{port("init", 1, "TCP")}},
				{RestartPolicy: &always, Ports: []corev1.ContainerPort{port("side", 2, "TCP")}}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.0.9", PodIPs: []corev1.PodIP{
			{IP: "10.0.0.1"}, {IP: "fd00::1"}, {IP: "10.0.0.2"}, {IP: "junk"}, {IP: "fe80::1%eth0"}}},
	}
	want := &policy.Endpoint{
		Namespace: "ns", Name: "a", UID: "u", Labels: map[string]string{"app": "db"}, Node: "n1", Terminating: true, CreatedAt: 1000,
		Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")},
		Ports: []policy.NamedPort{{Name: "http", Protocol: policy.TCP, Number: 80}, {Name: "dns", Protocol: policy.UDP, Number: 53},
			{Name: "http", Protocol: policy.SCTP, Number: 8080}, {Name: "default", Protocol: policy.TCP, Number: 7}, {Name: "side", Protocol: policy.TCP, Number: 2}},
	}
	if got := Endpoint(pod); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	pod.Status.PodIPs = nil
	if got := Endpoint(pod).Addresses; !slices.Equal(got, []netip.Addr{netip.MustParseAddr("10.0.0.9")}) {
		t.Errorf("podIP alone gives %v", got)
	}
	for phase, finished := range map[corev1.PodPhase]bool{corev1.PodSucceeded: true, corev1.PodFailed: true, corev1.PodPending: false, corev1.PodUnknown: false} {
		if pod.Status.Phase = phase; Endpoint(pod).Finished != finished {
			t.Errorf("phase %s: finished is %v", phase, !finished)
		}
	}
	pod.Spec.HostNetwork = true
	if !Endpoint(pod).HostNetwork {
		t.Error("hostNetwork is lost")
	}
}

func TestEndpoint_Sandbox(t *testing.T) {
	condition := func(status corev1.ConditionStatus) []corev1.PodCondition {
		return []corev1.PodCondition{
			{Type: corev1.PodReady, Status: corev1.ConditionFalse},
			{Type: corev1.PodReadyToStartContainers, Status: status},
		}
	}
	for name, c := range map[string]struct {
		status  corev1.PodStatus
		no, has bool
	}{
		"an older kubelet":             {corev1.PodStatus{PodIP: "10.0.0.1"}, false, false},
		"a sandbox":                    {corev1.PodStatus{PodIP: "10.0.0.1", Conditions: condition("True")}, false, true},
		"an address without a sandbox": {corev1.PodStatus{PodIP: "10.0.0.1", Conditions: condition("False")}, true, false},
		"no address yet":               {corev1.PodStatus{Conditions: condition("False")}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			if e := Endpoint(&corev1.Pod{Status: c.status}); e.NoSandbox != c.no || e.HasSandbox != c.has {
				t.Errorf("NoSandbox is %v, HasSandbox %v", e.NoSandbox, e.HasSandbox)
			}
		})
	}
}

// A static pod is the kubelet's, which tells netplugin the UID that it made of the pod's file.
func TestUIDOfStaticPods(t *testing.T) {
	const hash = "5f2b8e1c7d9a4036b1e2c3d4f5a60718"
	for _, c := range []struct {
		name        string
		annotations map[string]string
		want        string
	}{
		{"a pod", nil, "of-the-api"},
		{"a mirror pod", map[string]string{"kubernetes.io/config.mirror": hash, "kubernetes.io/config.hash": hash, "kubernetes.io/config.source": "file"}, hash},
		{"an annotation that says nothing", map[string]string{"kubernetes.io/config.mirror": ""}, "of-the-api"},
		{"a hash alone, which anybody may write at any time", map[string]string{"kubernetes.io/config.hash": hash}, "of-the-api"},
	} {
		t.Run(c.name, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a-n1", UID: "of-the-api", Annotations: c.annotations}}
			if got := Endpoint(pod).UID; got != c.want {
				t.Errorf("UID %q, want %q", got, c.want)
			}
		})
	}
}

func TestNode(t *testing.T) {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"},
		Spec: corev1.NodeSpec{PodCIDR: "10.244.1.0/24", PodCIDRs: []string{"10.244.1.0/24", "fd00:1::/64", "junk"}},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeHostName, Address: "10.9.9.9"}, {Type: corev1.NodeInternalIP, Address: "192.168.0.1"},
			{Type: corev1.NodeInternalIP, Address: "192.168.0.2"}, {Type: corev1.NodeInternalIP, Address: "fd01::1"}, {Type: corev1.NodeExternalIP, Address: "1.2.3.4"}}}}
	want := policy.NodeInfo{Name: "n1", Addresses: []netip.Addr{netip.MustParseAddr("192.168.0.1"), netip.MustParseAddr("fd01::1")},
		PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24"), netip.MustParsePrefix("fd00:1::/64")}}
	if got := Node(n); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v", got)
	}
	n.Spec.PodCIDRs = nil
	if got := Node(n).PodCIDRs; !slices.Equal(got, want.PodCIDRs[:1]) {
		t.Errorf("podCIDR alone gives %v", got)
	}
}

// Of a name that several containers have, the first number counts; of very many ports, the first up to the budget.
func TestEndpoint_NamedPorts(t *testing.T) {
	named := func(name string, number int) corev1.ContainerPort {
		return corev1.ContainerPort{Name: name, ContainerPort: int32(number)}
	}
	pod := &corev1.Pod{}
	pod.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: strings.Repeat("u", 100_000)}
	pod.Spec.Containers = []corev1.Container{{Ports: []corev1.ContainerPort{named("http", 80)}}, {Ports: []corev1.ContainerPort{named("http", 81), named("db", 5432)}}}
	for i := range 40_000 {
		pod.Spec.Containers[1].Ports = append(pod.Spec.Containers[1].Ports, named(fmt.Sprintf("p%d", i), 1+i))
	}
	e := Endpoint(pod)
	want := []policy.NamedPort{{Name: "http", Protocol: policy.TCP, Number: 80}, {Name: "db", Protocol: policy.TCP, Number: 5432}, {Name: "p0", Protocol: policy.TCP, Number: 1}}
	if !slices.Equal(e.Ports[:3], want) || len(e.Ports) != policy.DefaultBudgets.PodPorts || e.PortsLeftOut != 40_002-len(e.Ports) {
		t.Errorf("%d ports, %d left out: %v", len(e.Ports), e.PortsLeftOut, e.Ports[:3])
	}
	if len(e.UID) != maxUID {
		t.Errorf("a UID of %d bytes", len(e.UID))
	}
}

// A mirror pod is no peer, whatever its annotation has; the administrators' label refuses a Node, and no other value of
// it does.
func TestWhatKubeletsMayClaim(t *testing.T) {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "x", UID: "u"}}
	if Endpoint(p).NoPeer {
		t.Error("a pod is no peer")
	}
	for _, text := range []string{"", "of-the-kubelet"} {
		p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: text}
		if !Endpoint(p).NoPeer {
			t.Errorf("with the annotation %q it is a peer", text)
		}
	}
	created := metav1.Unix(7, 0)
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u", CreationTimestamp: created}}
	n.Labels = map[string]string{wellknown.LabelRefused: "true"}
	if got := Node(n); !got.Refused || got.UID != "u" || got.CreatedAt != 7 {
		t.Errorf("%+v", got)
	}
	if n.Labels[wellknown.LabelRefused] = "false"; Node(n).Refused {
		t.Error("refused by another value")
	}
}
