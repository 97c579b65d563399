package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

const (
	// firstWriteRetry and maxWriteRetry are the pauses after failed writes; each is twice the one before.
	firstWriteRetry = time.Second
	maxWriteRetry   = 30 * time.Second
	// maxQueued is how many changes may wait for the disk. Beyond that the whole rule set is written.
	maxQueued = 1024
	// closeTimeout is how long the end of the process waits for the disk.
	closeTimeout = 5 * time.Second
)

// ruleFile is the file that a saver writes.
type ruleFile interface {
	save(changes []change) error
}

// saver writes the rule set in a goroutine of its own, so that neither the owner nor the switch waits for a disk
// (docs/decisions/027-rules-on-disk.md). The staleMark exists from before a change is in the switch until it is on disk.
// Methods are safe for concurrent use, but add and snapshotTaken are the owner's.
type saver struct {
	file ruleFile
	// snapshot returns the whole rule set and the number of the last change in it.
	snapshot func(context.Context) (change, uint64, error)
	writes   *writes
	onError  func() // called after each failed write
	wake     chan struct{}
	stop     context.CancelFunc
	stopped  chan struct{}

	mu      sync.Mutex
	mark    staleMark
	markErr error
	trusted bool // rules.db is good for a restart once it has all that was added
	queue   []change
	whole   bool // the queue is not enough: the whole rule set is to be written
	added   uint64
	saved   uint64        // changes up to this number are on disk
	failed  error         // of the last write
	began   time.Time     // of the write under way; zero: none
	idle    chan struct{} // closed when all that was added is on disk; nil: it is
}

func (s *saver) start() {
	ctx, cancel := context.WithCancel(context.Background())
	s.wake, s.stop, s.stopped = make(chan struct{}, 1), cancel, make(chan struct{})
	go s.run(ctx)
}

// add queues a change and returns its number. Trusted reports whether netmaster has sent the rules; m is for the mark.
func (s *saver) add(c change, trusted bool, m marked) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.markErr = s.mark.set(m)
	s.trusted = trusted
	s.added++
	if s.idle == nil {
		s.idle = make(chan struct{})
	}
	if s.queue = append(s.queue, c); s.whole || len(s.queue) > maxQueued {
		s.queue, s.whole = nil, true
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
	return s.added
}

// snapshotTaken returns the number of the last change; none waits any more.
func (s *saver) snapshotTaken() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue, s.whole = nil, false
	return s.added
}

func (s *saver) run(ctx context.Context) {
	defer close(s.stopped)
	retry := time.NewTimer(0)
	defer retry.Stop()
	pause := firstWriteRetry
	for {
		select {
		case <-s.wake:
			if s.isFailing() {
				continue // until retry
			}
		case <-retry.C:
		case <-ctx.Done():
			return
		}
		if s.flush(ctx) == nil {
			pause = firstWriteRetry
			continue
		}
		retry.Reset(pause)
		pause = min(2*pause, maxWriteRetry)
	}
}

func (s *saver) isFailing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed != nil
}

// flush writes what waits.
func (s *saver) flush(ctx context.Context) error {
	batch, number, whole := s.take()
	if whole {
		c, n, err := s.snapshot(ctx)
		if err != nil {
			return err // the process ends
		}
		batch, number = []change{c}, n
	}
	if len(batch) == 0 {
		return nil
	}
	s.begin()
	end := s.writes.begin("the rule set")
	err := s.file.save(batch)
	s.finish(number, err)
	end()
	return err
}

func (s *saver) take() (batch []change, number uint64, whole bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.whole {
		batch, s.queue = s.queue, nil
	}
	return batch, s.added, s.whole
}

func (s *saver) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.began = time.Now()
}

// finish notes the outcome of a write.
func (s *saver) finish(number uint64, err error) {
	if err != nil {
		s.onError()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.began, s.failed = time.Time{}, err
	if err != nil {
		s.queue, s.whole = nil, true
		return
	}
	if s.saved = number; s.saved < s.added {
		return
	}
	if s.idle != nil {
		close(s.idle)
		s.idle = nil
	}
	if s.markErr = nil; s.trusted {
		s.markErr = s.mark.remove()
	}
}

// progress returns the number up to which changes are on disk, and why later ones are not; nil while there is no reason to
// think that they will not be in a moment.
func (s *saver) progress() (saved uint64, problem error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.failed != nil:
		problem = fmt.Errorf("write the rule set to disk: %w; make room on the node's disk, or make it writable", s.failed)
	case !s.began.IsZero() && time.Since(s.began) >= maxWrite:
		problem = lateError("the rule set")
	}
	return s.saved, problem
}

// markProblem returns why the mark could not be set or removed.
func (s *saver) markProblem() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.markErr
}

// wait waits until all that was added is on disk.
func (s *saver) wait(ctx context.Context) error {
	s.mu.Lock()
	idle := s.idle
	s.mu.Unlock()
	if idle == nil {
		return nil
	}
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		_, problem := s.progress()
		return errors.Join(ctx.Err(), problem)
	}
}

// close waits for the disk, but not for one that fails or hangs: the mark stays then. It reports whether the file is free.
func (s *saver) close() (free bool) {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if _, problem := s.progress(); problem == nil {
		_ = s.wait(ctx)
	}
	s.stop()
	select {
	case <-s.stopped:
		return true
	case <-ctx.Done():
		return false
	}
}
