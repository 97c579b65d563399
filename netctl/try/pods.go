package try

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/flowkeep/flowkeep/policydb/kube"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
)

// maxParallel bounds the programs that run at a time.
const maxParallel = 8

// Setup is what scripts/try made.
type Setup struct {
	// Manifests are the directories that netmaster reads.
	Manifests []string `json:"manifests"`
	// CNI is the path of flowkeep-cni.
	CNI   string `json:"cni"`
	Nodes []Node `json:"nodes"`

	dir string
}

// Node is a node, with the socket on which its netplugin serves CNI requests.
type Node struct {
	Name   string `json:"name"`
	Socket string `json:"socket"`
}

// Pod is a pod that runs as a network namespace.
type Pod struct {
	Namespace string       `json:"namespace"`
	Name      string       `json:"name"`
	UID       string       `json:"uid"`
	Node      string       `json:"node"`
	NetNS     string       `json:"netns"`
	Ports     []Port       `json:"ports"`
	Addresses []netip.Addr `json:"addresses"`
}

// Port is a port that a pod serves.
type Port struct {
	Protocol string `json:"protocol"` // tcp or udp
	Number   uint16 `json:"number"`
}

// String returns the port in the form 80 or 53/udp.
func (p Port) String() string {
	if p.Protocol == "tcp" {
		return strconv.Itoa(int(p.Number))
	}
	return fmt.Sprintf("%d/%s", p.Number, p.Protocol)
}

// ID returns namespace/name.
func (p *Pod) ID() string { return p.Namespace + "/" + p.Name }

// path returns the path of the pod's network namespace.
func (p *Pod) path() string { return "/run/netns/" + p.NetNS }

// Load reads the setup from the directory that scripts/try keeps.
func Load(dir string) (*Setup, error) {
	text, err := os.ReadFile(filepath.Join(dir, "try.json"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, errors.New("nothing to try is running here; start it with: make try")
	}
	s := &Setup{dir: dir}
	if err == nil {
		err = json.Unmarshal(text, s)
	}
	if err != nil {
		return nil, fmt.Errorf("read the setup of make try: %w", err)
	}
	return s, nil
}

// Cluster reads the manifests.
func (s *Setup) Cluster() (*kube.Cluster, error) {
	var all []kube.Object
	var errs []error
	for _, dir := range s.Manifests {
		list, err := kube.Read(dir, true, nil)
		all, errs = append(all, list...), append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return kube.ClusterOf(all)
}

// Sync removes pods that a cluster no longer has, creates those that are missing, and returns all in order of namespace
// and name. Notes name the pods and ports that cannot be tried.
func (s *Setup) Sync(ctx context.Context, c *kube.Cluster) (pods []*Pod, notes []string, err error) {
	wanted := map[string]*Pod{}
	for _, pod := range c.Pods {
		p, note := wantedPod(pod)
		if note != "" {
			notes = append(notes, note)
		}
		if p != nil {
			wanted[p.ID()] = p
		}
	}
	running, err := s.running()
	if err != nil {
		return nil, nil, err
	}
	for _, p := range running {
		if w := wanted[p.ID()]; w != nil && w.UID == p.UID && w.Node == p.Node && slices.Equal(w.Ports, p.Ports) {
			wanted[p.ID()] = p
		} else if err := s.remove(ctx, p); err != nil {
			return nil, nil, err
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(maxParallel)
	for _, id := range slices.Sorted(maps.Keys(wanted)) {
		p := wanted[id]
		pods = append(pods, p)
		if len(p.Addresses) == 0 {
			group.Go(func() error { return s.create(ctx, p) })
		}
	}
	return pods, notes, group.Wait()
}

// wantedPod returns what is to run of a pod; nil if it cannot run here.
func wantedPod(pod *corev1.Pod) (p *Pod, note string) {
	p = &Pod{Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID), Node: pod.Spec.NodeName}
	switch {
	case pod.Spec.HostNetwork:
		return nil, p.ID() + " is left out: it has the network of its node"
	case p.Node == "":
		return nil, p.ID() + " is left out: there is no node for it"
	}
	sum := sha256.Sum256([]byte(p.ID()))
	p.NetNS = fmt.Sprintf("fk-try-pod%x", sum[:6]) // systemtests/sandbox/down removes names without a further dash
	for _, port := range kube.Ports(pod) {
		protocol := strings.ToLower(string(port.Protocol))
		if protocol != "tcp" && protocol != "udp" {
			note = fmt.Sprintf("%s: port %d/%s is left out: TCP and UDP are measured", p.ID(), port.ContainerPort, protocol)
			continue
		}
		p.Ports = append(p.Ports, Port{Protocol: protocol, Number: uint16(port.ContainerPort)}) //nolint:gosec // validated
	}
	return p, note
}

// running returns the pods that were created.
func (s *Setup) running() (list []*Pod, err error) {
	paths, err := filepath.Glob(filepath.Join(s.dir, "pods", "*.json"))
	if err != nil {
		return nil, err
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		p := new(Pod)
		if err == nil {
			err = json.Unmarshal(text, p)
		}
		if err != nil {
			return nil, fmt.Errorf("read the pods of make try: %w", err)
		}
		list = append(list, p)
	}
	return list, nil
}

func (s *Setup) record(p *Pod) string { return filepath.Join(s.dir, "pods", p.NetNS+".json") }

// create makes the pod's network namespace, has flowkeep-cni attach it, and serves its ports there. What an interrupted
// create left is used, except its server.
func (s *Setup) create(ctx context.Context, p *Pod) error {
	if err := s.save(p); err != nil { // so that it is removed after an interrupt
		return err
	}
	if _, err := os.Stat(p.path()); err == nil {
		if err := endProcesses(ctx, p.NetNS); err != nil {
			return err
		}
	} else if err := run(ctx, "ip", "netns", "add", p.NetNS); err != nil {
		return err
	}
	if err := run(ctx, "ip", "-n", p.NetNS, "link", "set", "lo", "up"); err != nil {
		return err
	}
	text, err := s.cni(ctx, p, "ADD")
	if err != nil {
		return fmt.Errorf("attach pod %s: %w", p.ID(), err)
	}
	var result struct {
		IPs []struct {
			Address netip.Prefix `json:"address"`
		} `json:"ips"`
	}
	if err := json.Unmarshal(text, &result); err != nil || len(result.IPs) == 0 {
		return fmt.Errorf("attach pod %s: flowkeep-cni answers %q: %w", p.ID(), text, err)
	}
	if err := serve(p); err != nil {
		return err
	}
	for _, ip := range result.IPs {
		p.Addresses = append(p.Addresses, ip.Address.Addr())
	}
	return s.save(p)
}

func (s *Setup) save(p *Pod) error {
	text, err := json.Marshal(p)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(s.record(p)), 0o755)
	}
	if err == nil {
		err = os.WriteFile(s.record(p), text, 0o644)
	}
	if err != nil {
		return fmt.Errorf("record pod %s: %w", p.ID(), err)
	}
	return nil
}

// remove ends what runs in the pod's network namespace and deletes it. A node that is gone needs no DEL.
func (s *Setup) remove(ctx context.Context, p *Pod) error {
	if _, err := os.Stat(p.path()); err == nil {
		if err := endProcesses(ctx, p.NetNS); err != nil {
			return err
		}
		_, cniErr := s.cni(ctx, p, "DEL")
		if err := run(ctx, "ip", "netns", "del", p.NetNS); err != nil {
			return errors.Join(cniErr, err)
		}
	}
	if err := os.Remove(s.record(p)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove pod %s: %w", p.ID(), err)
	}
	return nil
}

// endProcesses ends the processes in a network namespace that create made: they are the pod's servers.
func endProcesses(ctx context.Context, netns string) error {
	for {
		text, err := exec.CommandContext(ctx, "ip", "netns", "pids", netns).Output()
		if err != nil {
			return fmt.Errorf("list the processes of %s: %w", netns, err)
		}
		if len(bytes.TrimSpace(text)) == 0 {
			return nil
		}
		for field := range strings.FieldsSeq(string(text)) {
			if err := end(field); err != nil {
				return fmt.Errorf("end process %s of %s: %w", field, netns, err)
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("end the processes of %s: %w", netns, ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// end kills a process; it is no error if it has ended.
func end(pid string) error {
	n, err := strconv.Atoi(pid)
	if err != nil {
		return err
	}
	process, err := os.FindProcess(n)
	if err == nil {
		err = process.Kill()
	}
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// cni runs flowkeep-cni as a container runtime does.
func (s *Setup) cni(ctx context.Context, p *Pod, command string) ([]byte, error) {
	i := slices.IndexFunc(s.Nodes, func(n Node) bool { return n.Name == p.Node })
	if i < 0 {
		return nil, fmt.Errorf("make try has no node %s", p.Node)
	}
	config, err := json.Marshal(map[string]any{
		"cniVersion": "1.0.0",
		"name":       "flowkeep",
		"type":       "flowkeep-cni",
		"socket":     s.Nodes[i].Socket,
	})
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, s.CNI)
	cmd.Stdin = bytes.NewReader(config)
	cmd.Env = append(os.Environ(),
		"CNI_COMMAND="+command,
		"CNI_CONTAINERID="+p.NetNS,
		"CNI_NETNS="+p.path(),
		"CNI_IFNAME=eth0",
		"CNI_PATH="+filepath.Dir(s.CNI),
		fmt.Sprintf("CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=%s;K8S_POD_NAME=%s;K8S_POD_UID=%s", p.Namespace, p.Name, p.UID),
	)
	text, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("flowkeep-cni %s: %w: %s", command, err, bytes.TrimSpace(text))
	}
	return text, nil
}

// serve starts a process that serves the pod's ports, and returns when it listens. It outlives this one.
func serve(p *Pod) error {
	if len(p.Ports) == 0 {
		return nil
	}
	args := []string{"--net=" + p.path(), "--", "/proc/self/exe"}
	if self, err := os.Executable(); err == nil {
		args[2] = self
	}
	args = append(args, "try", "serve")
	for _, port := range p.Ports {
		args = append(args, fmt.Sprintf("%d/%s", port.Number, port.Protocol))
	}
	cmd := exec.Command("nsenter", args...)
	cmd.SysProcAttr = ownSession()
	var failure bytes.Buffer
	cmd.Stderr = &failure
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return fmt.Errorf("serve the ports of pod %s: %w", p.ID(), err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		_ = cmd.Wait()
		return fmt.Errorf("serve the ports of pod %s: %q: %s", p.ID(), line, bytes.TrimSpace(failure.Bytes()))
	}
	return nil
}

// run runs a program; its error has what it prints.
func run(ctx context.Context, name string, args ...string) error {
	if out, err := exec.CommandContext(ctx, name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}
