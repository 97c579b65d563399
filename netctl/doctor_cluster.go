package main

import (
	"context"
	"net/url"
	"slices"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netctl/apiserver"
	"github.com/flowkeep/flowkeep/netctl/doctor"
	"github.com/flowkeep/flowkeep/policydb/kube"
	"github.com/flowkeep/flowkeep/policydb/lint"
	"github.com/flowkeep/flowkeep/policydb/policy"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// clusterFacts reads what doctor.Cluster judges. What cannot be read is in the facts, with its reason.
func clusterFacts(ctx context.Context, c *apiserver.Client) *doctor.ClusterFacts {
	date, _, _, err := c.Date(ctx)
	f := &doctor.ClusterFacts{Server: c.Server(), Date: doctor.Read(date, err), Version: doctor.Read(apiVersion(ctx, c)),
		FrontProxy: doctor.Read(frontProxy(ctx, c)), APIService: doctor.Read(ownAPIService(ctx, c))}
	nodes, err := allOf(ctx, c, "/api/v1/nodes", func(n *corev1.Node) *corev1.Node { return n })
	f.Nodes = doctor.Read(doctorNodes(nodes), err)
	f.Leases = doctor.Read(allOf(ctx, c, "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases", (*leaseObject).lease))
	f.DaemonSets = doctor.Read(allOf(ctx, c, "/apis/apps/v1/daemonsets", workload))
	deployments, err := allOf(ctx, c, "/apis/apps/v1/deployments", workload)
	f.Operators = doctor.Read(slices.DeleteFunc(deployments, func(d doctor.Workload) bool {
		return d.Name != doctor.NmstateOperator
	}), err)
	crds, err := allOf(ctx, c, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", func(o *crdObject) crdObject { return *o })
	f.CRDs = doctor.Read(crdsOf(crds), err)
	for i, d := range crdsOf(crds) {
		if doctor.OfNmstate(d) {
			f.Nmstate = append(f.Nmstate, doctor.Foreign{CRD: d.Name, Count: doctor.Read(crds[i].count(ctx, c))})
		}
		if doctor.IsForeignPolicy(crds[i].Metadata.Name) {
			f.Foreign = append(f.Foreign, doctor.Foreign{CRD: crds[i].Metadata.Name, Count: doctor.Read(crds[i].count(ctx, c))})
		}
	}
	f.Lint = doctor.Read(lintOf(ctx, c, nodes))
	f.PodRanges = doctor.Read(podRanges(ctx, c))
	return f
}

func workload(o *metav1.PartialObjectMetadata) doctor.Workload {
	return doctor.Workload{Namespace: o.Namespace, Name: o.Name}
}

// allOf reads all objects of a kind, and keeps of each what counts.
func allOf[T, K any](ctx context.Context, c *apiserver.Client, path string, keep func(*T) K) (out []K, err error) {
	err = apiserver.Each(ctx, c, path, "", func(o *T, _ int) { out = append(out, keep(o)) })
	return out, err
}

func apiVersion(ctx context.Context, c *apiserver.Client) (string, error) {
	v, err := apiserver.One[struct{ GitVersion string }](ctx, c, "/version")
	if err != nil {
		return "", err
	}
	return v.GitVersion, nil
}

func doctorNodes(nodes []*corev1.Node) (out []doctor.NodeObject) {
	for _, n := range nodes {
		o := doctor.NodeObject{Name: n.Name, OS: n.Status.NodeInfo.OperatingSystem, PodCIDRs: n.Spec.PodCIDRs}
		if len(o.PodCIDRs) == 0 && n.Spec.PodCIDR != "" {
			o.PodCIDRs = []string{n.Spec.PodCIDR}
		}
		for _, a := range n.Status.Addresses {
			if a.Type == corev1.NodeInternalIP {
				o.Internal = append(o.Internal, a.Address)
			}
		}
		out = append(out, o)
	}
	return out
}

// leaseObject is a Lease with a time by its holder's clock and one by the API server's.
type leaseObject struct {
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		RenewTime metav1.MicroTime `json:"renewTime"`
	} `json:"spec"`
}

func (l *leaseObject) lease() doctor.Lease {
	out := doctor.Lease{Node: l.Name, Renewed: l.Spec.RenewTime.Time}
	for _, m := range l.ManagedFields {
		if m.Time != nil && m.Time.After(out.Written) {
			out.Written = m.Time.Time
		}
	}
	return out
}

func frontProxy(ctx context.Context, c *apiserver.Client) (doctor.FrontProxy, error) {
	m, err := apiserver.One[corev1.ConfigMap](ctx, c, "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication")
	if err != nil {
		return doctor.FrontProxy{}, err
	}
	return doctor.FrontProxy{CA: m.Data["requestheader-client-ca-file"]}, nil
}

// podRanges returns what netplugins of the manifests take for the CIDRs of all pods.
func podRanges(ctx context.Context, c *apiserver.Client) (string, error) {
	m, err := apiserver.One[corev1.ConfigMap](ctx, c, "/api/v1/namespaces/flowkeep-system/configmaps/flowkeep")
	if apiserver.IsNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	return m.Data["cluster-cidrs"], nil
}

func ownAPIService(ctx context.Context, c *apiserver.Client) (s doctor.Service, err error) {
	type object struct {
		Status struct {
			Conditions []metav1.Condition `json:"conditions"`
		} `json:"status"`
	}
	o, err := apiserver.One[object](ctx, c, "/apis/apiregistration.k8s.io/v1/apiservices/"+inspect.APIVersion+"."+inspect.Group)
	if apiserver.IsNotFound(err) {
		return s, nil
	}
	if err != nil {
		return s, err
	}
	s.There = true
	for _, c := range o.Status.Conditions {
		if c.Type == "Available" {
			s.Available, s.Message = string(c.Status), c.Message
		}
	}
	return s, nil
}

// crdObject is what of a CustomResourceDefinition counts.
type crdObject struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     struct {
		Group string `json:"group"`
		Names struct {
			Plural string `json:"plural"`
		} `json:"names"`
		Versions []struct {
			Name    string `json:"name"`
			Served  bool   `json:"served"`
			Storage bool   `json:"storage"`
		} `json:"versions"`
	} `json:"spec"`
}

func crdsOf(list []crdObject) (out []doctor.CRD) {
	for i := range list {
		d := doctor.CRD{Name: list[i].Metadata.Name, PartOf: list[i].Metadata.Labels["app.kubernetes.io/part-of"]}
		for _, v := range list[i].Spec.Versions {
			if v.Served {
				d.Versions = append(d.Versions, v.Name)
			}
			if v.Storage {
				d.Stored = v.Name
			}
		}
		out = append(out, d)
	}
	return out
}

// count returns the number of objects in all namespaces.
func (o *crdObject) count(ctx context.Context, c *apiserver.Client) (int, error) {
	for _, v := range o.Spec.Versions {
		if !v.Served {
			continue
		}
		path := "/apis/" + url.PathEscape(o.Spec.Group) + "/" + url.PathEscape(v.Name) + "/" + url.PathEscape(o.Spec.Names.Plural)
		list, err := allOf(ctx, c, path, func(*struct{}) struct{} { return struct{}{} })
		return len(list), err
	}
	return 0, nil
}

// lintOf returns the number of findings that netctl lint would have.
func lintOf(ctx context.Context, c *apiserver.Client, nodes []*corev1.Node) (out doctor.Lint, err error) {
	world := &policy.World{}
	if world.Policies, err = allOf(ctx, c, "/apis/networking.k8s.io/v1/networkpolicies", func(np *networkingv1.NetworkPolicy) *policy.Policy { return kube.Policy(np) }); err != nil {
		return out, err
	}
	out.Policies = len(world.Policies)
	if out.Policies == 0 {
		return out, nil
	}
	if world.Namespaces, err = allOf(ctx, c, "/api/v1/namespaces", func(n *corev1.Namespace) policy.Namespace { return kube.Namespace(n) }); err != nil {
		return out, err
	}
	if world.Endpoints, err = allOf(ctx, c, "/api/v1/pods", func(p *corev1.Pod) *policy.Endpoint { return kube.Endpoint(p) }); err != nil {
		return out, err
	}
	cluster := lint.Cluster{World: world}
	for _, n := range nodes {
		cluster.PodCIDRs = append(cluster.PodCIDRs, kube.Node(n).PodCIDRs...)
	}
	out.Found = map[string]int{}
	for _, f := range lint.Check(&cluster) {
		if f.Severity.AtLeast(lint.Warning) {
			out.Found[f.Code]++
		}
	}
	return out, nil
}
