package apiserver

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/flowkeep/flowkeep/api/inspect"
)

// TestAnAnswerThatBreaksOff is none of netmaster's, and says what to do; who has given up is told that alone.
func TestAnAnswerThatBreaksOff(t *testing.T) {
	given := 0
	answer := func() io.Reader {
		return io.MultiReader(strings.NewReader(`{"type": "ANSWER", "object": {}}`+"\n"), iotest.ErrReader(errors.New("stream error")))
	}
	each := func(*inspect.Event) error { given++; return nil }
	var gone *Unreachable
	if err := events(t.Context(), answer(), each); !errors.As(err, &gone) || !strings.Contains(err.Error(), "ask again (stream error)") || given != 1 {
		t.Errorf("%v, after %d", err, given)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := events(over, answer(), each); errors.As(err, &gone) || !strings.Contains(err.Error(), "canceled") {
		t.Errorf("%v", err)
	}
}
