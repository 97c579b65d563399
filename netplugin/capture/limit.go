package capture

import (
	"context"
	"sync"
	"time"
)

// Limit bounds what all captures of a node take, in packets and bytes a second, so that no pod's flood costs the node more than that:
// what is not read, the kernel drops. Safe for concurrent use.
type Limit struct {
	packets, bytes float64 // a second

	mu sync.Mutex
	// free is when what was taken so far has been paid for.
	free time.Time
}

// burst is how much may be taken at once after a rest.
const burst = time.Second / 4

// NewLimit makes a limit.
func NewLimit(packets, bytes int) *Limit {
	return &Limit{packets: float64(packets), bytes: float64(bytes)}
}

// Take takes a packet and waits until the next may be taken; it returns for how long it waited.
func (l *Limit) Take(ctx context.Context, bytes int) time.Duration {
	wait := l.charge(time.Now(), bytes)
	if wait <= 0 {
		return 0
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	return wait
}

// charge counts a packet, and returns how long to wait. Waits that are too short for a timer are added to later ones.
func (l *Limit) charge(now time.Time, bytes int) time.Duration {
	cost := time.Duration(max(1/l.packets, float64(bytes)/l.bytes) * float64(time.Second))
	l.mu.Lock()
	defer l.mu.Unlock()
	if earliest := now.Add(-burst); l.free.Before(earliest) {
		l.free = earliest
	}
	l.free = l.free.Add(cost)
	const shortest = 5 * time.Millisecond
	if wait := l.free.Sub(now); wait >= shortest {
		return wait
	}
	return 0
}
