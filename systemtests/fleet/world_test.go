package fleet_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
	"github.com/flowkeep/flowkeep/systemtests/fleet"
)

// settling is how long a change may take from the hub to the spokes and back. It is no measure: others may keep the machine busy.
const settling = 30 * time.Second

// world is a test's part of the fleet: its namespace on the hub, and its GatewayClass, which are called alike.
type world struct {
	*testing.T
	*fleet.Fleet
	ctx context.Context
	ns  string
	c1  *fleet.Server
	c2  *fleet.Server
}

func newWorld(t *testing.T) *world {
	t.Helper()
	f := withFleet(t)
	w := &world{t, f, t.Context(), strings.ToLower(strings.TrimPrefix(t.Name(), "TestFleet")), f.Spokes["c1"], f.Spokes["c2"]}
	t.Cleanup(func() {
		if t.Failed() {
			w.Logf("%s wrote last:\n%s", fleet.PolicySync, w.Tail(fleet.PolicySync))
		}
	})
	return w
}

// newSynced is a world in which policy-sync runs, with a namespace and a Placement for all clusters.
func newSynced(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	if w.Alive(fleet.PolicySync) != nil {
		w.must(w.StartPolicySync(w.ctx, fleet.PolicySync))
	}
	w.on(w.Hub, "", namespace(w.ns))
	w.must(w.ReadParameters(w.ctx, w.ns))
	w.on(w.Hub, w.ns, `{apiVersion: cluster.open-cluster-management.io/v1beta2, kind: ManagedClusterSetBinding, metadata: {name: `+fleet.ClusterSet+`}, spec: {clusterSet: `+fleet.ClusterSet+`}}`)
	w.place("everywhere", "c1", "c2")
	t.Cleanup(w.leave)
	return w
}

// dump tells what works there are, for who reads why a test failed.
func (w *world) dump() {
	w.ctx = context.Background()
	works, err := w.works()
	if err != nil {
		w.Log(err)
	}
	for _, work := range works {
		w.Logf("%s/%s at generation %d, deleted %q: %s\n%s\n%s", work.Metadata.Namespace, work.Metadata.Name, work.Metadata.Generation, work.Metadata.DeletionTimestamp,
			work.String(), manifests([]fleet.Work{work}), dig(fleet.Object{"configs": work.Spec.ManifestConfigs}))
	}
}

// leave removes what the test has on the hub, and waits until no work is left of it.
func (w *world) leave() {
	w.ctx = context.Background()
	if w.Failed() {
		w.dump()
		w.Logf("agents wrote last:\n%s\n%s", w.Tail("agent-c1"), w.Tail("agent-c2"))
	}
	paths := []string{gatewayPath(w.ns, ""), cluster.Path(kuadrant, "RateLimitPolicy", w.ns, ""), cluster.Path(ours, "NetworkPolicySet", w.ns, ""),
		cluster.Path(gatewayAPI, "GatewayClass", "", w.ns), cluster.Path(placementAPI, "Placement", w.ns, "")}
	for _, path := range paths {
		if err := w.Hub.Delete(w.ctx, path, settling); err != nil {
			w.Errorf("%s: %v", path, err)
		}
	}
	if err := cluster.Until(w.ctx, settling, func() error {
		works, err := w.works()
		if err == nil && len(works) > 0 {
			err = fmt.Errorf("works are left: %v", names(works))
		}
		return err
	}); err != nil {
		w.Error(err)
	}
}

// Versions of the kinds in use.
const (
	gatewayAPI   = "gateway.networking.k8s.io/v1"
	placementAPI = "cluster.open-cluster-management.io/v1beta1"
	workAPI      = "work.open-cluster-management.io/v1"
	kuadrant     = "kuadrant.io/v1beta2"
	ours         = "fleet.flowkeep.io/v1alpha1"
	example      = "example.com/v1"
)

// on makes an object be as the manifest says; an empty namespace is for objects that have none.
func (w *world) on(s *fleet.Server, namespace, manifest string) {
	w.Helper()
	if err := s.Apply(w.ctx, namespace, manifest); err != nil {
		w.Fatalf("%s: %v", s.Name, err)
	}
}

// place says where what is labelled with a Placement goes; nowhere without a name.
func (w *world) place(name string, clusters ...string) {
	w.Helper()
	w.on(w.Hub, w.ns, fmt.Sprintf(`{apiVersion: %s, kind: Placement, metadata: {name: %s}, spec: {clusterSets: [%s], predicates: [{requiredClusterSelector:
		{labelSelector: {matchExpressions: [{key: name, operator: In, values: ["none", %s]}]}}}]}}`, placementAPI, name, fleet.ClusterSet, strings.Join(clusters, ", ")))
}

// parameters are the ConfigMap's; kinds is YAML.
func (w *world) parameters(kinds string, more ...string) {
	w.Helper()
	w.on(w.Hub, w.ns, fmt.Sprintf(`{apiVersion: v1, kind: ConfigMap, metadata: {name: %s}, data: {downstreamClass: istio, policies: %q%s}}`, w.ns, kinds, strings.Join(append([]string{""}, more...), ", ")))
}

// class makes the test's GatewayClass.
func (w *world) class(kinds string, more ...string) {
	w.Helper()
	w.parameters(kinds, more...)
	w.on(w.Hub, "", fmt.Sprintf(`{apiVersion: %s, kind: GatewayClass, metadata: {name: %s}, spec: {controllerName: flowkeep.io/gateway-sync,
		parametersRef: {group: "", kind: ConfigMap, namespace: %[2]s, name: %[2]s}}}`, gatewayAPI, w.ns))
}

// gateway makes one that goes by a Placement; nowhere without.
func (w *world) gateway(name, placement string) {
	w.Helper()
	labels := "{}"
	if placement != "" {
		labels = "{cluster.open-cluster-management.io/placement: " + placement + "}"
	}
	w.on(w.Hub, w.ns, fmt.Sprintf(`{apiVersion: %s, kind: Gateway, metadata: {name: %s, labels: %s}, spec: {gatewayClassName: %s, listeners: [{name: http, port: 80, protocol: HTTP}]}}`,
		gatewayAPI, name, labels, w.ns))
}

// rates makes a RateLimitPolicy for a gateway.
func (w *world) rates(name, gateway string, limit int) {
	w.Helper()
	w.on(w.Hub, w.ns, rateLimitPolicy(name, gateway, limit))
}

func rateLimitPolicy(name, gateway string, limit int) string {
	return fmt.Sprintf(`{apiVersion: %s, kind: RateLimitPolicy, metadata: {name: %s}, spec: {targetRef: {group: gateway.networking.k8s.io, kind: Gateway, name: %s},
		limits: {l: {rates: [{limit: %d, duration: 1, unit: minute}]}}}}`, kuadrant, name, gateway, limit)
}

const (
	rateLimits = "[{group: kuadrant.io, kind: RateLimitPolicy}]"
	fromHub    = "fleet.flowkeep.io/from-hub"
)

func gatewayPath(namespace, name string) string {
	return cluster.Path(gatewayAPI, "Gateway", namespace, name)
}

func ratesPath(namespace, name string) string {
	return cluster.Path(kuadrant, "RateLimitPolicy", namespace, name)
}

func policyPath(namespace, name string) string {
	return cluster.PathOf("NetworkPolicy", namespace, name)
}

func worksPath(spoke string) string { return cluster.Path(workAPI, "ManifestWork", spoke, "") }

func namespace(name string) string {
	return fmt.Sprintf(`{apiVersion: v1, kind: Namespace, metadata: {name: %s}}`, name)
}

func networkPolicy(name, spec string) string {
	return fmt.Sprintf(`{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: %s}, spec: %s}`, name, spec)
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// eventually waits until something holds.
func (w *world) eventually(what string, ok func() error) {
	w.Helper()
	if err := cluster.Until(w.ctx, settling, ok); err != nil {
		w.Fatalf("%s: %v", what, err)
	}
}

// object is one, or nil where there is none.
func (w *world) object(s *fleet.Server, path string) (fleet.Object, error) {
	object := fleet.Object{}
	if err := s.Get(w.ctx, path, &object); cluster.NotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	return object, nil
}

// dig is what lies in an object, as text: texts and numbers as they are, the rest as JSON, "" where there is nothing.
func dig(o fleet.Object, path ...any) string {
	var at any = o
	for _, step := range path {
		switch step := step.(type) {
		case string:
			object, _ := at.(fleet.Object)
			at = object[step]
		case int:
			list, _ := at.([]any)
			if step >= len(list) {
				return ""
			}
			at = list[step]
		}
	}
	switch at := at.(type) {
	case nil:
		return ""
	case string, float64:
		return fmt.Sprint(at)
	}
	text, err := json.Marshal(at)
	return cmp.Or(string(text), fmt.Sprint(err))
}

// shows waits until an object has a text at a place.
func (w *world) shows(s *fleet.Server, path, want string, at ...any) {
	w.Helper()
	w.eventually(fmt.Sprintf("%s of %s has at %v", path, s.Name, at), func() error {
		o, err := w.object(s, path)
		if err == nil && (o == nil || dig(o, at...) != want) {
			err = fmt.Errorf("%q, and not %q", dig(o, at...), want)
		}
		return err
	})
}

// there waits until an object is there.
func (w *world) there(s *fleet.Server, path string) fleet.Object {
	w.Helper()
	var found fleet.Object
	w.eventually(path+" is on "+s.Name, func() error {
		o, err := w.object(s, path)
		if found = o; err == nil && o == nil {
			err = errors.New("it is not")
		}
		return err
	})
	return found
}

// gone waits until there is no such object.
func (w *world) gone(s *fleet.Server, path string) {
	w.Helper()
	w.eventually(path+" is gone from "+s.Name, func() error {
		o, err := w.object(s, path)
		if err == nil && o != nil {
			err = errors.New("it is there")
		}
		return err
	})
}

// kept is a namespace that outlives what was written into it: it is there, and not about to go. To be asked when the works are gone.
func (w *world) kept(s *fleet.Server, name string) fleet.Object {
	w.Helper()
	o := w.there(s, "/api/v1/namespaces/"+name)
	if since := dig(o, "metadata", "deletionTimestamp"); since != "" {
		w.Errorf("the namespace %s of %s is being deleted since %s", name, s.Name, since)
	}
	return o
}

// content is an object as it is, without its status.
func (w *world) content(s *fleet.Server, path string) string {
	w.Helper()
	o, err := w.object(s, path)
	w.must(err)
	delete(o, "status")
	return dig(o)
}

// condition is one of an object's; where is the path to the list of conditions.
func condition(o fleet.Object, kind string, where ...any) fleet.Condition {
	if len(where) == 0 {
		where = []any{"status", "conditions"}
	}
	var all []fleet.Condition
	_ = json.Unmarshal([]byte(dig(o, where...)), &all) // none are there
	return fleet.Find(all, kind)
}

// says waits until an object's condition is so of its present generation, and its message has all of the texts.
func (w *world) says(s *fleet.Server, path, kind, status string, texts ...string) fleet.Condition {
	w.Helper()
	return w.saysAt(s, path, []any{"status", "conditions"}, kind, status, texts...)
}

func (w *world) saysAt(s *fleet.Server, path string, where []any, kind, status string, texts ...string) (c fleet.Condition) {
	w.Helper()
	w.eventually(fmt.Sprintf("%s of %s says %s=%s %q", path, s.Name, kind, status, texts), func() error {
		o, err := w.object(s, path)
		if err != nil {
			return err
		}
		c = condition(o, kind, where...)
		lacks := func(text string) bool { return !strings.Contains(c.Reason+": "+c.Message, text) }
		if c.Status != status || fmt.Sprint(c.ObservedGeneration) != dig(o, "metadata", "generation") || slices.ContainsFunc(texts, lacks) {
			return fmt.Errorf("at generation %s its status is %s", dig(o, "metadata", "generation"), dig(o, "status"))
		}
		return nil
	})
	return c
}

// tell writes an object's status as its controller does; conditions are of the present generation.
func (w *world) tell(s *fleet.Server, path string, status func(generation string) string) {
	w.Helper()
	o := w.there(s, path)
	w.must(s.Do(w.ctx, http.MethodPatch, path+"/status", fmt.Appendf(nil, `[{"op":"add","path":"/status","value":%s}]`, status(dig(o, "metadata", "generation")))))
}

// conditions is a status of these: each is "Type Status Reason message".
func conditions(list ...string) func(string) string {
	return func(generation string) string {
		return `{"conditions":` + conditionList(generation, list...) + `}`
	}
}

func conditionList(generation string, list ...string) string {
	var all []string
	for _, one := range list {
		part := append(strings.SplitN(one, " ", 4), "")
		all = append(all, fmt.Sprintf(`{"type":%q,"status":%q,"reason":%q,"message":%q,"observedGeneration":%s,"lastTransitionTime":"2026-01-01T00:00:00Z"}`, part[0], part[1], part[2], part[3], generation))
	}
	return "[" + strings.Join(all, ",") + "]"
}

// works are those that carry something of the test's namespace.
func (w *world) works() (all []fleet.Work, err error) {
	for _, spoke := range []string{"c1", "c2"} {
		var list struct{ Items []fleet.Work }
		if err := w.Hub.Get(w.ctx, worksPath(spoke), &list); err != nil {
			return nil, err
		}
		for _, work := range list.Items {
			if strings.Contains(work.Metadata.Annotations["fleet.flowkeep.io/bundle"], "/"+w.ns+"/") {
				all = append(all, work)
			}
		}
	}
	return all, nil
}

func names(works []fleet.Work) (all []string) {
	for _, work := range works {
		all = append(all, work.Metadata.Namespace+"/"+work.Metadata.Name)
	}
	return all
}

// carries waits until there are so many works.
func (w *world) carries(count int) {
	w.Helper()
	w.eventually(fmt.Sprintf("there are %d works", count), func() error {
		works, err := w.works()
		if err == nil && len(works) != count {
			err = fmt.Errorf("there are %v", names(works))
		}
		return err
	})
}

// settled waits until the works' agents have told of what they carry as it is now, and all of it is written.
func (w *world) settled(count int) []fleet.Work {
	w.Helper()
	var all []fleet.Work
	w.eventually("the works are settled", func() (err error) {
		if all, err = w.works(); err != nil {
			return err
		}
		if len(all) != count {
			return fmt.Errorf("there are works %v", names(all))
		}
		for i := range all {
			if text := all[i].String(); strings.Contains(text, "nothing of this generation") || strings.Contains(text, "not there") {
				return fmt.Errorf("%s says %s", all[i].Metadata.Name, text)
			}
		}
		return nil
	})
	return all
}
