package hostport

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flowkeep/flowkeep/netplugin/endpoints"
)

// node is a node with portmap's tables, of which tests remove rules.
type node struct {
	mu      sync.Mutex
	pods    []endpoints.Endpoint
	there   map[string]bool // rules, by container
	ran     []string        // commands
	fail    error
	changed func()
}

func (n *node) keeper(repaired func(int)) Config {
	return Config{
		Pods: func() []endpoints.Endpoint {
			n.mu.Lock()
			defer n.mu.Unlock()
			return slices.Clone(n.pods)
		},
		Repaired: repaired,
		Logger:   slog.New(slog.DiscardHandler),
		list: func(context.Context) (*byFamily, error) {
			n.mu.Lock()
			defer n.mu.Unlock()
			if len(n.there) == 0 {
				return new(byFamily), nil
			}
			have := with()
			for id := range n.there {
				have.four.ports[id] = 1
			}
			return have, nil
		},
		run: n.run,
		watch: func(ctx context.Context, _ string, changed func()) error {
			n.mu.Lock()
			n.changed = changed
			n.mu.Unlock()
			<-ctx.Done()
			return nil
		},
	}
}

func (n *node) run(_ context.Context, command string, e *endpoints.Endpoint) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ran = append(n.ran, command+" "+e.ContainerID)
	if n.fail != nil {
		return n.fail
	}
	if delete(n.there, e.ContainerID); command == "ADD" {
		n.there[e.ContainerID] = true
	}
	n.changed()
	return nil
}

// change changes the node as another program does.
func (n *node) change(do func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	do()
	n.changed()
}

// commands returns what was run since the last call, in alphabetical order.
func (n *node) commands() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	slices.Sort(n.ran)
	text := strings.Join(n.ran, ", ")
	n.ran = nil
	return text
}

// begun starts a keeper on a node with two pods with their rules.
func begun(t *testing.T, repaired func(int)) *node {
	t.Helper()
	n := &node{
		pods:  []endpoints.Endpoint{pod("a"), pod("b")},
		there: map[string]bool{"a": true, "b": true},
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); Keep(ctx, n.keeper(repaired)) }()
	t.Cleanup(func() { stop(); <-done })
	synctest.Wait()
	return n
}

func (n *node) expect(t *testing.T, what, want string) {
	t.Helper()
	synctest.Wait()
	if got := n.commands(); got != want {
		t.Errorf("%s: portmap ran for %q, want %q", what, got, want)
	}
}

func TestKeep_RestoresWithinASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		repaired := 0
		n := begun(t, func(pods int) { repaired += pods })
		time.Sleep(10 * interval)
		n.expect(t, "at rest", "")
		n.change(func() { clear(n.there) })
		time.Sleep(500 * time.Millisecond)
		n.expect(t, "half a second after a flush", "ADD a, ADD b")
		if repaired != 2 {
			t.Errorf("%d repairs reported", repaired)
		}
		time.Sleep(10 * interval)
		n.expect(t, "at rest again", "")
	})
}

// The runtime runs portmap's DEL before it ends the pod, and ADD after the pod is attached.
func TestKeep_LeavesTheRuntimesCommandsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := begun(t, nil)
		n.change(func() { delete(n.there, "a") })
		time.Sleep(settle + confirm/2)
		n.change(func() { n.pods = n.pods[1:] })
		time.Sleep(interval)
		n.change(func() { n.pods = append(n.pods, pod("c")) })
		time.Sleep(interval)
		n.change(func() { n.there["c"] = true })
		time.Sleep(interval)
		n.expect(t, "DEL of a, ADD of c", "")
	})
}

// A pod that ends between its DEL and the repetition leaves no rules.
func TestKeep_PodThatEndsDuringTheRepetition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := begun(t, nil)
		n.change(func() { clear(n.there) })
		time.Sleep(500 * time.Millisecond)
		n.expect(t, "after a flush", "ADD a, ADD b")
		n.change(func() { n.pods = n.pods[1:] })
		time.Sleep(endInterval)
		n.expect(t, "after the end of a", "DEL a")
		time.Sleep(interval)
		n.expect(t, "later", "")
	})
}

// Two programs that write the rules in turns do not do so without a pause.
func TestKeep_BoundsTheRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := begun(t, nil)
		for range 600 {
			n.change(func() { clear(n.there) })
			time.Sleep(100 * time.Millisecond)
		}
		synctest.Wait()
		if ran := len(n.ran); ran < 4 || ran > 20 {
			t.Errorf("portmap ran %d times in a minute in which its rules were removed 600 times", ran)
		}
	})
}

func TestKeep_TriesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := begun(t, nil)
		n.change(func() { n.fail = errors.New("no nft"); clear(n.there) })
		time.Sleep(minGap)
		synctest.Wait()
		if len(n.commands()) == 0 {
			t.Fatal("portmap did not run")
		}
		n.change(func() { n.fail = nil })
		time.Sleep(4 * minGap)
		synctest.Wait()
		if got := n.commands(); !strings.HasSuffix(got, "ADD b") || fmt.Sprint(n.there) != "map[a:true b:true]" {
			t.Errorf("after the failure portmap ran for %q; rules: %v", got, n.there)
		}
	})
}
