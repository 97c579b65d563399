// Package fleet is a hub and spokes on this machine: real API servers without nodes, with Open Cluster Management's placement controller on
// the hub and its work agent for each spoke, and `netmaster policy-sync`. All of it is processes on one loopback address, which end with
// the program that started them.
package fleet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

// PolicySync is the name of the process `netmaster policy-sync`; a second one has another.
const PolicySync = "policy-sync"

// starting is how long a server may take to be ready.
const starting = 60 * time.Second

// looking is how long a guide's command may see something else than the guide says.
const looking = 30 * time.Second

// Options say what fleet to start.
type Options struct {
	Spokes []string // their names; nil: c1 and c2
	// Synced: `netmaster policy-sync` runs from the beginning.
	Synced bool
	// Large: etcd and the API servers take as much as comes.
	Large bool
	// Bare: there is nothing of Open Cluster Management, and nothing in the API servers.
	Bare bool
	// Progress is told in words what happens; may be nil.
	Progress func(format string, args ...any)
}

// Fleet is one that runs. Safe for concurrent use.
type Fleet struct {
	// Dir holds its keys, kubeconfigs (Kubeconfig) and logs. It goes with the fleet.
	Dir string
	// Source is the repository; Bin, CRDs and Programs are what was built.
	Source, Bin, CRDs, Programs string
	// Hub and Spokes are the API servers, Spokes by name.
	Hub    *Server
	Spokes map[string]*Server
	names  []string // of the spokes
	large  bool
	bare   bool
	ip     string
	keys   *keys
	*processes
}

// Server is an API server, spoken to as an administrator.
type Server struct {
	*cluster.API
	Name       string // hub, or the spoke's
	Kubeconfig string // the administrator's
	url        string
}

// Start starts a fleet; it takes 15 to 25 s with everything in the cache. One that does not start is ended and started
// once more. End it in any case that returns one.
func Start(ctx context.Context, o Options) (*Fleet, error) {
	if o.Spokes == nil {
		o.Spokes = []string{"c1", "c2"}
	}
	if o.Progress == nil {
		o.Progress = func(string, ...any) {}
	}
	f := &Fleet{Spokes: map[string]*Server{}, names: o.Spokes, large: o.Large, bare: o.Bare}
	if err := f.build(ctx); err != nil {
		return nil, err
	}
	boot := func() error {
		if err := f.room(); err != nil {
			return err
		}
		f.processes = newProcesses(filepath.Join(f.Dir, "logs"))
		return f.start(ctx, o)
	}
	return f, cluster.BootTwice(ctx, "the fleet", boot, func() error {
		err := f.End()
		f.processes = nil
		return err
	})
}

func (f *Fleet) start(ctx context.Context, o Options) (err error) {
	if f.ip, err = freeAddress(); err != nil {
		return err
	}
	if f.keys, err = newKeys(f.Dir, f.ip); err != nil {
		return err
	}
	o.Progress("starting etcd and the API servers of the hub and of %s", strings.Join(o.Spokes, ", "))
	if err := f.servers(ctx); err != nil || o.Bare {
		return err
	}
	o.Progress("making the fleet known to the hub: CustomResourceDefinitions, roles, ManagedClusters")
	if err := f.join(ctx); err != nil {
		return err
	}
	o.Progress("starting the placement controller and the work agents")
	if err := f.Run("placement", f.ocm("placement", "controller", f.port(8443), f.Hub.Kubeconfig)...); err != nil {
		return err
	}
	for _, name := range f.names {
		if err := f.Run("controllers-"+name, f.controllers(f.Spokes[name])...); err != nil {
			return err
		}
		if err := f.StartAgent(name); err != nil {
			return err
		}
	}
	if o.Synced {
		o.Progress("starting netmaster policy-sync")
		return f.StartPolicySync(ctx, PolicySync)
	}
	return nil
}

// End ends all processes and removes all files.
func (f *Fleet) End() error {
	if f.processes != nil {
		f.endAll()
	}
	return os.RemoveAll(f.Dir)
}

// build builds what is missing, and finds where it is.
func (f *Fleet) build(ctx context.Context) (err error) {
	if f.Source, err = cluster.SourceRoot(); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "bash", "-euc", `. "$0/scripts/lib.sh"
		apt_need etcd:etcd-server
		need_go
		"$0/systemtests/sandbox/build" "${@:1}"
		build_programs
		echo "$CACHE"; echo "$PROGRAMS"`, f.Source)
	if !f.bare {
		cmd.Args = append(cmd.Args, "--ocm")
	}
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("build what a fleet needs: %w", err)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(lines) < 2 {
		return fmt.Errorf("the build says %q", out)
	}
	cache := lines[len(lines)-2]
	f.Bin, f.CRDs, f.Programs = filepath.Join(cache, "bin"), filepath.Join(cache, "crds"), lines[len(lines)-1]
	return nil
}

// roomPrefix is that of directories of fleets; the id of the program that started it follows.
const roomPrefix = "flowkeep-fleet-"

// room makes the directory, in memory where there is a place for that, and removes those that killed programs left.
func (f *Fleet) room() (err error) {
	parent := "/dev/shm"
	if _, err := os.Stat(parent); err != nil {
		parent = os.TempDir()
	}
	left, err := filepath.Glob(filepath.Join(parent, roomPrefix+"*"))
	if err != nil {
		return err
	}
	for _, dir := range left {
		pid, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(dir), roomPrefix), "-")
		if _, err := os.Stat("/proc/" + pid); errors.Is(err, os.ErrNotExist) {
			if err := os.RemoveAll(dir); err != nil {
				return err
			}
		}
	}
	f.Dir, err = os.MkdirTemp(parent, fmt.Sprintf("%s%d-", roomPrefix, os.Getpid()))
	return err
}

// freeAddress is a loopback address of which nobody serves a port yet, so that ports need not be looked for.
func freeAddress() (string, error) {
	pid := os.Getpid()
	for n := range 250 {
		ip := fmt.Sprintf("127.%d.%d.%d", 64+pid/250%64, pid%250, 1+n)
		l, err := net.Listen("tcp", net.JoinHostPort(ip, "2379"))
		if err == nil {
			return ip, l.Close()
		}
	}
	return "", errors.New("no loopback address has port 2379 free")
}

func (f *Fleet) port(n int) string { return fmt.Sprintf("%s:%d", f.ip, n) }

// IP is the loopback address of all of the fleet's processes, where others may listen too: 6443 and the ports from 8443 on are taken.
func (f *Fleet) IP() string { return f.ip }

// servers starts etcd and the API servers, and waits until they are ready.
func (f *Fleet) servers(ctx context.Context) error {
	client, peer := "http://"+f.port(2379), "http://"+f.port(2380)
	etcd := []string{"etcd", "--name", "fleet", "--data-dir", filepath.Join(f.Dir, "etcd"), "--listen-client-urls", client, "--advertise-client-urls", client,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "fleet=" + peer, "--log-level", "warn"}
	if f.large {
		etcd = append(etcd, "--quota-backend-bytes=17179869184")
	}
	if err := f.Run("etcd", etcd...); err != nil {
		return err
	}
	for n, name := range append([]string{"hub"}, f.names...) {
		s := &Server{Name: name, url: "https://" + f.port(6443+n), Kubeconfig: filepath.Join(f.Dir, name+".kubeconfig")}
		if name == "hub" {
			f.Hub = s
		} else {
			f.Spokes[name] = s
		}
		s.API = cluster.NewAPI(s.url, f.keys.config(admin))
		if err := f.keys.kubeconfig(s.Kubeconfig, admin, s); err != nil {
			return err
		}
		if err := f.Run("apiserver-"+name, f.apiserver(name, 6443+n, client)...); err != nil {
			return err
		}
	}
	if err := f.keys.kubeconfig(f.Kubeconfig(), admin, f.all()...); err != nil {
		return err
	}
	for _, s := range f.all() {
		if err := cluster.Until(ctx, starting, func() error {
			if err := f.Alive("apiserver-" + s.Name); err != nil {
				return err
			}
			return s.Do(ctx, http.MethodGet, "/readyz", nil)
		}); err != nil {
			return fmt.Errorf("the API server of %s: %w", s.Name, err)
		}
	}
	return nil
}

func (f *Fleet) apiserver(name string, port int, etcd string) []string {
	var more []string
	if f.large {
		more = []string{"--max-requests-inflight=3000", "--max-mutating-requests-inflight=1000"}
	}
	return append([]string{filepath.Join(f.Bin, "kube-apiserver"), "--etcd-servers=" + etcd, "--etcd-prefix=/" + name,
		"--bind-address=" + f.ip, fmt.Sprintf("--secure-port=%d", port), "--advertise-address=192.0.2.1", "--endpoint-reconciler-type=none",
		"--service-cluster-ip-range=10.96.0.0/24", "--authorization-mode=RBAC", "--disable-admission-plugins=ServiceAccount",
		"--enable-priority-and-fairness=false", "--profiling=" + strconv.FormatBool(f.large),
		"--client-ca-file=" + f.keys.file("ca.crt"), "--tls-cert-file=" + f.keys.file("server.crt"), "--tls-private-key-file=" + f.keys.file("server.key"),
		"--requestheader-client-ca-file=" + f.keys.file("ca.crt"), "--requestheader-allowed-names=" + frontProxy.name,
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
		"--service-account-issuer=https://" + name, "--service-account-key-file=" + f.keys.file("server.key"), "--service-account-signing-key-file=" + f.keys.file("server.key")}, more...)
}

// controllers are those of Kubernetes that work agents leave something to: what they wrote right before a work went has its
// AppliedManifestWork for an owner, and is the garbage collector's.
func (f *Fleet) controllers(s *Server) []string {
	return []string{filepath.Join(f.Bin, "kube-controller-manager"), "--kubeconfig=" + s.Kubeconfig, "--controllers=garbage-collector-controller,namespace-controller",
		"--leader-elect=false", "--secure-port=0", "--bind-address=" + f.ip}
}

// all are the servers, the hub first.
func (f *Fleet) all() []*Server {
	list := []*Server{f.Hub}
	for _, name := range f.names {
		list = append(list, f.Spokes[name])
	}
	return list
}

// Kubeconfig is an administrator's with a context for the hub, the current one, and one for each spoke, called like them.
func (f *Fleet) Kubeconfig() string { return filepath.Join(f.Dir, "kubeconfig") }

// ocm is the command line of one of Open Cluster Management's programs.
func (f *Fleet) ocm(program, command, listen, kubeconfig string, more ...string) []string {
	return append([]string{filepath.Join(f.Bin, "ocm-"+program), command, "--listen", listen, "--kubeconfig", kubeconfig, "--namespace", "default",
		"--disable-leader-election"}, more...)
}

// agents are the names of the agents' processes.
func agent(spoke string) string { return "agent-" + spoke }

// StartAgent starts the work agent of a spoke. It looks at the spoke's objects every second.
func (f *Fleet) StartAgent(spoke string) error {
	s := f.Spokes[spoke]
	own := filepath.Join(f.Dir, agent(spoke)+".kubeconfig")
	if err := f.keys.kubeconfig(own, workAgent, s); err != nil {
		return err
	}
	port := 8444
	for n, name := range f.names {
		if name == spoke {
			port += n
		}
	}
	return f.Run(agent(spoke), f.ocm("work", "agent", f.port(port), own, "--spoke-cluster-name", spoke, "--hub-kubeconfig", f.Hub.Kubeconfig,
		"--workload-source-config", f.Hub.Kubeconfig, "--status-sync-interval", "1s")...)
}

// EndAgent ends it.
func (f *Fleet) EndAgent(spoke string) error { return f.Stop(agent(spoke)) }
