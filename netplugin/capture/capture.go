// Package capture shows the packets of a node: by packet sockets on the node's end of pods' links, or on all
// interfaces, outside of Open vSwitch, so that no verdict and no flow changes because of a capture. Its cost is
// bounded: the kernel filters, a limit that all captures of the node share delays reading, and the kernel drops and
// counts packets that are not read in time.
package capture

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/internal/frames/filter"
)

// Limits of a node.
const (
	mostCaptures     = 4
	packetsPerSecond = 20_000
	bytesPerSecond   = 4 << 20
)

// Limits of one message: packets of at most batchBytes (and one more), of no longer than batchTime.
const (
	batchBytes = 64 << 10
	batchTime  = 100 * time.Millisecond
	heartbeat  = time.Second
)

// Captures are those of a node. Safe for concurrent use.
type Captures struct {
	limit   *Limit
	looking chan struct{} // a place each

	mu   sync.Mutex
	pods map[string]struct{} // that are captured
}

// New makes what holds a node's captures.
func New() *Captures {
	return &Captures{limit: NewLimit(packetsPerSecond, bytesPerSecond), looking: make(chan struct{}, mostLooking), pods: map[string]struct{}{}}
}

// place reserves a place for the one capture of a pod.
func (c *Captures) place(pod string) (leave func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, there := c.pods[pod]; there {
		return nil, fmt.Errorf("pod %s is being captured already: one at a time", pod)
	}
	if len(c.pods) >= mostCaptures {
		return nil, fmt.Errorf("%d pods of the node are captured already: ask again later", mostCaptures)
	}
	c.pods[pod] = struct{}{}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.pods, pod)
	}, nil
}

// Run captures on an interface and sends what it sees, until the spec's count or duration, until the interface is gone, ctx ends or
// send fails. out names what is captured.
func (c *Captures) Run(ctx context.Context, spec *inspect.CaptureSpec, out inspect.Captured, send func(*inspect.Captured) error) error {
	snap, duration, err := bounds(spec)
	if err != nil {
		return err
	}
	f, err := filter.Parse(spec.Filter)
	if err != nil {
		return err
	}
	program, err := f.Compile(snap)
	if err != nil {
		return err
	}
	leave, err := c.place(out.Pod)
	if err != nil {
		return err
	}
	defer leave()
	index, err := indexOf(out.Interface)
	if err != nil {
		return err
	}
	socket, err := Open(index, snap, program)
	if err != nil {
		return err
	}
	defer socket.Close()
	defer context.AfterFunc(ctx, func() { socket.Close() })()
	r := &running{socket: socket, limit: c.limit, count: spec.Count, over: time.Now().Add(duration), out: out, send: send}
	return r.run(ctx)
}

func bounds(spec *inspect.CaptureSpec) (snap int, duration time.Duration, err error) {
	switch {
	case spec.Snap < 0 || spec.Snap > inspect.MaxSnap:
		return 0, 0, fmt.Errorf("%d bytes of a packet: from 1 to %d, or 0 for all", spec.Snap, inspect.MaxSnap)
	case spec.Duration < 0:
		return 0, 0, fmt.Errorf("a capture of %v", spec.Duration)
	}
	snap, duration = spec.Snap, min(spec.Duration, inspect.LongestCapture)
	if snap == 0 {
		snap = inspect.MaxSnap
	}
	if duration == 0 {
		duration = inspect.LongestCapture
	}
	return snap, duration, nil
}

// running is a capture.
type running struct {
	socket *Socket
	limit  *Limit
	count  uint64 // 0: no end
	over   time.Time
	out    inspect.Captured // what is sent next
	size   int              // of its frames' data
	send   func(*inspect.Captured) error
}

func (r *running) run(ctx context.Context) error {
	if err := r.flush(""); err != nil { // it has begun
		return err
	}
	flushAt := time.Now().Add(heartbeat)
	for {
		got, err := r.socket.Read(earlier(flushAt, r.over))
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, os.ErrDeadlineExceeded):
			if !time.Now().Before(r.over) {
				return r.flush("the time is over")
			}
		case errors.Is(err, ErrGone):
			return r.flush("the pod's link is gone")
		case err != nil:
			return err
		default:
			if len(r.out.Frames) == 0 {
				flushAt = earlier(flushAt, time.Now().Add(batchTime))
			}
			r.add(&got)
			if r.count > 0 && r.out.Packets >= r.count {
				return r.flush("as many packets as were wanted")
			}
			r.out.Limited += r.limit.Take(ctx, len(got.Data))
		}
		if !time.Now().Before(flushAt) || r.size >= batchBytes {
			if err := r.flush(""); err != nil {
				return err
			}
			flushAt = time.Now().Add(heartbeat)
		}
	}
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func (r *running) add(got *Received) {
	r.out.Packets++
	r.out.Frames = append(r.out.Frames, inspect.Frame{Time: got.Time, FromPod: !got.Sent, Length: got.Length, Data: append([]byte{}, got.Data...)})
	r.size += len(got.Data)
}

// flush sends what there is.
func (r *running) flush(end string) error {
	r.out.Dropped, r.out.End = r.socket.Dropped(), end
	err := r.send(&r.out)
	r.out.Frames, r.size = nil, 0
	return err
}
