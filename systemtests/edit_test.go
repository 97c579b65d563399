package systemtests

import (
	"flag"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

var edits = flag.Int("edits", 100, "how often a policy is edited under probes")

// A policy is edited again and again: what all its versions allow loses not one packet, what none allows gets none through.
func TestPolicyIsEditedUnderTraffic(t *testing.T) {
	w := setup(t)
	ns := threePods(w)
	w.run(ns, "d@node2")
	api, err := w.API(w.ctx)
	w.must(err)
	path := "/apis/networking.k8s.io/v1/namespaces/" + ns + "/networkpolicies"
	version := func(rules string) []byte {
		return fmt.Appendf(nil, `{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":"edited"},
			"spec":{"podSelector":{"matchLabels":{"app":"b"}},"ingress":[%s]}}`, rules)
	}
	versions := [][]byte{
		version(`{"from":[{"podSelector":{"matchExpressions":[{"key":"app","operator":"In","values":["a","d"]}]}}]}`),
		version(`{"from":[{"podSelector":{"matchLabels":{"app":"a"}}}],"ports":[{"port":80},{"port":80,"protocol":"UDP"}]}`),
		version(`{"from":[{"podSelector":{"matchLabels":{"app":"d"}}}]},{"from":[{"podSelector":{"matchLabels":{"app":"a"}}}],"ports":[{"port":79,"endPort":81},{"port":80,"protocol":"UDP"}]}`),
	}
	w.must(api.Do(w.ctx, http.MethodPost, path, versions[0]))
	var always, never, sometimes []cluster.Expectation
	for _, proto := range []string{"tcp", "udp"} {
		always = append(always, w.open("a", "b", proto, 80, "allowed by every version")...)
		never = append(never, w.shut("c", "b", proto, 80, "allowed by no version")...)
		sometimes = append(sometimes, w.open("d", "b", proto, 80, "allowed by some versions")[:1]...)
	}
	w.settles(always, never, sometimes)
	w.watch(5*time.Second, append(always, never...), func() { // loss is judged here, not delay
		pace := time.NewTicker(50 * time.Millisecond)
		defer pace.Stop()
		for i := range *edits {
			<-pace.C
			w.must(api.Do(w.ctx, http.MethodPut, path+"/edited", versions[(i+1)%len(versions)]))
		}
	})
	w.must(api.Do(w.ctx, http.MethodPut, path+"/edited", versions[1]))
	for i := range sometimes {
		sometimes[i].Open = false
	}
	w.settles(always, never, sometimes)
}
