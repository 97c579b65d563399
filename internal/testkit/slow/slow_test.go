package slow

import (
	"testing"
	"time"
)

func TestStretch(t *testing.T) {
	for value, want := range map[string]time.Duration{
		"":     time.Second,
		"1":    time.Second,
		"3":    3 * time.Second,
		"12":   12 * time.Second,
		"2.5":  time.Second,
		"-2":   time.Second,
		"+Inf": time.Second,
		"two":  time.Second,
	} {
		t.Setenv("FLOWKEEP_SLOW", value)
		if got := Stretch(time.Second); got != want {
			t.Errorf("FLOWKEEP_SLOW=%q: %v, want %v", value, got, want)
		}
	}
}

func TestWindow(t *testing.T) {
	t.Setenv("FLOWKEEP_SLOW", "3")
	for vm, want := range map[string]time.Duration{"": time.Second, "1": 3 * time.Second} {
		t.Setenv("FLOWKEEP_IN_VM", vm)
		if got := Window(time.Second); got != want {
			t.Errorf("FLOWKEEP_IN_VM=%q: %v, want %v", vm, got, want)
		}
	}
}
