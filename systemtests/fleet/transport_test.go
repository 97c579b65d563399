package fleet_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/systemtests/fleet"
)

// What policy sync relies on of Open Cluster Management's work agent, without policy sync.
func TestFleetTransport(t *testing.T) {
	w := newWorld(t)
	c1 := w.c1
	mine, theirs := w.ns+"-new", w.ns
	w.must(c1.Apply(w.ctx, "", namespace(theirs)))
	for name, spec := range map[string]string{"same": "{podSelector: {}, policyTypes: [Ingress]}", "other": "{podSelector: {matchLabels: {a: b}}}"} {
		w.must(c1.Apply(w.ctx, theirs, networkPolicy(name, spec)))
	}
	work := func(name, strategy string, namespace string, policies ...string) {
		t.Helper()
		var manifests, configs []string
		orphan := ""
		if namespace != "" {
			manifests = append(manifests, fmt.Sprintf(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":%q,"labels":{"from":"hub"}}}`, namespace))
			configs = append(configs, fmt.Sprintf(`{"resourceIdentifier":{"resource":"namespaces","name":%q},"updateStrategy":{"type":"CreateOnly"}}`, namespace))
			orphan = fmt.Sprintf(`"deleteOption":{"propagationPolicy":"SelectivelyOrphan","selectivelyOrphans":{"orphaningRules":[{"resource":"namespaces","name":%q}]}},`, namespace)
		}
		for _, policy := range policies {
			in, name, _ := strings.Cut(policy, "/")
			manifests = append(manifests, fmt.Sprintf(`{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":%q,"namespace":%q,"annotations":{"fleet.flowkeep.io/from-hub":"test"}},
				"spec":{"podSelector":{},"policyTypes":["Ingress"],"ingress":[{}]}}`, name, in))
			configs = append(configs, fmt.Sprintf(`{"resourceIdentifier":{"group":"networking.k8s.io","resource":"networkpolicies","namespace":%q,"name":%q},"updateStrategy":%s,
				"feedbackRules":[{"type":"JSONPaths","jsonPaths":[{"name":"source","path":".metadata.annotations.fleet\\.flowkeep\\.io/from-hub"},{"name":"generation","path":".metadata.generation"}]}]}`, in, name, strategy))
		}
		w.must(w.Hub.Apply(w.ctx, "c1", fmt.Sprintf(`{apiVersion: work.open-cluster-management.io/v1, kind: ManifestWork, metadata: {name: %s-%s}, spec: {%s "manifestConfigs":[%s],"workload":{"manifests":[%s]}}}`,
			w.ns, name, orphan, strings.Join(configs, ","), strings.Join(manifests, ","))))
	}
	remove := func(name string) { w.must(w.Hub.Delete(w.ctx, worksPath("c1")+"/"+w.ns+"-"+name, settling)) }
	state := func(name, want string) {
		t.Helper()
		w.eventually("the work "+name+" says", func() error {
			var m fleet.Work
			if err := w.Hub.Get(w.ctx, worksPath("c1")+"/"+w.ns+"-"+name, &m); err != nil {
				return err
			}
			if got := m.String(); got != want {
				return fmt.Errorf("%s, and not %s", got, want)
			}
			return nil
		})
	}

	const readOnly = `{"type":"ReadOnly"}`
	const write = `{"type":"ServerSideApply","serverSideApply":{"force":true,"fieldManager":"work-agent-flowkeep"}}`
	before := w.content(c1, policyPath(theirs, "same"))
	work("asks", readOnly, "", theirs+"/same", theirs+"/absent")
	state("asks", "same there (generation=1), absent not there")
	remove("asks")
	if after := w.content(c1, policyPath(theirs, "same")); after != before {
		t.Errorf("who only asks has changed\n%s\nto\n%s", before, after)
	}

	work("writes", write, mine, mine+"/p")
	state("writes", mine+" there (), p there (source=test generation=1)")
	uid := dig(w.there(c1, policyPath(mine, "p")), "metadata", "uid")
	work("too", write, "", mine+"/p")
	state("too", "p there (source=test generation=1)")
	remove("writes")
	if got := dig(w.there(c1, policyPath(mine, "p")), "metadata", "uid"); got != uid {
		t.Errorf("the policy that another work has too was %s and is %s", uid, got)
	}
	w.kept(c1, mine)
	w.must(c1.Patch(w.ctx, policyPath(mine, "p"), `{"spec": {"ingress": [{"ports": [{"port": 80}]}]}}`))
	w.eventually("what was changed by hand is mended", func() error {
		if got := w.content(c1, policyPath(mine, "p")); !strings.Contains(got, `"ingress":[{}]`) {
			return fmt.Errorf("the policy is %s", got)
		}
		return nil
	})
	remove("too")
	w.gone(c1, policyPath(mine, "p"))
	w.kept(c1, mine)
}
