package watch

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
)

// TestRoster: the leader knows those that tell of themselves, and forgets those that say so or tell nothing new; whatever their clocks say, and whatever else is there.
func TestRoster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		var away atomic.Bool
		client.PrependReactor("get", "configmaps", func(k8stesting.Action) (bool, runtime.Object, error) {
			return away.Load(), nil, errors.New("refused by the test")
		})
		member := func(identity string) *Roster {
			return &Roster{Client: client, Namespace: "ns", Identity: identity, Version: "v-" + identity}
		}
		tell := func(identity, notReady string) {
			if err := member(identity).Publish(t.Context(), notReady); err != nil {
				t.Fatal(err)
			}
		}
		raw := func(patch string) {
			if _, err := client.CoreV1().ConfigMaps("ns").Patch(t.Context(), rosterName, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		entries := func() (out []string) {
			m, err := client.CoreV1().ConfigMaps("ns").Get(t.Context(), rosterName, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for key := range m.Data {
				out = append(out, key)
			}
			return out
		}
		var mu sync.Mutex
		var known, trouble string
		knows := func(want string) {
			t.Helper()
			time.Sleep(5*time.Second + time.Millisecond)
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if known != want || trouble != "" {
				t.Errorf("%q (%s), want %q", known, trouble, want)
			}
		}
		if err := member("a").Leave(t.Context()); err != nil {
			t.Errorf("who leaves what is not there: %v", err)
		}
		leader := member("leader")
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			leader.Watch(ctx, func(all []inspect.Standby, err error) {
				mu.Lock()
				defer mu.Unlock()
				known, trouble = "", ""
				for _, s := range all {
					known += fmt.Sprintf("%s %s %s;", s.Identity, s.Version, s.NotReady)
				}
				if err != nil {
					trouble = err.Error()
				}
			})
		}()
		knows("")
		tell("a", "")
		tell("b/é", "it starts")
		tell("leader", "") // on its way when it came to lead
		knows("a v-a ;b/é v-b/é it starts;")
		if got := len(entries()); got != 2 {
			t.Errorf("the leader's own entry is there: %s", entries())
		}
		raw(`{"data": {"old": "{\"identity\": \"old\", \"version\": \"1\", \"told\": \"1970-01-01T00:00:00Z\", \"new\": [1]}", "nonsense": "{", "nobody": "{}"}}`)
		tell("b/é", "")
		knows("a v-a ;b/é v-b/é ;old 1 ;")
		if got := strings.Join(entries(), " "); strings.Contains(got, "no") {
			t.Errorf("entries of nobody are left: %s", got)
		}
		away.Store(true)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if mu.Lock(); !strings.Contains(trouble, "refused by the test") || known != "" {
			t.Errorf("it is not told that nobody can tell: %q %q", known, trouble)
		}
		mu.Unlock()
		away.Store(false)
		for range 3 {
			tell("a", "")
			knows("a v-a ;b/é v-b/é ;old 1 ;")
		}
		if err := member("b/é").Leave(t.Context()); err != nil {
			t.Error(err)
		}
		tell("a", "")
		knows("a v-a ;") // old has told nothing new in 20 s
		if got := entries(); len(got) != 1 {
			t.Errorf("entries are left: %s", got)
		}
		cancel()
		<-done
	})
}
