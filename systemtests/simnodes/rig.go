// Package simnodes measures a netmaster with many simulated nodes (program simulate), whose objects are in a real API server and etcd.
package simnodes

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
	"github.com/flowkeep/flowkeep/systemtests/fleet"
)

// The processes' names, and the ports of their HTTP servers.
const (
	Netmaster   = "netmaster"
	feedPort    = 7443
	accessPort  = 7444
	metricsPort = 9440
)

// Rig is a netmaster with all that is around it. Safe for concurrent use.
type Rig struct {
	*fleet.Fleet
	Sizes
	// Program is another netmaster than that of this tree, if it is set.
	Program string
	// Prefix is the command that starts netmaster, as env(1) does, if it is set.
	Prefix []string
	pods   []*pod
	next   int   // the last number that a pod, port or policy was given
	nodes  []int // how many addresses each has given away
	sims   []*Sim
	limit  time.Duration
}

// Sim is a process with simulated nodes.
type Sim struct {
	rig *Rig
	// Name is its process'.
	Name  string
	url   string
	first int // its first node
	count int
	// frozen: what it sees is not waited for.
	frozen bool
}

// Start starts an API server and makes the objects. End it in any case that returns one. Limit is how long anything may take; it is no measure.
func Start(ctx context.Context, s Sizes, limit time.Duration, progress func(format string, args ...any)) (*Rig, error) {
	f, err := fleet.Start(ctx, fleet.Options{Spokes: []string{}, Large: true, Bare: true, Progress: progress})
	r := &Rig{Fleet: f, Sizes: s, nodes: make([]int, s.Nodes), limit: limit}
	if err == nil {
		err = r.build(ctx)
	}
	if err != nil {
		return r, err
	}
	begin := time.Now()
	if err := r.make(ctx); err != nil {
		return r, err
	}
	progress("made %d nodes, %d namespaces, %d pods and their policies in %v", s.Nodes, s.namespaces(), s.Pods, time.Since(begin).Round(time.Millisecond))
	return r, r.keys(ctx)
}

// simulator is the name of the program of simulated nodes in the directory of the programs.
const simulator = "simulate"

// build compiles the program of simulated nodes.
func (r *Rig) build(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-trimpath", "-gcflags=all=-dwarf=false",
		"-o", filepath.Join(r.Programs, simulator), "./simnodes/simulate")
	cmd.Dir = filepath.Join(r.Source, "systemtests")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the simulated nodes: %w\n%s", err, out)
	}
	return nil
}

// End ends all of it.
func (r *Rig) End() error {
	if r.Fleet == nil {
		return nil
	}
	return r.Fleet.End()
}

// makers is how many requests are made at a time.
const makers = 24

// each does things, some at a time.
func each(count int, do func(n int) error) error {
	failed := make([]error, min(count, makers))
	var all sync.WaitGroup
	for i := range failed {
		all.Go(func() {
			for n := i; n < count && failed[i] == nil; n += len(failed) {
				failed[i] = do(n)
			}
		})
	}
	all.Wait()
	return errors.Join(failed...)
}

func (r *Rig) make(ctx context.Context) error {
	post := func(path, body string) error { return r.Hub.Do(ctx, http.MethodPost, path, []byte(body)) }
	if err := each(r.Nodes, func(n int) error { return post("/api/v1/nodes", nodeObject(n)) }); err != nil {
		return err
	}
	if err := each(r.namespaces(), func(n int) error { return post("/api/v1/namespaces", namespaceObject(n)) }); err != nil {
		return err
	}
	for n := range r.Pods {
		namespace := 0
		if n >= r.Wide {
			namespace = r.first() + (n-r.Wide)%(r.namespaces()-r.first())
		}
		r.pods = append(r.pods, r.newPod(n, namespace))
	}
	r.next = r.Pods
	start := r.start
	if r.Stored {
		start = r.store
	}
	if err := each(len(r.pods), func(n int) error { return start(ctx, r.pods[n]) }); err != nil {
		return err
	}
	return each(r.namespaces(), func(n int) error {
		for i := range r.policiesOf(n) {
			if err := post(policiesPath(n), r.policyObject(n, i, defaultPort(i))); err != nil {
				return err
			}
		}
		return nil
	})
}

// newPod is one on any node, with an address that no pod had before.
func (r *Rig) newPod(number, namespace int) *pod {
	node := number % r.Nodes
	if number >= r.Wide { // else one on each node
		node = rand.New(rand.NewPCG(uint64(number), 1)).IntN(r.Nodes)
	}
	r.nodes[node]++
	return &pod{number: number, namespace: namespace, node: node, app: number / r.namespaces() % apps, name: fmt.Sprintf("pod-%d", number),
		address: fmt.Sprintf("10.%d.%d.%d", node>>8, node&255, r.nodes[node])}
}

// start makes a pod that runs.
func (r *Rig) start(ctx context.Context, p *pod) error {
	if err := r.create(ctx, p); err != nil {
		return err
	}
	return r.Hub.Do(ctx, http.MethodPut, p.path()+"/status", []byte(p.running()))
}

// store writes a pod that runs into etcd.
func (r *Rig) store(ctx context.Context, p *pod) error {
	p.uid = fmt.Sprintf("00000000-0000-4000-8000-%012x", p.number)
	return r.Put(ctx, "pods/"+p.id(), []byte(p.stored()))
}

// create makes one that is bound to its node.
func (r *Rig) create(ctx context.Context, p *pod) error {
	text, err := r.Hub.Ask(ctx, http.MethodPost, podsPath(p.namespace), []byte(p.object()))
	if err != nil {
		return err
	}
	var made struct{ Metadata struct{ UID string } }
	err = json.Unmarshal(text, &made)
	p.uid = made.Metadata.UID
	return err
}

func (r *Rig) pki() string { return filepath.Join(r.Dir, "pki") }

func (r *Rig) keys(ctx context.Context) error {
	for _, args := range [][]string{{"init"}, {"issue", "--server", r.IP()}} {
		args = append([]string{"pki"}, append(args, "--dir", r.pki())...)
		if out, err := exec.CommandContext(ctx, filepath.Join(r.Programs, "netmaster"), args...).CombinedOutput(); err != nil {
			return fmt.Errorf("netmaster %v: %w\n%s", args, err, out)
		}
	}
	return nil
}

// StartNetmaster returns when it is ready.
func (r *Rig) StartNetmaster(ctx context.Context) error {
	key := func(name string) string { return filepath.Join(r.pki(), name) }
	program := cmp.Or(r.Program, filepath.Join(r.Programs, "netmaster"))
	if err := r.Run(Netmaster, append(slices.Clone(r.Prefix), program, "--kubeconfig", r.Hub.Kubeconfig, "--listen", r.address(feedPort), "--page-address", "",
		"--access-listen", r.address(accessPort),
		"--http-listen", r.address(metricsPort), "--state-dir", filepath.Join(r.Dir, "state"), "--report-enforcement=false",
		"--tls-ca", key("ca.crt"), "--tls-cert", key("server.crt"), "--tls-key", key("server.key"))...); err != nil {
		return err
	}
	return r.until(ctx, func() error { _, err := get(ctx, r.page("/readyz")); return err })
}

// Forget removes what a netmaster that has ended left behind.
func (r *Rig) Forget() error { return os.RemoveAll(filepath.Join(r.Dir, "state")) }

// Restart ends netmaster as an administrator would, and starts it again.
func (r *Rig) Restart(ctx context.Context) error {
	if err := r.Stop(Netmaster); err != nil {
		return err
	}
	return r.StartNetmaster(ctx)
}

func (r *Rig) address(port int) string { return fmt.Sprintf("%s:%d", r.IP(), port) }
func (r *Rig) page(path string) string { return "http://" + r.address(metricsPort) + path }

// Usage is what a process has used; the next Peak of it is from now on.
func (r *Rig) Usage(name string) (Usage, error) {
	pid, err := r.Pid(name)
	if err != nil {
		return Usage{}, err
	}
	u, err := usage(pid)
	if err == nil {
		err = resetPeak(pid)
	}
	return u, err
}

// Metrics sums up some of netmaster's, each over its labels.
func (r *Rig) Metrics(ctx context.Context, names ...string) (sums []float64, err error) {
	text, err := get(ctx, r.page("/metrics"))
	for _, name := range names {
		sums = append(sums, metric(string(text), name))
	}
	return sums, err
}

func (r *Rig) until(ctx context.Context, ok func() error) error {
	return cluster.Until(ctx, r.limit, func() error {
		if err := r.Alive(Netmaster); err != nil {
			return err
		}
		return ok()
	})
}

// StartNodes starts a process with count nodes from first on, and has them wire their pods. They do not connect yet.
func (r *Rig) StartNodes(ctx context.Context, name string, first, count int, flags ...string) (*Sim, error) {
	s := &Sim{rig: r, Name: name, first: first, count: count, url: "http://" + r.address(9500+len(r.sims))}
	r.sims = append(r.sims, s)
	if err := r.Run(name, append([]string{filepath.Join(r.Programs, simulator), "--server", r.address(feedPort), "--pki", r.pki(), "--nodes", fmt.Sprint(count), "--first", fmt.Sprint(first),
		"--listen", s.url[len("http://"):]}, flags...)...); err != nil {
		return s, err
	}
	if err := cluster.Until(ctx, r.limit, func() error {
		if err := r.Alive(name); err != nil {
			return err
		}
		_, err := s.State(ctx)
		return err
	}); err != nil {
		return s, err
	}
	var wired []wired
	for _, p := range r.pods {
		if p.node >= first && p.node < first+count {
			wired = append(wired, p.wired(false))
		}
	}
	return s, s.post(ctx, "/pods", wired)
}

// wired is a pod as program simulate reads it.
type wired struct {
	Node, Namespace, Name, UID string
	Addresses                  []string
	Gone                       bool
}

func (p *pod) wired(gone bool) wired {
	return wired{nodeName(p.node), namespaceName(p.namespace), p.name, p.uid, []string{p.address}, gone}
}

// State is what the nodes of a process hold together: see simulate/simulate.go.
type State struct {
	Nodes, Connected, Current                                  int
	Since                                                      int64
	Wired, Rules, Groups, Members                              int
	Updates, TakenRules, TakenGroups, TakenMembers, TakenNodes uint64
}

// State asks.
func (s *Sim) State(ctx context.Context) (st State, err error) {
	text, err := get(ctx, s.url+"/state")
	if err == nil {
		err = json.Unmarshal(text, &st)
	}
	return st, err
}

// Current waits until all nodes have taken over an update since they connected, and tells when the last of them did.
func (s *Sim) Current(ctx context.Context) (st State, at time.Time, err error) {
	err = s.rig.until(ctx, func() error {
		if st, err = s.State(ctx); err != nil {
			return err
		}
		if st.Current < st.Nodes {
			return fmt.Errorf("%d of %d nodes have what they need", st.Current, st.Nodes)
		}
		return nil
	})
	return st, time.Unix(0, st.Since), err
}

// Connect has all nodes connect at once.
func (s *Sim) Connect(ctx context.Context) error { return s.post(ctx, "/connect", nil) }

// Disconnect has none connected.
func (s *Sim) Disconnect(ctx context.Context) error { return s.post(ctx, "/disconnect", nil) }

// expect has the nodes look out.
func (s *Sim) expect(ctx context.Context, what ...string) error { return s.post(ctx, "/expect", what) }

// look tells when what was expected came, since it was asked for the last time.
func (s *Sim) look(ctx context.Context) (all map[string][]int64, err error) {
	text, err := get(ctx, s.url+"/seen")
	if err == nil {
		err = json.Unmarshal(text, &all)
	}
	return all, err
}

// Freeze has the nodes do nothing any more, as if their machines had stopped. Their connections stay open.
func (s *Sim) Freeze() error {
	pid, err := s.rig.Pid(s.Name)
	if err != nil {
		return err
	}
	s.frozen = true
	return syscall.Kill(pid, syscall.SIGSTOP)
}

func (s *Sim) has(node int) bool { return node >= s.first && node < s.first+s.count }

// Ignore has nobody wait for what these nodes see.
func (s *Sim) Ignore() { s.frozen = true }

func (s *Sim) post(ctx context.Context, path string, what any) error {
	body, err := json.Marshal(what)
	if err != nil {
		return err
	}
	_, err = ask(ctx, http.MethodPost, s.url+path, body)
	return err
}

func get(ctx context.Context, url string) ([]byte, error) {
	return ask(ctx, http.MethodGet, url, nil)
}

func ask(ctx context.Context, method, url string, body []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", url, res.Status, bytes.TrimSpace(text))
	}
	return text, err
}
