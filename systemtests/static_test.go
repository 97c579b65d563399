package systemtests

import (
	"errors"
	"io/fs"
	"net/http"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

// static has a node's kubelet run a pod, "name@node" as with run, from a file, until remove is called or the test ends. The pod is w.pods[name].
func (w *world) static(namespace, pod string) (path string, remove func()) {
	w.Helper()
	spec := specOf(pod)
	unlink, err := w.PutStaticPod(namespace, spec)
	w.must(err)
	name := spec.Name + "-" + spec.Node
	path = cluster.PathOf("Pod", namespace, name)
	remove = func() {
		if err := unlink(); err != nil && !errors.Is(err, fs.ErrNotExist) {
			w.Error(err)
		}
	}
	w.Cleanup(remove)
	w.must(cluster.Until(w.ctx, time.Minute, func() (err error) {
		w.pods[spec.Name], err = w.Pod(w.ctx, namespace, name)
		return err
	}))
	return path, remove
}

// mirrorUID is the API server's.
func (w *world) mirrorUID(path string) (string, error) {
	var seen struct{ Metadata struct{ UID string } }
	err := w.Get(w.ctx, path, &seen)
	return seen.Metadata.UID, err
}

// A static pod is judged as any other, as target and as peer, though its node knows it by another UID than the API server. Its mirror pod can be deleted, which
// the kubelet makes anew within two minutes: neither the pod nor a packet notices. It ends with its file.
func TestStaticPod(t *testing.T) {
	w := setup(t)
	ns := w.namespace("static", nil)
	w.policy(ns, "cache", `{podSelector: {matchLabels: {app: cache}}, ingress: [{from: [{podSelector: {matchLabels: {app: a}}}]}]}`)
	w.policy(ns, "c", `{podSelector: {matchLabels: {app: c}}, ingress: [{from: [{podSelector: {matchLabels: {app: cache}}}]}]}`)
	w.run(ns, "a@node1", "b@node1", "c@node2")
	path, remove := w.static(ns, "cache@node1")
	var ways []cluster.Expectation
	for _, proto := range []string{"tcp", "udp"} {
		ways = append(ways, w.open("a", "cache", proto, 80, "its rule")...)
		ways = append(ways, w.shut("b", "cache", proto, 80, "no rule, same node")...)
		ways = append(ways, w.shut("c", "cache", proto, 80, "no rule, across")...)
		ways = append(ways, w.shut("cache", "c", proto, 80, "a static pod of this namespace is no peer")...)
		ways = append(ways, w.shut("a", "c", proto, 80, "not c's peer")...)
	}
	w.settles(ways)

	w.policy(ns, "cache", `{podSelector: {matchLabels: {app: cache}}, ingress: [{from: [{podSelector: {matchLabels: {app: b}}}]}]}`)
	w.settles(w.open("b", "cache", "tcp", 80, "the policy names b now"), w.shut("a", "cache", "tcp", 80, "the policy names a no more"))

	before, err := w.mirrorUID(path)
	w.must(err)
	api, err := w.API(w.ctx)
	w.must(err)
	w.watch(stall, slices.Concat(w.open("b", "cache", "tcp", 80, "its rule"), w.shut("a", "cache", "udp", 80, "no rule")), func() {
		w.must(api.Do(w.ctx, http.MethodDelete, path, nil))
		w.must(cluster.Until(w.ctx, settling, func() error {
			now, err := w.mirrorUID(path)
			switch {
			case cluster.NotFound(err):
				return nil
			case err == nil && now == before:
				return errors.New("the mirror pod has not been deleted")
			}
			return err
		}))
		cluster.Undisturbed(w.ctx, cluster.Window(2*time.Second))
	})
	w.settles(w.open("b", "cache", "tcp", 80, "whether its mirror pod is there again or not"), w.shut("a", "cache", "tcp", 80, "likewise"))
	netns := w.pods["cache"].NetNS
	if _, err := os.Stat(netns); err != nil {
		t.Errorf("the pod itself was made anew: nothing was shown (%v)", err)
	}

	remove()
	w.must(cluster.Until(w.ctx, time.Minute, func() error {
		if _, err := w.mirrorUID(path); !cluster.NotFound(err) {
			return errors.Join(errors.New("the mirror pod outlives its file"), err)
		}
		if _, err := os.Stat(netns); !errors.Is(err, fs.ErrNotExist) {
			return errors.Join(errors.New("the pod's network namespace outlives its file: "+netns), err)
		}
		return nil
	}))
	w.settles(w.shut("b", "cache", "tcp", 80, "it is gone"))
}
