package watch

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// history is what an API server did to a few objects, an event a version.
type history struct {
	events []event
	at     []map[ref]uint64 // the objects, by version
}

type event struct {
	object ref
	gone   bool
}

func randomHistory(r *rand.Rand) *history {
	h := &history{at: []map[ref]uint64{{}}}
	now := map[ref]uint64{}
	for range r.IntN(30) {
		e := event{object: ref{"ns", strconv.Itoa(r.IntN(4))}}
		if _, there := now[e.object]; there {
			e.gone = r.IntN(2) == 0
		}
		h.events = append(h.events, e)
		if now[e.object] = uint64(len(h.events)); e.gone {
			delete(now, e.object)
		}
		h.at = append(h.at, maps.Clone(now))
	}
	return h
}

// TestBehind: whoever follows the events one by one is behind a list exactly as long as he has not seen all events up to it that count
// for what is there.
func TestBehind(t *testing.T) {
	for seed := range uint64(5000) {
		r := rand.New(rand.NewPCG(seed, 1))
		h := randomHistory(r)
		version := r.IntN(len(h.at))
		l := &listed{objects: h.at[version], version: uint64(version)}
		s := &seen{held: map[ref]uint64{}, gone: map[ref]uint64{}}
		for i := 0; i <= len(h.events); i++ {
			// what is held differs from the list in an object that no later event than the list's concerns
			want := false
			later := map[ref]bool{}
			for _, e := range h.events[min(version, i):max(version, i)] {
				later[e.object] = true
			}
			if i < version {
				for o := range later {
					want = want || h.at[i][o] != h.at[version][o]
				}
			}
			if got := s.behind(l) != (lack{}); got != want {
				t.Fatalf("seed %d: after %d of %d events, list of version %d: behind is %v (%s)", seed, i, len(h.events), version, got, s.behind(l))
			}
			if i < len(h.events) {
				if e := h.events[i]; e.gone {
					delete(s.held, e.object)
					s.gone[e.object] = uint64(i + 1)
				} else {
					s.held[e.object] = uint64(i + 1)
					delete(s.gone, e.object)
				}
			}
		}
	}
}

// TestCatchUp: a policy that was watched late is waited for; one that never comes is an error.
func TestCatchUp(t *testing.T) {
	client := fake.NewClientset(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a", ResourceVersion: "5"}})
	w, err := New(client, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	w.Keep()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); w.Run(ctx) }()
	defer func() { cancel(); <-done }()
	<-w.Wake() // all was listed once
	awaitWatches(t, client)
	asked := make(chan struct{}, 100)
	list := func(_ context.Context, resource string) (*listed, error) {
		l := &listed{version: 7, objects: map[ref]uint64{}}
		if resource == "pods" {
			l.objects[ref{"ns", "a"}], l.objects[ref{"ns", "b"}] = 5, 7
			asked <- struct{}{}
		}
		return l, nil
	}
	caught := make(chan error, 1)
	go func() { caught <- w.CatchUp(ctx, list) }()
	<-asked
	select {
	case err := <-caught:
		t.Fatalf("it did not wait for what had not come: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	if _, err := client.CoreV1().Pods("ns").Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "b", ResourceVersion: "7"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := <-caught; err != nil {
		t.Fatal(err)
	}
	if b := w.Take(); b.Endpoints["ns/b"] == nil {
		t.Error("it was caught up with, and is not given out")
	}
	blip := 3
	blips := func(ctx context.Context, resource string) (*listed, error) {
		if resource == "pods" && blip > 0 {
			blip--
			return nil, errors.New("no")
		}
		return list(ctx, resource)
	}
	if err := w.CatchUp(ctx, blips); err != nil {
		t.Errorf("the second time, after the API server was away: %v", err)
	}
	for _, never := range []Lister{
		func(context.Context, string) (*listed, error) { return nil, errors.New("no") },
		func(context.Context, string) (*listed, error) {
			return &listed{version: 9, objects: map[ref]uint64{{"ns", "c"}: 9}}, nil
		},
	} {
		short, end := context.WithTimeout(ctx, 20*time.Millisecond)
		defer end()
		if err := w.CatchUp(short, never); !errors.Is(err, ErrBehind) {
			t.Errorf("what never comes was caught up with: %v", err)
		}
	}
	if _, err := listOf(&metav1.PartialObjectMetadataList{ListMeta: metav1.ListMeta{ResourceVersion: "x"}}); !errors.Is(err, errVersions) {
		t.Errorf("a version that is no number: %v", err)
	}
}
