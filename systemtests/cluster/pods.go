package cluster

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// PodSpec is a pod to run: the probe's server, which echoes TCP, UDP and, where the kernel has it, SCTP on Ports.
type PodSpec struct {
	Name   string
	Node   string
	Labels map[string]string
	// Ports are numbers, with a name where they have one: NAME of TCP, NAME-sctp of SCTP.
	Ports       map[int]string
	HostNetwork bool
	HostPort    int // of port 80; 0: none
	Annotations map[string]string
	Linger      int // how many seconds it serves on when it is told to end
}

// Pod runs.
type Pod struct {
	Namespace, Name, Node string
	IPs                   []netip.Addr // in the order of status.podIPs
	NetNS                 string       // path of its network namespace
}

func (p Pod) String() string { return fmt.Sprintf("%s/%s (%s)", p.Namespace, p.Name, p.Node) }

// IP is its address of one family (4 or 6); false where it has none.
func (p Pod) IP(family int) (netip.Addr, bool) {
	i := slices.IndexFunc(p.IPs, func(a netip.Addr) bool { return a.Is4() == (family == 4) })
	if i < 0 {
		return netip.Addr{}, false
	}
	return p.IPs[i], true
}

type object = map[string]any

// Share is a pod's claim on the processors. Without one its server waits behind whatever else is busy, and loses what comes meanwhile.
var Share = object{"requests": object{"cpu": "100m"}}

// manifest has no grace period, unless it is asked for: tests don't wait for echo servers to say goodbye.
func (s PodSpec) manifest(namespace string) object {
	var ports []object
	args := []string{"serve"}
	for number, name := range s.Ports {
		args = append(args, fmt.Sprint(number))
		for _, proto := range []string{"TCP", "UDP"} {
			if name != "" && proto == "TCP" {
				ports = append(ports, object{"name": name, "containerPort": number, "protocol": proto})
			} else {
				ports = append(ports, object{"containerPort": number, "protocol": proto})
			}
			if s.HostPort != 0 && number == 80 {
				ports[len(ports)-1]["hostPort"] = s.HostPort
			}
		}
		if name != "" {
			ports = append(ports, object{"name": name + "-sctp", "containerPort": number, "protocol": "SCTP"})
		}
	}
	container := object{"name": "probe", "image": "flowkeep.local/probe:sandbox", "imagePullPolicy": "Never", "args": args, "ports": ports, "resources": Share}
	grace := 0
	if s.Linger > 0 {
		grace = s.Linger + 1
		container["lifecycle"] = object{"preStop": object{"sleep": object{"seconds": s.Linger}}}
	}
	return object{
		"apiVersion": "v1", "kind": "Pod",
		"metadata": object{"name": s.Name, "namespace": namespace, "labels": s.Labels, "annotations": s.Annotations},
		"spec": object{
			"nodeName": s.Node, "terminationGracePeriodSeconds": grace, "hostNetwork": s.HostNetwork, "automountServiceAccountToken": false,
			"containers": []object{container},
		},
	}
}

// RunPods creates the pods and waits until they run and have addresses.
func (c *Cluster) RunPods(ctx context.Context, namespace string, specs ...PodSpec) ([]Pod, error) {
	for _, s := range specs {
		text, err := json.Marshal(s.manifest(namespace))
		if err != nil {
			return nil, err
		}
		if err := c.ask(ctx, http.MethodPost, PathOf("Pod", namespace, ""), "application/json", string(text), nil); err != nil {
			return nil, err
		}
	}
	pods := make([]Pod, len(specs))
	for i, s := range specs {
		err := Until(ctx, time.Minute, func() (err error) {
			pods[i], err = c.Pod(ctx, namespace, s.Name)
			return err
		})
		if err != nil {
			events, _ := c.Kubectl(ctx, "", "-n", namespace, "get", "events", "--field-selector", "type=Warning")
			return nil, fmt.Errorf("%w; warnings:\n%s", err, events)
		}
	}
	return pods, nil
}

// podObject is what the API server tells of a pod, as far as it matters here.
type podObject struct {
	Metadata struct {
		UID         string
		Annotations map[string]string
	}
	Spec struct {
		NodeName    string
		HostNetwork bool
	}
	Status struct {
		PodIPs     []struct{ IP netip.Addr }
		Conditions []struct{ Type, Status string }
	}
}

// kubeletUID is the one that the runtime is told, of a mirror pod that of its static pod.
func (p *podObject) kubeletUID() string {
	return cmp.Or(p.Metadata.Annotations["kubernetes.io/config.mirror"], p.Metadata.UID)
}

// PutStaticPod writes a pod's file for its node's kubelet, which has the API server know it as NAME-NODE. remove takes the file away.
func (c *Cluster) PutStaticPod(namespace string, s PodSpec) (remove func() error, err error) {
	text, err := json.Marshal(s.manifest(namespace))
	if err != nil {
		return nil, err
	}
	folder, name := filepath.Join(c.Dir, s.Node, "static"), namespace+"-"+s.Name+".json"
	half := filepath.Join(folder, "."+name) // the kubelet reads no such names
	if err := os.WriteFile(half, text, 0o600); err != nil {
		return nil, err
	}
	file := filepath.Join(folder, name)
	return func() error { return os.Remove(file) }, os.Rename(half, file)
}

// Pod looks up a pod that is ready.
func (c *Cluster) Pod(ctx context.Context, namespace, name string) (Pod, error) {
	p := Pod{Namespace: namespace, Name: name}
	var seen podObject
	if err := c.Get(ctx, PathOf("Pod", namespace, name), &seen); err != nil {
		return p, err
	}
	for _, ip := range seen.Status.PodIPs {
		p.IPs = append(p.IPs, ip.IP)
	}
	// Not Ready: the node controller sets that to False while a node's kubelet is away, and the kubelet sets it back late.
	ready := slices.ContainsFunc(seen.Status.Conditions, func(c struct{ Type, Status string }) bool {
		return c.Type == "ContainersReady" && c.Status == "True"
	})
	if !ready || len(p.IPs) == 0 {
		return p, fmt.Errorf("pod %s/%s is not ready: %+v", namespace, name, seen.Status)
	}
	p.Node = seen.Spec.NodeName
	if seen.Spec.HostNetwork {
		p.NetNS = c.NodeNS(p.Node)
		return p, nil
	}
	var err error
	p.NetNS, err = c.podNetNS(seen.kubeletUID())
	return p, err
}

// cniResults is where containerd's CNI library keeps what ADD answered.
const cniResults = "/var/lib/cni/results/*-eth0"

// podNetNS is the path of the network namespace of the pod that its kubelet knows by a UID.
func (c *Cluster) podNetNS(uid string) (string, error) {
	files, err := filepath.Glob(cniResults)
	if err != nil {
		return "", err
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil || !bytes.Contains(text, []byte(`["K8S_POD_UID","`+uid+`"]`)) {
			continue // those of other pods come and go
		}
		var added struct {
			Result struct{ Interfaces []struct{ Sandbox string } }
		}
		if err := json.Unmarshal(text, &added); err != nil {
			return "", fmt.Errorf("%s: %w", f, err)
		}
		for _, i := range added.Result.Interfaces {
			if at, found := c.reach(i.Sandbox); found {
				return at, nil
			}
		}
	}
	return "", fmt.Errorf("no network namespace of the pod %s in %s", uid, cniResults)
}

// reach is where a pod's network namespace is found from here: as its runtime says, or in the mounts of a node that has its own.
func (c *Cluster) reach(sandbox string) (string, bool) {
	if sandbox == "" {
		return "", false
	}
	if _, err := os.Stat(sandbox); err == nil {
		return sandbox, true
	}
	keepers, _ := filepath.Glob(filepath.Join(c.Dir, "pids", "node*-mounts"))
	for _, file := range keepers {
		text, err := os.ReadFile(file)
		if pid, _, is := strings.Cut(string(text), " "); err == nil && is {
			at := "/proc/" + pid + "/root" + strings.TrimPrefix(sandbox, "/var") // /var/run is a link, which would lead out of there
			if _, err := os.Stat(at); err == nil {
				return at, true
			}
		}
	}
	return "", false
}

// DeletePod deletes it by force and waits until it is gone from the API.
func (c *Cluster) DeletePod(ctx context.Context, namespace, name string) error {
	return c.Delete(ctx, PathOf("Pod", namespace, name)+"?gracePeriodSeconds=0", 30*time.Second)
}

// GivenLater tells whether a node gave an address out after another, not long ago both. It gives them out in order; of IPv4 it has a /24, and
// goes round. After none is later.
func GivenLater(ip, than netip.Addr) bool {
	if ip.Is4() && than.Is4() {
		return int8(ip.As4()[3]-than.As4()[3]) > 0
	}
	return than.Less(ip)
}

// Run is so many addresses from one on.
type Run struct {
	First netip.Addr
	Count int
}

// NextAddresses are those that a node gives out after one of its own: at the end of its /24 it begins again behind the gateway's.
func NextAddresses(last netip.Addr, count int) []Run {
	const gateway, end = 1, 254
	if !last.Is4() || int(last.As4()[3])+count <= end {
		return []Run{{last.Next(), count}}
	}
	b := last.As4()
	left := end - int(b[3])
	b[3] = gateway + 1
	anew := Run{netip.AddrFrom4(b), count - left}
	if left == 0 {
		return []Run{anew}
	}
	return []Run{{last.Next(), left}, anew}
}

// ServiceIPs waits for the addresses of a Service.
func (c *Cluster) ServiceIPs(ctx context.Context, namespace, name string) ([]netip.Addr, error) {
	var seen struct {
		Spec struct{ ClusterIPs []netip.Addr }
	}
	err := Until(ctx, 10*time.Second, func() error { return c.Get(ctx, PathOf("Service", namespace, name), &seen) })
	return seen.Spec.ClusterIPs, err
}

func (c *Cluster) probe() string { return filepath.Join(c.Bin, "probe") }
