package systemtests

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
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
	simulatedRacks    = 10               // a policy is for the nodes of one
	simulatedLimit    = 15 * time.Minute // it is no measure: others may keep the machine busy
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
	agents.Go(func() { s.beat(ctx) })
	defer agents.Wait()
	defer stop()

	name := "node-config-" + w.id
	w.Cleanup(func() { _ = w.EndNodeConfig(context.Background(), name) })
	w.Cleanup(func() {
		if t.Failed() {
			s.tell("when it failed", name, 2)
		}
	})
	begin := time.Now()
	w.must(w.StartNodeConfig(w.ctx, name, filepath.Join(w.Dir, "admin.kubeconfig"), "9446"))
	fmt.Printf("\n%d simulated nodes in %d racks, %d policies for a rack each, real API server\n", simulatedNodes, simulatedRacks, simulatedPolicies)
	took := s.reach(begin, s.written(1, ""))
	fmt.Printf("all nodes have their desired state, the last one after:  %v\n", slices.Max(took).Round(time.Millisecond))
	s.settled()
	fmt.Printf("all policies tell that they are in force after:          %v\n", time.Since(begin).Round(time.Millisecond))
	s.tell("since the start", name, 1)

	took = nil
	for rack := range simulatedRacks { // each time of 10 nodes
		begin = time.Now()
		s.must(s.Patch(s.ctx, configsPath+s.policy(rack), fmt.Sprintf(`{"spec": {"autoConfig": {"vlan": {"id": %d}}}}`, 4000+rack)))
		took = append(took, s.reach(begin, s.written(2, fmt.Sprint(rack)))...)
	}
	slices.Sort(took)
	fmt.Printf("a policy's edit is in the desired state of a node after: p50 %v, p99 %v\n", took[len(took)/2].Round(time.Millisecond), took[len(took)*99/100].Round(time.Millisecond))
	s.settled()
	s.tell(fmt.Sprintf("and after %d edits", simulatedRacks), name, 2)

	before := s.metric("node", "written") + s.metric("policy", "written")
	time.Sleep(20 * time.Second) // idle
	fmt.Printf("idle for 20 s: %v writes\n", s.metric("node", "written")+s.metric("policy", "written")-before)
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
		s.post(strings.TrimSuffix(statesPath, "/"), `{"kind":"NodeNetworkState","apiVersion":"nmstate.io/v1","metadata":{"name":%q,"labels":{"simulation":%q,"rack":"%d"}},"spec":{"nodeName":%[1]q,"managed":true}}`, s.node(n), s.id, n%simulatedRacks)
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

// states are the generations of the simulated nodes' objects, by name; of one rack, or all.
func (s *simulation) states(ctx context.Context, rack string) (generations map[string]int64, err error) {
	var answer struct {
		Items []struct {
			Metadata struct {
				Name       string
				Generation int64
			}
		}
	}
	selector := "?labelSelector=simulation%3D" + s.id
	if rack != "" {
		selector += ",rack%3D" + rack
	}
	err = s.api.As(ctx, "PartialObjectMetadataList", strings.TrimSuffix(statesPath, "/")+selector, &answer)
	generations = map[string]int64{}
	for _, o := range answer.Items {
		generations[o.Metadata.Name] = o.Metadata.Generation
	}
	return generations, err
}

// report is the nodes' agents.
func (s *simulation) report(ctx context.Context) {
	reported := map[string]int64{}
	for tick := time.NewTicker(200 * time.Millisecond); ctx.Err() == nil; <-tick.C {
		states, err := s.states(ctx, "")
		if err != nil {
			continue // it is asked again
		}
		for name, generation := range states {
			if max(1, reported[name]) < generation && s.api.Do(ctx, http.MethodPatch, statesPath+name+"/status", fmt.Appendf(nil,
				`[{"op":"add","path":"/status/observedGeneration","value":%d},{"op":"add","path":"/status/conditions","value":[%s]}]`, generation, inSyncAt(generation))) == nil {
				reported[name] = generation // what fails is tried again
			}
		}
	}
}

// beat is the nodes' kubelets: without it Kubernetes takes the nodes for dead.
func (s *simulation) beat(ctx context.Context) {
	for tick := time.NewTicker(15 * time.Second); ctx.Err() == nil; {
		for n := range simulatedNodes {
			_ = s.api.Do(ctx, http.MethodPatch, "/api/v1/nodes/"+s.node(n)+"/status", fmt.Appendf(nil, // it is told again
				`[{"op":"add","path":"/status/conditions","value":[{"type":"Ready","status":"True","reason":"Simulated","lastHeartbeatTime":%q,"lastTransitionTime":"2026-01-01T00:00:00Z"}]}]`, time.Now().UTC().Format(time.RFC3339)))
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// written tells which nodes, of a rack or all, have been written so often.
func (s *simulation) written(times int64, rack string) func() (map[string]bool, error) {
	return func() (map[string]bool, error) {
		found := map[string]bool{}
		states, err := s.states(s.ctx, rack)
		for name, generation := range states {
			found[name] = generation > times
		}
		return found, err
	}
}

// reach waits until all nodes are there, and tells how long each took.
func (s *simulation) reach(begin time.Time, there func() (map[string]bool, error)) []time.Duration {
	s.Helper()
	took := map[string]time.Duration{}
	s.must(cluster.Until(s.ctx, simulatedLimit, func() error {
		found, err := there()
		for name, is := range found {
			switch _, known := took[name]; {
			case !is:
				err = cmp.Or(err, fmt.Errorf("%s has not been written", name))
			case !known:
				took[name] = time.Since(begin)
			}
		}
		return err
	}))
	return slices.Collect(maps.Values(took))
}

// settled waits until all policies are in force on all nodes of their racks; the sandbox's own nodes have no agents, and policies wait for
// what these report. It looks seldom: there is much to look at.
func (s *simulation) settled() {
	s.Helper()
	there := fmt.Sprintf("in force on %d of ", simulatedNodes/simulatedRacks)
	next := time.Now()
	s.must(cluster.Until(s.ctx, simulatedLimit, func() error {
		if time.Now().Before(next) {
			return errors.New("it is not time to look yet")
		}
		next = time.Now().Add(time.Second)
		var table struct{ Rows []struct{ Cells []any } }
		if err := s.api.As(s.ctx, "Table", strings.TrimSuffix(configsPath, "/")+"?includeObject=None&labelSelector=simulation%3D"+s.id, &table); err != nil {
			return err
		}
		for _, row := range table.Rows {
			if message := fmt.Sprint(row.Cells[6]); !strings.HasPrefix(message, there) {
				return fmt.Errorf("policy %v is %s", row.Cells[0], message)
			}
		}
		return nil
	}))
	var answer struct{ Items []nodePolicy }
	s.must(s.Get(s.ctx, strings.TrimSuffix(configsPath, "/")+"?labelSelector=simulation%3D"+s.id, &answer))
	for _, p := range answer.Items {
		for n := range simulatedNodes {
			if phase := p.phase(s.node(n)); phase != "Applied" && phase != "NotSelected" {
				s.Errorf("a policy is %q on %s", phase, s.node(n))
			}
		}
	}
}

// tell prints what it took until now. A node may have been written so often.
func (s *simulation) tell(when, name string, writes int64) {
	s.Helper()
	list, err := s.states(s.ctx, "")
	s.must(err)
	most := slices.Max(slices.Collect(maps.Values(list))) - 1
	if most > writes {
		s.Errorf("a node was written %d times for %d changes", most, writes)
	}
	fmt.Printf("%s: %.0f writes of nodes, at most %d of one; %.0f of policies' statuses; %.0f conflicts; decisions of a node p50 %s, p99 %s; memory %s\n",
		when, s.metric("node", "written"), most, s.metric("policy", "written"), s.metric("policy", "conflict")+s.metric("node", "conflict"),
		s.quantile(0.5), s.quantile(0.99), s.memory(name))
}

// quantile is within how long that part of all decisions was made.
func (s *simulation) quantile(part float64) string {
	const name = "flowkeep_node_config_decision_seconds"
	all := s.value(name + "_count")
	for line := range strings.Lines(s.metrics()) {
		if text, ok := strings.CutPrefix(line, name+`_bucket{le="`); ok {
			var bound string
			var within float64
			if _, err := fmt.Sscanf(strings.Replace(text, `"} `, " ", 1), "%s %g", &bound, &within); err == nil && within >= part*all {
				return "≤ " + bound + " s"
			}
		}
	}
	return "unknown"
}

// metric is the handler's count of writes since it began.
func (s *simulation) metric(object, outcome string) float64 {
	return s.value(fmt.Sprintf(`flowkeep_node_config_writes_total{object=%q,outcome=%q}`, object, outcome))
}

// value is of one of the handler's metrics; what it never counted is 0.
func (s *simulation) value(metric string) (n float64) {
	for line := range strings.Lines(s.metrics()) {
		if text, ok := strings.CutPrefix(line, metric+" "); ok {
			_, err := fmt.Sscan(text, &n)
			s.must(err)
		}
	}
	return n
}

func (s *simulation) metrics() string {
	text, err := s.RunIn(s.ctx, s.NodeNS("cp"), "curl", "-sf", "http://127.0.0.1:9446/metrics")
	s.must(err)
	return text
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
