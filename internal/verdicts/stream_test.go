package verdicts

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/policydb/policy/policytest"
)

// followed asks once the node is connected.
func (m *master) followed(ctx context.Context, node, question string, each func([]byte) error) error {
	for {
		err := m.feed.QueryStream(ctx, node, []byte(question), each)
		if err == nil || !strings.Contains(err.Error(), "is not connected") {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func TestStreamsOfAnswers(t *testing.T) {
	m := startMaster(t)
	m.feed.Ready()
	node, h := policytest.Nodes[0], newHolder()
	stop := m.join(node, node, h)
	defer stop()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	came := 0
	count := func([]byte) error { came++; return nil }
	if err := m.followed(ctx, node, "few", count); err != nil || came != 3 {
		t.Errorf("%d answers, %v", came, err)
	}
	came = 0
	if err := m.followed(ctx, node, "wrong", count); err == nil || err.Error() != "something is wrong" || came != 3 {
		t.Errorf("%d answers, %v", came, err)
	}
	came = 0
	enough := errors.New("enough")
	err := m.followed(ctx, node, "many", func(b []byte) error {
		if came++; string(b) != "many" {
			t.Errorf("%q", b)
		}
		if came == 1000 {
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) {
		t.Errorf("%d answers, %v", came, err)
	}
	eventually(t, "the node to stop", func() bool { return h.streams.Load() == 0 })
}

// Who takes nothing holds up the stream alone: the node sends no more than it was granted, and its other questions are answered.
func TestASlowAskerHoldsNothingElseUp(t *testing.T) {
	m := startMaster(t)
	m.feed.Ready()
	node, h := policytest.Nodes[0], newHolder()
	stop := m.join(node, node, h)
	defer stop()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	slow, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- m.followed(ctx, node, strings.Repeat("x", 10_000), func([]byte) error { <-slow; return errors.New("gone") })
	}()
	eventually(t, "the stream", func() bool { return h.told.Load() > 0 })
	if _, err := m.feed.Query(ctx, node, []byte("q")); err != nil {
		t.Errorf("another question: %v", err)
	}
	if told := h.told.Load(); told > 16 {
		t.Errorf("%d answers were sent to somebody who takes none", told)
	}
	close(slow)
	if err := <-done; err == nil || err.Error() != "gone" {
		t.Error(err)
	}
	eventually(t, "the node to stop", func() bool { return h.streams.Load() == 0 })
}

// A stream ends at both ends with the asker's time, and with the connection.
func TestStreamsEnd(t *testing.T) {
	m := startMaster(t)
	m.feed.Ready()
	node, h := policytest.Nodes[0], newHolder()
	stop := m.join(node, node, h)
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	short, end := context.WithCancel(ctx)
	if err := m.followed(short, node, "many", func([]byte) error { end(); return nil }); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	eventually(t, "the node to stop", func() bool { return h.streams.Load() == 0 })
	stopped := false
	err := m.followed(ctx, node, "many", func([]byte) error {
		if !stopped {
			stopped = true
			go stop()
		}
		return nil
	})
	if err == nil || !strings.Contains(err.Error(), "connection ended") {
		t.Error(err)
	}
	eventually(t, "the node to stop", func() bool { return h.streams.Load() == 0 })
}

func TestNoMoreStreamsThanANodeTakes(t *testing.T) {
	m := startMaster(t)
	m.feed.Ready()
	node, h := policytest.Nodes[0], newHolder()
	stop := m.join(node, node, h)
	defer stop()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error, 17)
	for range 17 {
		go func() {
			ended <- m.followed(ctx, node, "many", func([]byte) error { <-ctx.Done(); return ctx.Err() })
		}()
	}
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "16") {
		t.Error(err)
	}
	cancel()
	for range 16 {
		<-ended
	}
	eventually(t, "the node to stop", func() bool { return h.streams.Load() == 0 })
}
