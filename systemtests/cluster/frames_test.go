package cluster

import (
	"bufio"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestObserve_Time: denied packets are observed for the whole window, and allowed ones are waited for.
func TestObserve_Time(t *testing.T) {
	const window, never = 300 * time.Millisecond, time.Hour
	for name, c := range map[string]struct {
		slowness    string
		comes       time.Duration // the allowed packet
		least, most time.Duration
	}{
		"at once":                     {"1", 0, window, window},
		"after the window":            {"1", 2 * time.Second, 2 * time.Second, 2200 * time.Millisecond},
		"never":                       {"1", never, window + framesLimit, window + framesLimit},
		"slowness 3, after the limit": {"3", 12 * time.Second, 12 * time.Second, 12200 * time.Millisecond},
		"slowness 3, never":           {"3", never, window + 3*framesLimit, window + 3*framesLimit},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("FLOWKEEP_SLOW", c.slowness)
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				Observe(t.Context(), window, func() bool { return time.Since(began) >= c.comes })
				if took := time.Since(began); took < c.least || took > c.most {
					t.Errorf("took %v, want %v to %v", took, c.least, c.most)
				}
			})
		})
	}
}

func TestHearing_Frames(t *testing.T) {
	h := new(Hearing)
	if err := h.read(bufio.NewReader(strings.NewReader("0a0b\n0c\n"))); err != nil {
		t.Fatal(err)
	}
	if got := h.Frames(); len(got) != 2 || string(got[0]) != "\n\v" || string(got[1]) != "\f" {
		t.Errorf("%x", got)
	}
	for name, text := range map[string]string{"no digits": "xyz\n", "a part of a line": "0a0b\n0c"} {
		if err := new(Hearing).read(bufio.NewReader(strings.NewReader(text))); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
