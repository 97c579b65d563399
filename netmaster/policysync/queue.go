package policysync

import (
	"context"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/internal/fleet"
	"k8s.io/client-go/util/workqueue"
)

// queue holds what is to be looked at, each thing once. Safe for concurrent use.
type queue struct {
	workqueue.TypedRateLimitingInterface[fleet.Source]

	mu    sync.Mutex
	since map[fleet.Source]time.Time // when the first event came that has not led to what it should yet
	// news is what has been marked and not looked at since, seeing what is being looked at.
	news, seeing map[fleet.Source]bool
}

// How long until something that failed is looked at again.
const (
	firstRetry   = 50 * time.Millisecond
	longestRetry = 30 * time.Second
)

func newQueue() *queue {
	return &queue{
		TypedRateLimitingInterface: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[fleet.Source](firstRetry, longestRetry)),
		since:                      map[fleet.Source]time.Time{}, news: map[fleet.Source]bool{}, seeing: map[fleet.Source]bool{},
	}
}

// mark has it looked at, after a while if one is given: what is marked meanwhile comes with it.
func (q *queue) mark(s fleet.Source, after time.Duration) {
	q.mu.Lock()
	if _, waits := q.since[s]; !waits {
		q.since[s] = time.Now()
	}
	q.news[s] = true
	q.mu.Unlock()
	q.AddAfter(s, after)
}

// begun is when the first event came that made what is looked at now dirty; later ones count anew.
func (q *queue) begun(s fleet.Source) time.Time {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.news[s] {
		delete(q.news, s)
		q.seeing[s] = true
	}
	at, ok := q.since[s]
	if !ok {
		return time.Now()
	}
	delete(q.since, s)
	return at
}

// looked: it has been decided what is to be, with all the news that there was when that began.
func (q *queue) looked(s fleet.Source) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.seeing, s)
}

// hasNews tells whether there is news that has not been looked at.
func (q *queue) hasNews(s fleet.Source) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.news[s] || q.seeing[s]
}

// again puts what did not come to its end back, with the time when it began.
func (q *queue) again(s fleet.Source, begun time.Time) {
	q.mu.Lock()
	if at, waits := q.since[s]; !waits || begun.Before(at) {
		q.since[s] = begun
	}
	q.mu.Unlock()
	q.AddRateLimited(s)
}

// run has that many goroutines look at what is in the queue, until ctx ends. look says whether that came to its end.
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
				begun := q.begun(s)
				if ctx.Err() == nil {
					if look(ctx, s, begun) {
						q.Forget(s)
					} else {
						q.again(s, begun)
					}
				}
				q.looked(s)
				q.Done(s)
			}
		})
	}
	all.Wait()
}
