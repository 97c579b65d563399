package hostnet

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// TestReceive_Fails: while messages cannot be received, each second is reported as a change, and the error is logged
// once.
func TestReceive_Fails(t *testing.T) {
	s, err := subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK)
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second+time.Millisecond)
		defer cancel()
		changes, logged := 0, &bytes.Buffer{}
		receive(ctx, s, nil, nil, func() { changes++ }, slog.New(slog.NewTextHandler(logged, nil)))
		if changes < 10 || changes > 11 {
			t.Errorf("%d changes reported in ten seconds, want one a second", changes)
		}
		if n := strings.Count(logged.String(), "could not watch"); n != 1 {
			t.Errorf("logged %d times:\n%s", n, logged)
		}
	})
}
