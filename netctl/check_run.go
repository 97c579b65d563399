package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/flowkeep/flowkeep/netctl/apiserver"
	"github.com/flowkeep/flowkeep/netctl/check"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// checker runs the checks in a cluster.
type checker struct {
	*options
	image, namespace string
	nodes, outside   []string
	wait, limit      time.Duration
	progress         io.Writer
	api              *apiserver.Client
	log              checkLog
}

// checkLog is what the clients' logs say. Safe for concurrent use.
type checkLog struct {
	mu     sync.Mutex
	states map[string]map[check.Probe]check.State // by client
	failed map[string]error                       // why the log of a client could not be read
}

func (l *checkLog) observed(client string, p check.Probe) check.State {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.states[client][p]
}

func (l *checkLog) add(client string, e *check.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.states[client] == nil {
		l.states[client] = map[check.Probe]check.State{}
	}
	l.states[client][e.Probe] = l.states[client][e.Probe].Next(e, time.Now())
}

func (l *checkLog) fail(client string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failed[client] = err
}

// silent returns an error if a client has printed nothing.
func (l *checkLog) silent(clients ...string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, client := range clients {
		if len(l.states[client]) == 0 {
			why := cmp.Or(l.failed[client], errors.New("it is empty"))
			return fmt.Errorf("the log of pod %s has no results: %w", client, why)
		}
	}
	return nil
}

// say prints progress.
func (k *checker) say(format string, args ...any) {
	fmt.Fprintf(k.progress, format+"\n", args...)
}

// run checks, and removes what it created, also after an error or an interrupt; a second interrupt ends netctl.
func (k *checker) run(ctx context.Context) (*check.Report, error) {
	interruptible, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	k.log = checkLog{states: map[string]map[check.Probe]check.State{}, failed: map[string]error{}}
	if err := k.choose(interruptible); err != nil {
		return nil, err
	}
	k.namespace = "flowkeep-check-" + strings.ToLower(rand.Text()[:6])
	report, err := k.inNamespace(interruptible)
	if interruptible.Err() != nil && ctx.Err() == nil {
		err = errors.New("interrupted")
	}
	stop()
	k.say("removing namespace %s", k.namespace)
	if gone := k.remove(context.WithoutCancel(ctx)); gone != nil {
		const left = "namespace %s is not removed: %w; remove it with: kubectl delete namespace %[1]s"
		err = errors.Join(err, fmt.Errorf(left, k.namespace, gone))
	}
	return report, err
}

// choose finds the image and the nodes.
func (k *checker) choose(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, k.timeout)
	defer cancel()
	if k.image == "" {
		set, err := apiserver.One[appsv1.DaemonSet](ctx, k.api, ownApps+"/daemonsets/netplugin")
		if err != nil {
			return fmt.Errorf("find the image of the DaemonSet netplugin: %w; give --image, an image with netctl", err)
		}
		k.image = saidBy(&set.Spec.Template.Spec, new(places))["image"]
	}
	if len(k.nodes) > 0 {
		return nil
	}
	nodes, err := allOf(ctx, k.api, "/api/v1/nodes", func(n *corev1.Node) *corev1.Node { return n })
	if err != nil {
		return fmt.Errorf("list the nodes: %w", err)
	}
	if k.nodes = check.Nodes(nodes); len(k.nodes) == 0 {
		return errors.New("no node is ready and takes pods: give --nodes")
	}
	return nil
}

func (k *checker) path() string { return "/api/v1/namespaces/" + k.namespace }

func (k *checker) policies() string {
	return "/apis/networking.k8s.io/v1/namespaces/" + k.namespace + "/networkpolicies"
}

// create creates an object.
func (k *checker) create(ctx context.Context, path string, object any) error {
	ctx, cancel := context.WithTimeout(ctx, k.timeout)
	defer cancel()
	body, err := json.Marshal(object)
	if err == nil {
		err = k.api.Create(ctx, path, body)
	}
	if err != nil {
		return fmt.Errorf("create an object of %s: %w", path, err)
	}
	return nil
}

func (k *checker) inNamespace(ctx context.Context) (*check.Report, error) {
	k.say("namespace %s, nodes %s, image %s", k.namespace, strings.Join(k.nodes, " and "), k.image)
	if err := k.create(ctx, "/api/v1/namespaces", check.Namespace(k.namespace)); err != nil {
		return nil, err
	}
	facts, err := k.servers(ctx)
	if err != nil {
		return nil, err
	}
	checks := check.Plan(facts)
	if err := k.clients(ctx, checks); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, client := range []string{check.Friend, check.Stranger} {
		go k.follow(ctx, client)
	}
	if err := k.awaitEvents(ctx); err != nil {
		return nil, err
	}
	report := &check.Report{Nodes: k.nodes, Image: k.image}
	for _, stage := range check.Stages {
		rows, err := k.stage(ctx, stage, checks)
		if err != nil {
			return nil, err
		}
		report.Add(rows...)
	}
	return report, nil
}

// servers starts the servers and the Service, and returns what the checks depend on.
func (k *checker) servers(ctx context.Context) (*check.Facts, error) {
	if err := k.account(ctx); err != nil {
		return nil, err
	}
	list := []*corev1.Pod{check.Server(check.Near, k.nodes[0], k.image)}
	if len(k.nodes) > 1 {
		list = append(list, check.Server(check.Far, k.nodes[1], k.image))
	}
	running, err := k.start(ctx, list)
	if err != nil {
		return nil, err
	}
	service := check.Service(list[len(list)-1].Name)
	if err := k.create(ctx, k.path()+"/services", service); err != nil {
		return nil, err
	}
	if service, err = apiserver.One[corev1.Service](ctx, k.api, k.path()+"/services/"+service.Name); err != nil {
		return nil, fmt.Errorf("read the Service: %w", err)
	}
	facts := &check.Facts{
		Near:    addressesOf(running[check.Near]),
		Far:     addressesOf(running[check.Far]),
		Service: parseAddresses(service.Spec.ClusterIPs),
		Outside: k.outside,
	}
	if len(facts.Outside) == 0 {
		if facts.Outside, err = k.apiServers(ctx); err != nil {
			k.say("the addresses of the API servers are not known: %v", err)
		}
	}
	facts.Name, facts.NoDNS = k.dns(ctx)
	return facts, nil
}

// account waits for the namespace's ServiceAccount, without which it takes no pods.
func (k *checker) account(ctx context.Context) error {
	err := within(ctx, k.wait, func(ctx context.Context) (bool, error) {
		_, err := apiserver.One[corev1.ServiceAccount](ctx, k.api, k.path()+"/serviceaccounts/default")
		if apiserver.IsNotFound(err) {
			return false, nil
		}
		return err == nil, err
	})
	if errors.Is(err, context.DeadlineExceeded) {
		return errors.New("the namespace gets no ServiceAccount default: does kube-controller-manager run?")
	}
	return err
}

// clients starts the clients.
func (k *checker) clients(ctx context.Context, checks []check.Check) error {
	var list []*corev1.Pod
	for _, name := range []string{check.Friend, check.Stranger} {
		pod, err := check.Client(name, k.nodes[0], k.image, check.Probes(checks, name))
		if err != nil {
			return err
		}
		list = append(list, pod)
	}
	_, err := k.start(ctx, list)
	return err
}

// start creates pods and returns them, by name, when they run.
func (k *checker) start(ctx context.Context, list []*corev1.Pod) (map[string]*corev1.Pod, error) {
	for _, p := range list {
		k.say("starting pod %s on %s", p.Name, p.Spec.NodeName)
		if err := k.create(ctx, k.path()+"/pods", p); err != nil {
			return nil, err
		}
	}
	running, why := map[string]*corev1.Pod{}, ""
	err := within(ctx, k.wait, func(ctx context.Context) (bool, error) {
		for _, p := range list {
			now, err := apiserver.One[corev1.Pod](ctx, k.api, k.path()+"/pods/"+p.Name)
			if err != nil {
				return false, err
			}
			if ok, err := check.Running(now); !ok || err != nil {
				why = fmt.Sprintf("pod %s on %s does not run: %s", p.Name, p.Spec.NodeName, reason(now))
				return false, err
			}
			running[p.Name] = now
		}
		return true, nil
	})
	if errors.Is(err, context.DeadlineExceeded) {
		return nil, fmt.Errorf("after %v %s", k.wait, why)
	}
	return running, err
}

// within waits like until, with a limit.
func within(ctx context.Context, limit time.Duration, done func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return until(ctx, done)
}

// until waits until done returns true or an error.
func until(ctx context.Context, done func(context.Context) (bool, error)) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		ok, err := done(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if ok || err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func addressesOf(p *corev1.Pod) (list []netip.Addr) {
	if p == nil {
		return nil
	}
	for _, ip := range p.Status.PodIPs {
		list = append(list, parseAddresses([]string{ip.IP})...)
	}
	return list
}

// parseAddresses leaves out what is no address: a Service without one has "None".
func parseAddresses(texts []string) (list []netip.Addr) {
	for _, text := range texts {
		if a, err := netip.ParseAddr(text); err == nil {
			list = append(list, a)
		}
	}
	return list
}

// apiServers returns an address of the API servers of each family: they are no pods.
func (k *checker) apiServers(ctx context.Context) (list []string, err error) {
	const path = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
	const selector = discoveryv1.LabelServiceName + "=kubernetes"
	err = apiserver.Each(ctx, k.api, path, selector, func(s *discoveryv1.EndpointSlice, _ int) {
		if len(s.Endpoints) > 0 && len(s.Endpoints[0].Addresses) > 0 && len(s.Ports) > 0 && s.Ports[0].Port != nil {
			list = append(list, net.JoinHostPort(s.Endpoints[0].Addresses[0], strconv.Itoa(int(*s.Ports[0].Port))))
		}
	})
	slices.Sort(list)
	return list, err
}

// dns returns the name of the Service, or why it is not looked up.
func (k *checker) dns(ctx context.Context) (name, none string) {
	found := false
	const path = "/api/v1/namespaces/kube-system/services"
	err := apiserver.Each(ctx, k.api, path, "k8s-app=kube-dns", func(*corev1.Service, int) { found = true })
	switch {
	case err != nil:
		return "", fmt.Sprintf("whether there is a DNS is not known: %v", err)
	case !found:
		return "", "namespace kube-system has no Service with the label k8s-app=kube-dns"
	}
	return check.ServiceName + "." + k.namespace + ".svc", ""
}

// follow reads the log of a client until ctx ends, again from its beginning after an error.
func (k *checker) follow(ctx context.Context, client string) {
	seen := 0
	params := url.Values{"follow": {"true"}}
	_ = until(ctx, func(ctx context.Context) (bool, error) { // it ends with ctx
		err := k.api.Lines(ctx, k.path()+"/pods/"+client+"/log", params, func(line []byte) error {
			e := new(check.Event)
			if err := json.Unmarshal(line, e); err != nil {
				return fmt.Errorf("pod %s printed %q", client, line)
			}
			if e.Number > seen {
				seen = e.Number
				k.log.add(client, e)
			}
			return nil
		})
		if err == nil {
			err = errors.New("the log ended")
		}
		k.log.fail(client, err)
		return false, nil
	})
}

// awaitEvents waits until each client has printed something.
func (k *checker) awaitEvents(ctx context.Context) error {
	err := within(ctx, k.timeout, func(context.Context) (bool, error) {
		return k.log.silent(check.Friend, check.Stranger) == nil, nil
	})
	if errors.Is(err, context.DeadlineExceeded) {
		return k.log.silent(check.Friend, check.Stranger)
	}
	return err
}

// stage changes the policies, and waits until packets meet them or the limit is over.
func (k *checker) stage(ctx context.Context, stage check.Stage, all []check.Check) ([]check.Row, error) {
	var checks []check.Check
	for i := range all {
		if all[i].Stage == stage {
			checks = append(checks, all[i])
		}
	}
	k.say("%s: %s", stage, plural(len(checks), "check", "checks"))
	change := check.Change{Sent: time.Now()}
	if err := k.change(ctx, stage); err != nil {
		return nil, err
	}
	change.Done = time.Now()
	err := within(ctx, k.limit, func(context.Context) (bool, error) {
		return check.Settled(checks, change, k.log.observed), nil
	})
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return nil, err
	}
	return check.JudgeStage(stage, checks, change, k.log.observed), nil
}

func (k *checker) change(ctx context.Context, stage check.Stage) error {
	ctx, cancel := context.WithTimeout(ctx, k.timeout)
	defer cancel()
	if stage == check.Removed {
		for _, s := range []check.Stage{check.IngressPolicy, check.EgressPolicy} {
			if err := k.api.Delete(ctx, k.policies()+"/"+check.Policy(s).Name); err != nil {
				return fmt.Errorf("delete the policies: %w", err)
			}
		}
		return nil
	}
	if p := check.Policy(stage); p != nil {
		return k.create(ctx, k.policies(), p)
	}
	return nil
}

// remove deletes the namespace and waits until it is gone.
func (k *checker) remove(ctx context.Context) error {
	if err := k.api.Delete(ctx, k.path()); err != nil && !apiserver.IsNotFound(err) {
		return err
	}
	err := within(ctx, k.wait, func(ctx context.Context) (bool, error) {
		_, err := apiserver.One[corev1.Namespace](ctx, k.api, k.path())
		if apiserver.IsNotFound(err) {
			return true, nil
		}
		return false, err
	})
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("it is still there after %v", k.wait)
	}
	return err
}
