package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// PodSpec is a pod to run: the probe's server, which echoes TCP and UDP on Ports.
type PodSpec struct {
	Name   string
	Node   string
	Labels map[string]string
	// Ports are numbers, with a name where they have one.
	Ports       map[int]string
	HostNetwork bool
	HostPort    int // of port 80; 0: none
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

// manifest has no grace period: tests don't wait for echo servers to say goodbye.
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
	}
	return object{
		"apiVersion": "v1", "kind": "Pod",
		"metadata": object{"name": s.Name, "namespace": namespace, "labels": s.Labels},
		"spec": object{
			"nodeName": s.Node, "terminationGracePeriodSeconds": 0, "hostNetwork": s.HostNetwork, "automountServiceAccountToken": false,
			"containers": []object{{"name": "probe", "image": "flowkeep.local/probe:sandbox", "imagePullPolicy": "Never", "args": args, "ports": ports}},
		},
	}
}

// RunPods creates the pods and waits until they run and have addresses.
func (c *Cluster) RunPods(ctx context.Context, namespace string, specs ...PodSpec) ([]Pod, error) {
	var list []object
	for _, s := range specs {
		list = append(list, s.manifest(namespace))
	}
	text, err := json.Marshal(object{"apiVersion": "v1", "kind": "List", "items": list})
	if err != nil {
		return nil, err
	}
	if _, err := c.Kubectl(ctx, string(text), "apply", "-f", "-"); err != nil {
		return nil, err
	}
	args := []string{"-n", namespace, "wait", "--for=condition=Ready", "--timeout=60s"}
	for _, s := range specs {
		args = append(args, "pod/"+s.Name)
	}
	if _, err := c.Kubectl(ctx, "", args...); err != nil {
		events, _ := c.Kubectl(ctx, "", "-n", namespace, "get", "events", "--field-selector", "type=Warning")
		return nil, fmt.Errorf("%w; warnings:\n%s", err, events)
	}
	pods := make([]Pod, len(specs))
	for i, s := range specs {
		if pods[i], err = c.Pod(ctx, namespace, s.Name); err != nil {
			return nil, err
		}
	}
	return pods, nil
}

// Pod looks up a pod that runs.
func (c *Cluster) Pod(ctx context.Context, namespace, name string) (Pod, error) {
	p := Pod{Namespace: namespace, Name: name}
	text, err := c.Kubectl(ctx, "", "-n", namespace, "get", "pod", name, "-o", "jsonpath={.spec.nodeName} {.status.podIPs[*].ip}")
	if err != nil {
		return p, err
	}
	fields := strings.Fields(text)
	if len(fields) < 2 {
		return p, fmt.Errorf("pod %s/%s has no node or no address yet: %q", namespace, name, text)
	}
	p.Node = fields[0]
	for _, f := range fields[1:] {
		ip, err := netip.ParseAddr(f)
		if err != nil {
			return p, fmt.Errorf("address of pod %s/%s: %w", namespace, name, err)
		}
		p.IPs = append(p.IPs, ip)
	}
	path, err := c.script(ctx, fmt.Sprintf("exec %s/in-pod %s/%s", c.source, namespace, name))
	p.NetNS = strings.TrimSpace(path)
	return p, err
}

// DeletePod deletes it and waits until it is gone from the API.
func (c *Cluster) DeletePod(ctx context.Context, namespace, name string) error {
	_, err := c.Kubectl(ctx, "", "-n", namespace, "delete", "pod", name, "--grace-period=0", "--force", "--timeout=30s", "--ignore-not-found")
	return err
}

// ServiceIPs waits for the addresses of a Service.
func (c *Cluster) ServiceIPs(ctx context.Context, namespace, name string) (ips []netip.Addr, err error) {
	err = Until(ctx, 10*time.Second, func() error {
		text, err := c.Kubectl(ctx, "", "-n", namespace, "get", "service", name, "-o", "jsonpath={.spec.clusterIPs[*]}")
		if err != nil {
			return err
		}
		ips = ips[:0]
		for _, f := range strings.Fields(text) {
			ip, err := netip.ParseAddr(f)
			if err != nil {
				return err
			}
			ips = append(ips, ip)
		}
		return nil
	})
	return ips, err
}

func (c *Cluster) probe() string { return filepath.Join(c.Bin, "probe") }
