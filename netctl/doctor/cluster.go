package doctor

import (
	"cmp"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// ClusterFacts are what was read from an API server.
type ClusterFacts struct {
	Server     string
	Date       Fact[time.Time] // the API server's
	Version    Fact[string]
	Nodes      Fact[[]NodeObject]
	Leases     Fact[[]Lease]
	DaemonSets Fact[[]Workload]
	Operators  Fact[[]Workload] // Deployments of kubernetes-nmstate's operator
	FrontProxy Fact[FrontProxy]
	APIService Fact[Service]
	CRDs       Fact[[]CRD]
	Foreign    []Foreign
	Nmstate    []Foreign // objects of kubernetes-nmstate
	Lint       Fact[Lint]
	// PodRanges is cluster-cidrs of the ConfigMap flowkeep; empty: it is not installed by the manifests.
	PodRanges Fact[string]
}

// NodeObject is what of a Node counts.
type NodeObject struct {
	Name, OS string
	PodCIDRs []string
	Internal []string // addresses
}

// Lease is that of a node, in kube-node-lease.
type Lease struct {
	Node    string
	Renewed time.Time // by the node's clock
	Written time.Time // by the API server's; zero: it does not say
}

// Workload is a DaemonSet or a Deployment.
type Workload struct{ Namespace, Name string }

// FrontProxy is what the API server says of who may speak for others (ConfigMap extension-apiserver-authentication).
type FrontProxy struct {
	CA    string // PEM
	Names []string
}

// Service is Flowkeep's APIService.
type Service struct {
	There     bool
	Available string // True, False or Unknown
	Message   string
}

// CRD is a CustomResourceDefinition.
type CRD struct {
	Name     string
	Versions []string // that are served
	Stored   string
	PartOf   string // label app.kubernetes.io/part-of
}

// Foreign are policies of a kind that Flowkeep does not enforce.
type Foreign struct {
	CRD   string
	Count Fact[int]
}

// Lint is what netctl lint finds, by code.
type Lint struct {
	Policies int
	Found    map[string]int // warnings and errors
}

// Cluster judges a cluster.
func Cluster(f *ClusterFacts) Report {
	var b book
	b.kubernetes(&f.Version)
	b.nodes(&f.Nodes)
	b.podCIDRs(&f.Nodes)
	b.clusterCIDRs(&f.Nodes, &f.PodRanges)
	b.leases(f)
	b.daemonSets(&f.DaemonSets)
	b.aggregation(f)
	b.crds(&f.CRDs)
	b.nmstate(f)
	b.policies(f)
	b.lint(&f.Lint)
	return b.report("cluster", f.Server)
}

// TestedKubernetes is the version that Flowkeep's system tests run on.
const TestedKubernetes = "1.36"

func (b *book) kubernetes(text *Fact[string]) {
	const check = "kubernetes"
	if !text.known() {
		b.unknown(check, "the API server's version", text.Error, "")
		return
	}
	major, minor, ok := version(text.Value)
	testedMajor, testedMinor, _ := version(TestedKubernetes)
	switch {
	case !ok:
		b.add(check, Unknown, fmt.Sprintf("%q is no version that could be understood", text.Value), "kubectl version")
	case older(major, minor, 1, 25):
		b.add(check, Problem, text.Value+" is older than 1.25", "upgrade Kubernetes")
	case older(major, minor, 1, 30):
		b.add(check, Warning, text.Value+" is older than 1.30: its tokens do not name the node, so nodes' certificates must be made by hand", "upgrade Kubernetes, or netmaster pki issue --node NAME for each node")
	case major != testedMajor || minor != testedMinor:
		b.add(check, Note, fmt.Sprintf("%s; Flowkeep is tested with %s", text.Value, TestedKubernetes), "")
	default:
		b.ok(check, "%s", text.Value)
	}
}

func (b *book) nodes(nodes *Fact[[]NodeObject]) {
	const check = "nodes"
	if !nodes.known() {
		b.unknown(check, "the nodes", nodes.Error, "kubectl auth can-i list nodes")
		return
	}
	var others []string
	for _, n := range nodes.Value {
		if n.OS != "" && n.OS != "linux" {
			others = append(others, n.Name+" ("+n.OS+")")
		}
	}
	if len(others) > 0 {
		b.add(check, Warning, "not Linux: "+some(others), "no policy is enforced there: keep pods that need policies off these nodes")
	}
	if len(nodes.Value) == 0 {
		b.add(check, Warning, "there are none", "")
		return
	}
	b.ok(check, "%s on Linux; netctl doctor node, on each of them, looks further", count(len(nodes.Value)-len(others), "node", "nodes"))
}

func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// holding is a range of addresses, and whose it is.
type holding struct {
	prefix netip.Prefix
	node   string
}

// clusterCIDRs compares what netplugins take for the CIDRs of all pods with the Nodes' podCIDRs.
func (b *book) clusterCIDRs(nodes *Fact[[]NodeObject], ranges *Fact[string]) {
	const check = "cluster-cidrs"
	switch {
	case !nodes.known() || ranges.known() && ranges.Value == "":
		return
	case !ranges.known():
		b.unknown(check, "ConfigMap flowkeep-system/flowkeep", ranges.Error,
			"kubectl -n flowkeep-system get configmap flowkeep -o yaml")
		return
	}
	var clusters []netip.Prefix
	for text := range strings.SplitSeq(ranges.Value, ",") {
		if p, err := netip.ParsePrefix(strings.TrimSpace(text)); err == nil {
			clusters = append(clusters, p.Masked())
		}
	}
	var outside []string
	for _, n := range nodes.Value {
		for _, text := range n.PodCIDRs {
			p, err := netip.ParsePrefix(text)
			holds := func(c netip.Prefix) bool { return c.Bits() <= p.Bits() && c.Contains(p.Addr()) }
			if err == nil && !slices.ContainsFunc(clusters, holds) {
				outside = append(outside, fmt.Sprintf("%s of %s", p, n.Name))
			}
		}
	}
	if len(outside) == 0 {
		b.ok(check, "%s hold the podCIDRs of all Nodes", ranges.Value)
		return
	}
	b.add(check, Problem, fmt.Sprintf("cluster-cidrs %s do not hold %s", ranges.Value, some(outside)),
		"kubectl -n flowkeep-system edit configmap flowkeep (the chart's network.clusterCIDRs), and "+
			"kubectl -n flowkeep-system rollout restart daemonset netplugin")
}

func (b *book) podCIDRs(nodes *Fact[[]NodeObject]) {
	const check = "pod-cidrs"
	if !nodes.known() {
		return // said already
	}
	var without, unreadable []string
	var all, addresses []holding
	for _, n := range nodes.Value {
		if len(n.PodCIDRs) == 0 {
			without = append(without, n.Name)
		}
		for _, text := range n.PodCIDRs {
			p, err := netip.ParsePrefix(text)
			if err != nil {
				unreadable = append(unreadable, fmt.Sprintf("%s (%q)", n.Name, text))
				continue
			}
			all = append(all, holding{p.Masked(), n.Name})
		}
		for _, text := range n.Internal {
			if a, err := netip.ParseAddr(text); err == nil {
				a = a.Unmap().WithZone("")
				addresses = append(addresses, holding{netip.PrefixFrom(a, a.BitLen()), n.Name})
			}
		}
	}
	if len(without) > 0 {
		b.add(check, Problem, "without podCIDRs: "+some(without), "give kube-controller-manager --allocate-node-cidrs=true and --cluster-cidr (kubeadm init --pod-network-cidr), or set each: kubectl patch node NAME -p '{\"spec\":{\"podCIDR\":\"10.244.1.0/24\",\"podCIDRs\":[\"10.244.1.0/24\"]}}'")
	}
	if len(unreadable) > 0 {
		b.add(check, Problem, "podCIDRs that are none: "+some(unreadable), "")
	}
	clashes := overlaps(all)
	if len(clashes) > 0 {
		b.add(check, Problem, "podCIDRs overlap: "+some(clashes), "drain one of the nodes, delete its Node object and register it again")
	}
	if inside := within(addresses, all); len(inside) > 0 {
		b.add(check, Problem, "nodes' own addresses are in podCIDRs: "+some(inside), "give the pods another range than the nodes' network")
	}
	if len(without)+len(unreadable)+len(clashes) == 0 && len(nodes.Value) > 0 {
		b.ok(check, "all nodes have podCIDRs, and none overlap")
	}
}

// overlaps returns a text for each range that overlaps one of another node. Wider ranges come first, so that each is
// compared with the range before it that reaches furthest.
func overlaps(list []holding) (out []string) {
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b holding) int {
		return cmp.Or(a.prefix.Addr().Compare(b.prefix.Addr()), cmp.Compare(a.prefix.Bits(), b.prefix.Bits()), cmp.Compare(a.node, b.node))
	})
	var open []holding // each within the one before
	for _, h := range list {
		for len(open) > 0 && !open[len(open)-1].prefix.Overlaps(h.prefix) {
			open = open[:len(open)-1]
		}
		for _, o := range open {
			if o.node != h.node {
				out = append(out, fmt.Sprintf("%s of %s and %s of %s", o.prefix, o.node, h.prefix, h.node))
				break
			}
		}
		open = append(open, h)
	}
	return out
}

// within returns the addresses that are in the ranges.
func within(addresses, ranges []holding) (out []string) {
	widths := map[[2]int]bool{} // by family
	byPrefix := map[netip.Prefix]string{}
	for _, r := range ranges {
		widths[[2]int{r.prefix.Addr().BitLen(), r.prefix.Bits()}] = true
		byPrefix[r.prefix] = r.node
	}
	for _, a := range addresses {
		for w := range widths {
			if w[0] != a.prefix.Addr().BitLen() {
				continue
			}
			p := netip.PrefixFrom(a.prefix.Addr(), w[1]).Masked()
			if node, ok := byPrefix[p]; ok {
				out = append(out, fmt.Sprintf("%s of %s in %s of %s", a.prefix.Addr(), a.node, p, node))
			}
		}
	}
	return out
}

// quiet is how long a node's Lease may be old before it counts as gone: kubelets renew it every 10 seconds, and count as lost after 40.
const quiet = 40 * time.Second

// leases judge nodes' clocks: each Lease has a time by the node's clock, and one of the API server's when that was written.
func (b *book) leases(f *ClusterFacts) {
	const check = "clock"
	switch {
	case !f.Leases.known():
		b.unknown(check, "the nodes' Leases in kube-node-lease", f.Leases.Error, "kubectl auth can-i list leases -n kube-node-lease")
		return
	case !f.Date.known():
		b.unknown(check, "the API server's time", f.Date.Error, "")
		return
	}
	fine, silent := 0, []string{}
	before := len(b.list)
	for _, l := range f.Leases.Value {
		age := f.Date.Value.Sub(l.Renewed)
		offset := Offset{Ahead: -age, Give: time.Second}
		switch {
		case !l.Written.IsZero():
			offset.Ahead = l.Renewed.Sub(l.Written)
			if f.Date.Value.Sub(l.Written) > quiet {
				silent = append(silent, l.Node)
			}
		case age > 0 && age <= quiet:
			offset.Ahead = 0
		case age > quiet: // it may be the clock, or the node
			silent = append(silent, l.Node)
			continue
		}
		if (offset.Ahead.Abs() - offset.Give) < skewTold {
			fine++
			continue
		}
		b.skew("the clock of node "+l.Node, offset, "on node "+l.Node+": timedatectl set-ntp true, or see to chrony")
	}
	b.list = atMost(b.list, before, check)
	if len(silent) > 0 {
		b.add(check, Warning, "nodes that have not renewed their Leases for more than 40 seconds: "+some(silent), "kubectl get nodes; on each: systemctl status kubelet, timedatectl")
	}
	if fine > 0 {
		b.ok(check, "%s with the API server's, to %v", count(fine, "node's clock agrees", "nodes' clocks agree"), skewTold)
	}
}

// atMost keeps as many findings of a check as can be read, and counts the others.
func atMost(list []Finding, from int, check string) []Finding {
	const most = 20
	if len(list)-from <= most {
		return list
	}
	more := list[from+most:]
	worst := slices.IndexFunc(Levels, func(l Level) bool {
		return slices.ContainsFunc(more, func(f Finding) bool { return f.Level == l })
	})
	summary := Finding{Check: check, Level: Levels[worst], Seen: fmt.Sprintf("and %d more of this kind", len(more)), Why: whys[check]}
	return append(list[:from+most:from+most], summary)
}

func (b *book) daemonSets(sets *Fact[[]Workload]) {
	if !sets.known() {
		b.unknown("other-networks", "the cluster's DaemonSets", sets.Error, "kubectl auth can-i list daemonsets -A")
		return
	}
	place := map[string]string{}
	var names []string
	proxy := ""
	for _, w := range sets.Value {
		names = append(names, w.Name)
		place[w.Name] = w.Namespace
		if w.Name == "kube-proxy" || strings.HasPrefix(w.Name, "kube-proxy-") {
			proxy = w.Namespace + "/" + w.Name
		}
	}
	order, by := grouped(byDaemonSet, names)
	for _, n := range order {
		first := slices.Min(by[n])
		b.add("other-networks", Problem, fmt.Sprintf("%s runs: DaemonSet %s", n, some(by[n])),
			fmt.Sprintf("remove %s as its guide says, or begin with: kubectl -n %s delete daemonset %s; then netctl doctor node, on each node, shows what it left", n, quoted(place[first]), quoted(first)))
	}
	if len(order) == 0 {
		b.ok("other-networks", "no DaemonSet of another network that is known, among %d", len(names))
	}
	if proxy == "" {
		b.add("kube-proxy", Note, "there is no DaemonSet kube-proxy: it may run on the nodes by itself, as k3s has it", "on a node: pgrep -a kube-proxy; if there is none: kubeadm init phase addon kube-proxy")
		return
	}
	b.ok("kube-proxy", "DaemonSet %s is there", proxy)
}

func (b *book) aggregation(f *ClusterFacts) {
	const check = "aggregation"
	flags := "give kube-apiserver --requestheader-client-ca-file, --proxy-client-cert-file and --proxy-client-key-file (kubeadm does); meanwhile netctl --server asks netmaster itself"
	switch p := &f.FrontProxy.Value; {
	case !f.FrontProxy.known():
		b.unknown(check, "ConfigMap kube-system/extension-apiserver-authentication", f.FrontProxy.Error, "kubectl -n kube-system get configmap extension-apiserver-authentication")
	case p.CA == "":
		b.add(check, Problem, "the API server has no front proxy's certificate authority: netctl cannot ask netmaster through it", flags)
	default:
		b.frontProxy(p, &f.Date)
	}
	switch s := &f.APIService.Value; {
	case !f.APIService.known():
		b.unknown(check, "Flowkeep's APIService", f.APIService.Error, "kubectl get apiservices")
	case s.There && s.Available != "True":
		b.add(check, Warning, fmt.Sprintf("Flowkeep's APIService is not available, and no namespace can be deleted: %s",
			none(s.Message)),
			"where netmaster does not come back by itself: kubectl delete apiservice v1alpha1.inspect.flowkeep.io")
	case s.There:
		b.ok(check, "Flowkeep's APIService is available")
	}
}

// frontProxy looks at the authorities: one that is valid is enough.
func (b *book) frontProxy(p *FrontProxy, date *Fact[time.Time]) {
	const check = "aggregation"
	last, bad := time.Time{}, 0
	for rest := []byte(p.CA); ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			bad++
			continue
		}
		if cert.NotAfter.After(last) {
			last = cert.NotAfter
		}
	}
	renew := "kubeadm certs check-expiration; kubeadm certs renew front-proxy-client"
	switch {
	case last.IsZero():
		b.add(check, Problem, "the front proxy's authority holds no certificate that can be read", renew)
	case !date.known():
		b.ok(check, "the front proxy's authority is valid until %s", last.UTC().Format(time.DateOnly))
	case !date.Value.Before(last):
		b.add(check, Problem, "the front proxy's authority has expired on "+last.UTC().Format(time.DateOnly), renew)
	case date.Value.Add(30 * 24 * time.Hour).After(last):
		b.add(check, Warning, "the front proxy's authority expires on "+last.UTC().Format(time.DateOnly), renew)
	case bad > 0:
		b.add(check, Note, fmt.Sprintf("%s of the front proxy's authorities cannot be read", count(bad, "certificate", "certificates")), renew)
	default:
		b.ok(check, "the front proxy's authority is valid until %s", last.UTC().Format(time.DateOnly))
	}
}

// ownCRDs are Flowkeep's, with the versions that it speaks; deploy/crds has the same.
var ownCRDs = map[string]string{
	"macvtapnetworknodepolicies.macvtap.network.kubevirt.io": "v1alpha1",
	"macvtapnodes.macvtap.network.kubevirt.io":               "v1alpha1",
	"networkpolicyenforcements.fleet.flowkeep.io":            "v1alpha1",
	"networkpolicysets.fleet.flowkeep.io":                    "v1alpha1",
	"nodenetworkconfigurationpolicies.nmstate.io":            "v1",
	"nodenetworkstates.nmstate.io":                           "v1",
	"policyoverrides.fleet.flowkeep.io":                      "v1alpha1",
}

// OwnCRDs returns the names of Flowkeep's CustomResourceDefinitions.
func OwnCRDs() []string { return slices.Sorted(maps.Keys(ownCRDs)) }

// OwnCRD reports whether a CustomResourceDefinition is Flowkeep's. A label distinguishes those that kubernetes-nmstate
// has too, or their one version where an earlier Flowkeep wrote them.
func OwnCRD(c CRD) bool {
	want, ours := ownCRDs[c.Name]
	switch {
	case !ours:
		return false
	case slices.Equal(c.Versions, []string{want}):
		return true
	}
	return strings.HasSuffix(c.Name, nmstateGroup) && c.PartOf == "flowkeep" &&
		slices.Equal(c.Versions, []string{want, nmstateVersion})
}

func (b *book) crds(crds *Fact[[]CRD]) {
	const check = "crds"
	if !crds.known() {
		b.unknown(check, "CustomResourceDefinitions", crds.Error, "kubectl auth can-i list customresourcedefinitions")
		return
	}
	there, wrong := 0, 0
	for _, c := range crds.Value {
		want, ours := ownCRDs[c.Name]
		switch {
		case !ours:
		case !slices.Contains(c.Versions, want):
			wrong++
			whose := "kubectl get crd " + c.Name + " -o yaml shows whose it is"
			if strings.HasSuffix(c.Name, nmstateGroup) {
				whose = "it may be kubernetes-nmstate's: only one of the two can keep nodes' networks; remove that, or leave out Flowkeep's node-state"
			}
			b.add(check, Problem, fmt.Sprintf("%s is there with the versions %s; Flowkeep's has %s", c.Name, none(some(c.Versions)), want), whose)
		case !OwnCRD(c) || c.Stored != want:
			b.add(check, Note,
				fmt.Sprintf("%s serves %s and stores %s; Flowkeep's has %s",
					c.Name, some(c.Versions), c.Stored, ownVersions(c.Name)),
				"kubectl apply -f deploy/crds, and store the objects again, once no program uses the others")
			there++
		default:
			there++
		}
	}
	switch {
	case there > 0:
		b.ok(check, "%d of Flowkeep's %d are there", there, len(ownCRDs))
	case wrong == 0:
		b.ok(check, "none of Flowkeep's are there yet, nor any in their way")
	}
}

// ownVersions returns the versions that Flowkeep's CustomResourceDefinition of a name has.
func ownVersions(name string) string {
	if strings.HasSuffix(name, nmstateGroup) {
		return ownCRDs[name] + ", which it stores, and " + nmstateVersion
	}
	return ownCRDs[name] + " alone"
}

// foreignPolicies are CRDs of policies that Flowkeep does not enforce.
var foreignPolicies = []string{
	"adminnetworkpolicies.policy.networking.k8s.io", "baselineadminnetworkpolicies.policy.networking.k8s.io", "clusternetworkpolicies.policy.networking.k8s.io",
	"ciliumnetworkpolicies.cilium.io", "ciliumclusterwidenetworkpolicies.cilium.io",
	"networkpolicies.crd.projectcalico.org", "globalnetworkpolicies.crd.projectcalico.org", "stagednetworkpolicies.crd.projectcalico.org",
	"networkpolicies.crd.antrea.io", "clusternetworkpolicies.crd.antrea.io",
	"multi-networkpolicies.k8s.cni.cncf.io", "egressfirewalls.k8s.ovn.org",
}

// IsForeignPolicy reports whether a CRD has policies that Flowkeep does not enforce.
func IsForeignPolicy(crd string) bool { return slices.Contains(foreignPolicies, crd) }

func (b *book) policies(f *ClusterFacts) {
	const check = "policies"
	if !f.CRDs.known() {
		return // said already
	}
	found := false
	for _, p := range f.Foreign {
		switch {
		case !p.Count.known():
			b.unknown(check, "objects "+p.CRD, p.Count.Error, "kubectl get "+p.CRD+" -A")
			found = true
		case p.Count.Value > 0:
			b.add(check, Warning, fmt.Sprintf("%s of %s would not be enforced", count(p.Count.Value, "object", "objects"), p.CRD), "kubectl get "+p.CRD+" -A; write as NetworkPolicy what is needed of them")
			found = true
		}
	}
	if !found {
		b.ok(check, "no policies of kinds that Flowkeep does not enforce")
	}
}

func (b *book) lint(l *Fact[Lint]) {
	const check = "lint"
	if !l.known() {
		b.unknown(check, "the policies and what they are about", l.Error, "")
		return
	}
	sum := 0
	var codes []string
	for code, n := range l.Value.Found {
		sum += n
		codes = append(codes, fmt.Sprintf("%s (%d)", code, n))
	}
	if sum == 0 {
		b.ok(check, "nothing to object to in %s", count(l.Value.Policies, "NetworkPolicy", "NetworkPolicies"))
		return
	}
	b.add(check, Note, fmt.Sprintf("%s in %s: %s", count(sum, "thing that is probably not meant", "things that are probably not meant"), count(l.Value.Policies, "NetworkPolicy", "NetworkPolicies"), some(codes)),
		"netctl lint, once Flowkeep is there; before: kubectl get networkpolicies,pods,namespaces,nodes -A -o yaml | netctl lint -f -; docs/lint.md tells of the codes")
}
