package systemtests

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

// What the handler for all nodes is measured with.
const (
	simulatedNodes    = 100
	simulatedPolicies = 500
	simulatedNICs     = 8
	simulatedRacks    = 10 // a policy is for the nodes of one
	simulatedLimit    = 5 * time.Minute
)

// simulation is nodes that are objects only, and their agents, which find each desire in place.
type simulation struct {
	*world
	api *cluster.API
}

// TestNodeConfigTable prints what many nodes and policies cost the handler for all nodes: time, writes and memory. It holds that a
// change writes no node more than once.
func TestNodeConfigTable(t *testing.T) {
	if !*printTable {
		t.Skip("a table to print: run with -table")
	}
	w, _ := withNodeStates(t)
	api, err := w.API(w.ctx)
	w.must(err)
	s := &simulation{w, api}
	s.Cleanup(s.remove)
	s.make()
	ctx, stop := context.WithCancel(t.Context())
	var agents sync.WaitGroup
	agents.Go(func() { s.report(ctx) })
	defer agents.Wait()
	defer stop()

	name := "node-config-" + w.id
	w.Cleanup(func() { _ = w.EndNodeConfig(context.Background(), name) })
	begin := time.Now()
	w.must(w.StartNodeConfig(w.ctx, name, filepath.Join(w.Dir, "admin.kubeconfig"), "9446"))
	fmt.Printf("\n%d simulated nodes in %d racks, %d policies for a rack each, real API server\n", simulatedNodes, simulatedRacks, simulatedPolicies)
	fmt.Printf("%-44s %9s %12s %12s %10s %9s\n", "", "seconds", "node writes", "most a node", "statuses", "conflicts")
	s.row("all policies at once", begin, name, 1)
	begin = time.Now()
	s.must(s.Patch(s.ctx, configsPath+s.policy(7), `{"spec": {"autoConfig": {"vlan": {"id": 4000}}}}`)) // of 10 nodes
	s.row("one policy changes", begin, name, 2)
	before := s.metric("node", "written") + s.metric("policy", "written")
	time.Sleep(20 * time.Second) // idle
	fmt.Printf("idle for 20 s: %v writes; memory of the handler: %s\n", s.metric("node", "written")+s.metric("policy", "written")-before, s.memory(name))
	fmt.Println("goal: at most one write a node and change")
}

func (s *simulation) policy(n int) string { return fmt.Sprintf("sim-%s-%03d", s.id, n) }
func (s *simulation) node(n int) string   { return fmt.Sprintf("sim-%s-%03d", s.id, n) }

func (s *simulation) post(path, format string, args ...any) {
	s.Helper()
	s.must(s.api.Do(s.ctx, http.MethodPost, path, fmt.Appendf(nil, format, args...)))
}

func (s *simulation) make() {
	s.Helper()
	var nics []string
	for n := range simulatedNICs {
		nics = append(nics, fmt.Sprintf(`{"name":"ens%d","type":"ethernet","state":"up","mtu":1500,"mac-address":"52:54:00:00:00:%02x","ipv4":{"enabled":true,"address":[{"ip":"192.0.2.%d","prefix-length":24}]}}`, n, n, n+1))
	}
	for n := range simulatedNodes {
		s.post("/api/v1/nodes", `{"kind":"Node","apiVersion":"v1","metadata":{"name":%q,"labels":{"simulation":%q,"rack":"%d"}},"spec":{"unschedulable":true}}`, s.node(n), s.id, n%simulatedRacks)
		s.post(strings.TrimSuffix(statesPath, "/"), `{"kind":"NodeNetworkState","apiVersion":"nmstate.io/v1","metadata":{"name":%q,"labels":{"simulation":%q}},"spec":{"nodeName":%[1]q,"managed":true}}`, s.node(n), s.id)
		s.must(s.api.Do(s.ctx, http.MethodPatch, statesPath+s.node(n)+"/status",
			fmt.Appendf(nil, `[{"op":"add","path":"/status","value":{"observedGeneration":1,"currentState":{"interfaces":[%s]},"conditions":[%s]}}]`, strings.Join(nics, ","), inSyncAt(1))))
	}
	for n := range simulatedPolicies {
		s.post(strings.TrimSuffix(configsPath, "/"), `{"kind":"NodeNetworkConfigurationPolicy","apiVersion":"nmstate.io/v1","metadata":{"name":%q,"labels":{"simulation":%q}},
			"spec":{"priority":%d,"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"simulation","operator":"In","values":[%[2]q]},{"key":"rack","operator":"In","values":["%[6]d"]}]}]}}},
			"match":[{"name":"ens%[4]d"}],"autoConfig":{"vlan":{"id":%[5]d}}}}`, s.policy(n), s.id, n%5, n%simulatedNICs, n+1, n%simulatedRacks)
	}
}

func inSyncAt(generation int64) string {
	return fmt.Sprintf(`{"type":"InSync","status":"True","reason":"InSync","message":"","lastTransitionTime":"2026-01-01T00:00:00Z","observedGeneration":%d}`, generation)
}

type simulated struct {
	Metadata struct {
		Name       string
		Generation int64
	}
	Status struct{ ObservedGeneration int64 }
}

func (s *simulation) states(ctx context.Context) (list []simulated, err error) {
	var answer struct{ Items []simulated }
	err = s.Get(ctx, strings.TrimSuffix(statesPath, "/")+"?labelSelector=simulation%3D"+s.id, &answer)
	return answer.Items, err
}

// report is the nodes' agents.
func (s *simulation) report(ctx context.Context) {
	for tick := time.NewTicker(200 * time.Millisecond); ctx.Err() == nil; <-tick.C {
		list, err := s.states(ctx)
		if err != nil {
			continue // it is asked again
		}
		for _, o := range list {
			if o.Status.ObservedGeneration < o.Metadata.Generation {
				_ = s.api.Do(ctx, http.MethodPatch, statesPath+o.Metadata.Name+"/status", fmt.Appendf(nil, // what fails is tried again
					`[{"op":"add","path":"/status/observedGeneration","value":%d},{"op":"add","path":"/status/conditions","value":[%s]}]`, o.Metadata.Generation, inSyncAt(o.Metadata.Generation)))
			}
		}
	}
}

// row waits until all policies are in force everywhere, and tells what it took. Each node's object has been written so often by now.
func (s *simulation) row(what string, begin time.Time, name string, writes int64) {
	s.Helper()
	s.must(cluster.Until(s.ctx, simulatedLimit, func() error {
		var answer struct{ Items []nodePolicy }
		if err := s.Get(s.ctx, strings.TrimSuffix(configsPath, "/")+"?labelSelector=simulation%3D"+s.id, &answer); err != nil {
			return err
		}
		for _, p := range answer.Items {
			for n := range simulatedNodes {
				if phase := p.phase(s.node(n)); phase != "Applied" && phase != "NotSelected" {
					return fmt.Errorf("a policy is %q on %s", phase, s.node(n))
				}
			}
		}
		return nil
	}))
	took := time.Since(begin)
	list, err := s.states(s.ctx)
	s.must(err)
	most := int64(0)
	for _, o := range list {
		most = max(most, o.Metadata.Generation-1)
	}
	if most > writes {
		s.Errorf("a node was written %d times for %d changes", most, writes)
	}
	fmt.Printf("%-44s %9.1f %12.0f %12d %10.0f %9.0f\n", what, took.Seconds(), s.metric("node", "written"), most,
		s.metric("policy", "written"), s.metric("policy", "conflict")+s.metric("node", "conflict"))
}

// metric is the handler's count of writes since it began; what it never counted is 0.
func (s *simulation) metric(object, outcome string) (n float64) {
	text, err := s.RunIn(s.ctx, s.NodeNS("cp"), "curl", "-sf", "http://127.0.0.1:9446/metrics")
	s.must(err)
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, fmt.Sprintf(`flowkeep_node_config_writes_total{object=%q,outcome=%q}`, object, outcome)) {
			_, err = fmt.Sscan(line[strings.LastIndexByte(strings.TrimSpace(line), ' '):], &n)
			s.must(err)
		}
	}
	return n
}

// memory is the process' resident set, now and at its highest.
func (s *simulation) memory(name string) string {
	text, err := os.ReadFile(filepath.Join(s.Dir, "pids", name))
	s.must(err)
	pid, _, _ := strings.Cut(string(text), " ")
	status, err := os.ReadFile(filepath.Join("/proc", pid, "status"))
	s.must(err)
	var found []string
	for line := range strings.Lines(string(status)) {
		if strings.HasPrefix(line, "VmRSS") || strings.HasPrefix(line, "VmHWM") {
			found = append(found, strings.Join(strings.Fields(line), " "))
		}
	}
	return strings.Join(found, ", ")
}

func (s *simulation) remove() {
	ctx := context.Background()
	var failed error
	for _, path := range []string{strings.TrimSuffix(configsPath, "/"), strings.TrimSuffix(statesPath, "/"), "/api/v1/nodes"} {
		failed = errors.Join(failed, s.api.Do(ctx, http.MethodDelete, path+"?labelSelector=simulation%3D"+s.id, nil))
	}
	if failed != nil {
		s.Error(failed)
	}
}
