package fleet_test

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"testing"

	"github.com/flowkeep/flowkeep/systemtests/fleet"
)

// theFleet is the one of a run; the first test that asks for it starts it.
var theFleet struct {
	sync.Once
	*fleet.Fleet
	err error
}

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, syscall.SIGTERM)
	ended := make(chan struct{})
	go func() {
		select {
		case <-interrupted:
			end()
			os.Exit(130)
		case <-ended:
		}
	}()
	defer end()
	defer close(ended)
	return m.Run()
}

func end() {
	theFleet.Do(func() {})
	if theFleet.Fleet != nil {
		if err := theFleet.End(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
}

func withFleet(t *testing.T) *fleet.Fleet {
	t.Helper()
	theFleet.Do(func() {
		theFleet.Fleet, theFleet.err = fleet.Start(context.Background(), fleet.Options{Progress: func(format string, args ...any) {
			t.Logf(format, args...)
		}})
	})
	if theFleet.err != nil {
		t.Fatal(theFleet.err)
	}
	return theFleet.Fleet
}
