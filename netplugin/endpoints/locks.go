package endpoints

import (
	"context"
	"fmt"
	"sync"
)

// locks is a lock for each container: of two interfaces of a sandbox one is refused. The zero value is ready for use.
type locks struct {
	mu   sync.Mutex
	busy map[string]chan struct{} // closed when the request has ended
}

// lock waits until no other request works on the container.
func (l *locks) lock(ctx context.Context, container string) (unlock func(), err error) {
	for {
		unlock, wait := l.lockOr(container)
		if unlock != nil {
			return unlock, nil
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, fmt.Errorf("another request for container %s is in progress: %w", container, ctx.Err())
		}
	}
}

// lockOr locks the container, or returns a channel that is closed when the request that works on it has ended.
func (l *locks) lockOr(container string) (unlock func(), wait <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if wait, busy := l.busy[container]; busy {
		return nil, wait
	}
	if l.busy == nil {
		l.busy = map[string]chan struct{}{}
	}
	done := make(chan struct{})
	l.busy[container] = done
	return func() {
		l.mu.Lock()
		delete(l.busy, container)
		l.mu.Unlock()
		close(done)
	}, nil
}
