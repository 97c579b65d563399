package cluster

import (
	"context"
	"errors"
	"slices"
	"testing"
)

func TestBootTwice(t *testing.T) {
	failed := errors.New("failed")
	for _, c := range []struct {
		name      string
		boots     []error // results of boot, in turn
		down      error
		cancelled bool
		calls     []string
		ok        bool
	}{
		{name: "boots", boots: []error{nil}, calls: []string{"boot"}, ok: true},
		{name: "boots at the second attempt", boots: []error{failed, nil}, calls: []string{"boot", "down", "boot"}, ok: true},
		{name: "never boots", boots: []error{failed, failed}, calls: []string{"boot", "down", "boot"}},
		{name: "is interrupted", boots: []error{failed}, cancelled: true, calls: []string{"boot"}},
		{name: "is not taken down", boots: []error{failed}, down: failed, calls: []string{"boot", "down"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if c.cancelled {
				cancel()
			}
			var calls []string
			err := BootTwice(ctx, "the test's cluster", func() error {
				calls = append(calls, "boot")
				return c.boots[(len(calls)-1)/2]
			}, func() error {
				calls = append(calls, "down")
				return c.down
			})
			if !slices.Equal(calls, c.calls) || (err == nil) != c.ok {
				t.Errorf("calls %v, error %v; want %v, success %v", calls, err, c.calls, c.ok)
			}
		})
	}
}

func TestLastLine(t *testing.T) {
	for text, want := range map[string]string{
		"":                     "",
		"one":                  "one",
		"one\ntwo \n":          "two",
		"one\nthe last\n\n \n": "the last",
	} {
		var l lastLine
		for i := range len(text) { // in the smallest pieces
			if n, err := l.Write([]byte{text[i]}); n != 1 || err != nil {
				t.Fatal(n, err)
			}
		}
		if got := l.String(); got != want {
			t.Errorf("of %q: %q, want %q", text, got, want)
		}
	}
}
