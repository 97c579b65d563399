package controller

import (
	"context"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/fleet"
	"k8s.io/client-go/util/workqueue"
)

// queue holds the keys to process, each once. Safe for concurrent use.
type queue struct {
	workqueue.TypedRateLimitingInterface[fleet.Source]
	// What is marked is looked at when nothing more has come for as long as quiet, but not later than most after the first.
	quiet, most time.Duration

	mu          sync.Mutex
	since, last map[fleet.Source]time.Time // when the first event came that has not led to what it should yet, and the last one
	// news has the marked sources that were not processed since, pressing those of them that wait no more, trying
	// those that are due for a retry without a change, and seeing those in process.
	news, pressing, trying, seeing map[fleet.Source]bool
	// busy has the keys that a worker processes, its writes included.
	busy map[fleet.Source]bool
}

// How long until something that failed is looked at again.
const (
	firstRetry   = 50 * time.Millisecond
	longestRetry = 30 * time.Second
)

func newQueue(quiet, most time.Duration) *queue {
	return &queue{
		quiet: quiet, most: most,
		TypedRateLimitingInterface: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[fleet.Source](firstRetry, longestRetry)),
		since:                      map[fleet.Source]time.Time{}, last: map[fleet.Source]time.Time{}, news: map[fleet.Source]bool{}, seeing: map[fleet.Source]bool{},
		pressing: map[fleet.Source]bool{}, trying: map[fleet.Source]bool{},
		busy: map[fleet.Source]bool{},
	}
}

// mark has it looked at: what is marked meanwhile comes with it.
func (q *queue) mark(s fleet.Source) {
	q.note(s, false)
	q.AddAfter(s, q.quiet)
}

// press has it looked at as soon as can be.
func (q *queue) press(s fleet.Source) {
	q.note(s, true)
	q.Add(s)
}

func (q *queue) note(s fleet.Source, pressing bool) {
	now := time.Now()
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, waits := q.since[s]; !waits {
		q.since[s] = now
	}
	q.last[s] = now
	q.news[s] = true
	if pressing {
		q.pressing[s] = true
	}
}

// due reports whether a key must be processed now. Otherwise wait is the time left of its delay, or 0 if all its events
// have been processed.
func (q *queue) due(s fleet.Source, now time.Time) (due bool, wait time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.pressing[s]:
		return true, 0
	case !q.news[s]:
		return q.trying[s], 0
	}
	wait = min(q.last[s].Add(q.quiet).Sub(now), q.since[s].Add(q.most).Sub(now))
	return wait <= 0, max(0, wait)
}

// begun is when the first event came that made what is looked at now dirty; later ones count for the next time.
func (q *queue) begun(s fleet.Source) time.Time {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.news[s] {
		delete(q.news, s)
		delete(q.last, s)
		q.seeing[s] = true
	}
	delete(q.pressing, s)
	delete(q.trying, s)
	q.busy[s] = true
	at, ok := q.since[s]
	if !ok {
		return time.Now()
	}
	delete(q.since, s)
	return at
}

// looked notes that a decision has taken in all news from before it began.
func (q *queue) looked(s fleet.Source) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.seeing, s)
}

// ended notes that a worker has processed a key.
func (q *queue) ended(s fleet.Source) {
	q.looked(s)
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.busy, s)
}

// outstanding returns how many keys are to be processed, delayed ones and retries included, or are being processed.
func (q *queue) outstanding() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	count := len(q.busy)
	for s := range q.since {
		if !q.busy[s] {
			count++
		}
	}
	return count
}

// hasNews reports whether there is news that has not been looked at.
func (q *queue) hasNews(s fleet.Source) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.news[s] || q.seeing[s]
}

// again queues a key for a retry, with the time of its first event.
func (q *queue) again(s fleet.Source, begun time.Time) {
	q.mu.Lock()
	if at, waits := q.since[s]; !waits || begun.Before(at) {
		q.since[s] = begun
	}
	q.trying[s] = true
	q.mu.Unlock()
	q.AddRateLimited(s)
}

// run has that many goroutines look at what is in the queue, until ctx ends. look returns false for a retry.
func (q *queue) run(ctx context.Context, workers int, look func(context.Context, fleet.Source, time.Time) bool) {
	stop := context.AfterFunc(ctx, q.ShutDown)
	defer stop()
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for {
				s, over := q.Get()
				if over {
					return
				}
				if due, wait := q.due(s, time.Now()); !due {
					if wait > 0 {
						q.AddAfter(s, wait)
					}
					q.Done(s)
					continue
				}
				begun := q.begun(s)
				if ctx.Err() == nil {
					if look(ctx, s, begun) {
						q.Forget(s)
					} else {
						q.again(s, begun)
					}
				}
				q.ended(s)
				q.Done(s)
			}
		})
	}
	all.Wait()
}
