package controller

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flowkeep/flowkeep/fleet"
)

// What many clusters answer one after the other is told few times, but not much later than the first of them answered; and the last thing that
// is told is told after all.
func TestStatus_ManyAnswersFewWrites(t *testing.T) {
	for _, test := range []struct {
		name    string
		answers int
		every   time.Duration
		most    int
		within  time.Duration
	}{
		{"one answer", 1, 0, 1, tellAfter},
		{"all at once", 50, 0, 1, tellAfter},
		{"one soon after the other", 50, 10 * time.Millisecond, 1, tellWithin},
		{"for five seconds", 50, 100 * time.Millisecond, 3, tellWithin},
		{"one long after the other", 5, time.Second, 5, tellAfter},
	} {
		synctest.Test(t, func(t *testing.T) {
			q := newQueue(tellAfter, tellWithin)
			s := fleet.GatewaySource(fleet.Name{Namespace: "shop", Name: "web"})
			ctx, stop := context.WithCancel(t.Context())
			var first, last time.Time // of the answers that are not told
			looks := 0
			done := make(chan struct{})
			go func() {
				defer close(done)
				q.run(ctx, 2, func(_ context.Context, _ fleet.Source, begun time.Time) bool {
					looks++
					if waited := time.Since(first); waited > test.within || !begun.Equal(first) {
						t.Errorf("%s: it is told %v after the first answer, which came at %v and not %v", test.name, waited, first, begun)
					}
					first, last = time.Time{}, time.Time{}
					return true
				})
			}()
			for range test.answers {
				last = time.Now()
				if first.IsZero() {
					first = last
				}
				q.mark(s)
				time.Sleep(test.every)
				synctest.Wait()
			}
			time.Sleep(tellWithin)
			synctest.Wait()
			if looks == 0 || looks > test.most || !last.IsZero() {
				t.Errorf("%s: told %d times, the last answer too: %v", test.name, looks, last.IsZero())
			}
			stop()
			<-done
		})
	}
}

// What is pressing is looked at at once, with what has been marked until then, which leads to no look of its own later; and what did not come to its
// end is tried again without news.
func TestWhatIsPressingWaitsForNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(answeredAfter, answeredWithin)
		s := fleet.GatewaySource(fleet.Name{Namespace: "shop", Name: "web"})
		ctx, stop := context.WithCancel(t.Context())
		begin := time.Now()
		var mu sync.Mutex
		var looks []time.Duration
		done := make(chan struct{})
		go func() {
			defer close(done)
			q.run(ctx, 2, func(context.Context, fleet.Source, time.Time) bool {
				mu.Lock()
				defer mu.Unlock()
				looks = append(looks, time.Since(begin))
				return len(looks) != 2
			})
		}()
		expect := func(when string, want ...time.Duration) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(looks, want) {
				t.Errorf("%s: looked at after %v and not %v", when, looks, want)
			}
		}
		q.mark(s)
		expect("marked")
		q.press(s)
		expect("pressed", 0)
		time.Sleep(time.Second)
		expect("the mark led to nothing more", 0)
		q.mark(s)
		time.Sleep(answeredAfter)
		expect("marked again", 0, time.Second+answeredAfter)
		time.Sleep(firstRetry)
		expect("tried again", 0, time.Second+answeredAfter, time.Second+answeredAfter+firstRetry)
		time.Sleep(time.Minute)
		expect("left alone", 0, time.Second+answeredAfter, time.Second+answeredAfter+firstRetry)
		stop()
		<-done
	})
}

func TestQueue_OutstandingCountsDelaysAndRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(tellAfter, tellWithin)
		ctx, stop := context.WithCancel(t.Context())
		results, done := make(chan bool), make(chan struct{})
		go func() {
			defer close(done)
			q.run(ctx, 1, func(_ context.Context, s fleet.Source, _ time.Time) bool {
				q.looked(s)
				return <-results
			})
		}()
		expect := func(when string, want int) {
			t.Helper()
			synctest.Wait()
			if have := q.outstanding(); have != want {
				t.Errorf("%s: %d are outstanding, want %d", when, have, want)
			}
		}
		s := fleet.GatewaySource(fleet.Name{Namespace: "shop", Name: "web"})
		expect("at first", 0)
		q.mark(s)
		expect("while it is delayed", 1)
		time.Sleep(tellAfter)
		expect("while it is processed", 1)
		q.mark(s)
		expect("with later news", 1)
		results <- false
		expect("while a retry is delayed", 1)
		time.Sleep(tellAfter)
		expect("while it is processed again", 1)
		results <- true
		expect("when it is processed", 0)
		stop()
		<-done
	})
}
