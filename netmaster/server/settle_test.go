package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/netmaster/watch"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
)

type metadataList = metav1.PartialObjectMetadataList

// consistent lists what the fake API server holds, also while it refuses all other clients.
func (w *world) consistent(count *atomic.Int64) func(*Config) {
	kinds := map[string]string{
		"pods":            "Pod",
		"nodes":           "Node",
		"namespaces":      "Namespace",
		"networkpolicies": "NetworkPolicy",
	}
	return func(cfg *Config) {
		cfg.Watcher.Keep()
		cfg.Fresh = watch.ListerOf(func(_ context.Context, r schema.GroupVersionResource) (*metadataList, error) {
			if r.Resource == "networkpolicies" {
				count.Add(1)
			}
			all, err := w.client.Tracker().List(r, r.GroupVersion().WithKind(kinds[r.Resource]), "")
			if err != nil {
				return nil, err
			}
			out := &metav1.PartialObjectMetadataList{ListMeta: metav1.ListMeta{ResourceVersion: "1000"}}
			err = meta.EachListItem(all, func(o runtime.Object) error {
				m := o.(metav1.Object)
				out.Items = append(out.Items, metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
					Namespace:       m.GetNamespace(),
					Name:            m.GetName(),
					ResourceVersion: m.GetResourceVersion(),
				}})
				return nil
			})
			if err != nil {
				return nil, err
			}
			for i := range out.Items {
				if out.Items[i].ResourceVersion == "" {
					out.Items[i].ResourceVersion = "0"
				}
			}
			return out, nil
		})
	}
}

// lagging is a watch of NetworkPolicies that delivers nothing more, as fails decides: with errors, or open and silent.
type lagging struct{ lags, given atomic.Bool }

func (l *lagging) on(w *world) (first *apiwatch.FakeWatcher) {
	first = apiwatch.NewFake()
	failed := errors.New("the API server gives no NetworkPolicies")
	w.client.PrependReactor("list", "networkpolicies", func(k8stesting.Action) (bool, runtime.Object, error) {
		return l.lags.Load(), nil, failed
	})
	w.client.PrependWatchReactor("networkpolicies", func(k8stesting.Action) (bool, apiwatch.Interface, error) {
		if l.lags.Load() {
			return true, nil, failed
		}
		if l.given.Swap(true) {
			return false, nil, nil
		}
		w.sees("networkpolicies")
		return true, first, nil
	})
	return first
}

// TestPodWaitsForOlderPolicy: a pod that is newer than a policy which the watch has not delivered is not settled before
// that policy is in force on its node, whether the watch fails or stays open and silent. Afterwards pods settle at
// once.
func TestPodWaitsForOlderPolicy(t *testing.T) {
	for name, fails := range map[string]bool{"the watch fails": true, "the watch is silent": false} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, shop(t)...)
			var l lagging
			first := l.on(w)
			var lists atomic.Int64
			m := w.start(w.consistent(&lists))
			m.ready()
			n1 := held(m, "node1")
			l.lags.Store(true)
			if fails {
				first.Stop()
			}
			late := netpol(t, "older", `{podSelector: {matchLabels: {app: late}}, policyTypes: [Ingress, Egress]}`)
			late.ResourceVersion = "1"
			ctx := t.Context()
			policies := w.client.NetworkingV1().NetworkPolicies("ns")
			if _, err := policies.Create(ctx, late, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			start := func(name, address string) {
				t.Helper()
				p := pod(name, "late", "node1", "")
				p.ResourceVersion = "2"
				if _, err := w.client.CoreV1().Pods("ns").Create(ctx, p, metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
				n1.say(announce(&wired(name, address)[0]))
			}
			start("late", "10.0.1.77")
			until(t, "an answer waits, and the lag is known", func() bool {
				return m.metric("netmaster_settling_pods") == 1 && m.metric("netmaster_watch_lag_seconds") > 0
			})
			if n1.is(func() bool { return n1.settled["ns/late"] })() {
				t.Fatal("settled without the policy that is older")
			}
			l.lags.Store(false)
			if !fails {
				first.Add(late)
			}
			isolated := n1.isolates("10.0.1.77", policy.Ingress, policy.Egress)
			until(t, "it is settled", n1.is(func() bool { return n1.settled["ns/late"] }))
			if !isolated() {
				t.Error("settled before its policy was in force")
			}
			start("next", "10.0.1.78")
			until(t, "the next pod is settled", n1.is(func() bool { return n1.settled["ns/next"] }))
			until(t, "nothing waits", func() bool {
				return m.metric("netmaster_settling_pods") == 0 && m.metric("netmaster_watch_lag_seconds") == 0
			})
		})
	}
}

// TestListsAreRateLimited: the first pod after a pause has a list requested at once; however many pods come, there are no more
// than two a second and one more after a pause, and one list answers all pods that were seen before it.
func TestListsAreRateLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var begun []time.Time
		list := watch.ListerOf(func(_ context.Context, r schema.GroupVersionResource) (*metadataList, error) {
			if r.Resource == "networkpolicies" {
				begun = append(begun, time.Now())
			}
			return &metav1.PartialObjectMetadataList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}, nil
		})
		watcher, err := watch.New(fake.NewClientset(), nil, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		watcher.Keep()
		s := newServer(Config{Logger: slog.New(slog.DiscardHandler), Watcher: watcher, Fresh: list})
		close(s.synced)
		ctx, cancel := context.WithCancel(t.Context())
		go s.confirmPolicies(ctx)
		go func() {
			for {
				select {
				case f := <-s.calls:
					f()
				case <-ctx.Done():
					return
				}
			}
		}()
		see := func(id string) {
			if err := s.Do(ctx, func(*resolve.Engine) { s.gate.see(id); s.wantList() }); err != nil {
				t.Fatal(err)
			}
		}
		for pause := range 3 {
			time.Sleep(time.Minute)
			synctest.Wait()
			began, before := time.Now(), len(begun)
			for i := range 100 {
				see(fmt.Sprint("ns/", i))
				synctest.Wait()
				time.Sleep(50 * time.Millisecond)
			}
			time.Sleep(listInterval)
			synctest.Wait()
			lists := begun[before:]
			if n := len(lists); n < 10 || n > 12 || !lists[0].Equal(began) {
				t.Fatalf("pause %d: %d lists in 5 s, the first %s late", pause, n, lists[0].Sub(began))
			}
			for i := range lists[2:] {
				if d := lists[i+2].Sub(lists[i]); d < listInterval {
					t.Errorf("three lists began within %s", d)
				}
			}
		}
		cancel()
		synctest.Wait()
	})
}
