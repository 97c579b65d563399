package slow

import (
	"testing"
	"time"
)

func TestStretch(t *testing.T) {
	for value, want := range map[string]time.Duration{
		"":    time.Second,
		"1":   time.Second,
		"3":   3 * time.Second,
		"2.5": 2500 * time.Millisecond,
		"0.5": time.Second,
		"-2":  time.Second,
		"NaN": time.Second,
		"two": time.Second,
	} {
		t.Setenv("FLOWKEEP_SLOW", value)
		if got := Stretch(time.Second); got != want {
			t.Errorf("FLOWKEEP_SLOW=%q: %v, want %v", value, got, want)
		}
	}
}
