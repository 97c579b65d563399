package inspect

import (
	"testing"
	"time"
)

func TestParseAt(t *testing.T) {
	for text, want := range map[string]At{"12": {Revision: 12}, "5m": {Ago: 5 * time.Minute}, "-1h30m": {Ago: 90 * time.Minute}} {
		if got, err := ParseAt(text); err != nil || *got != want {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
	if got, err := ParseAt("2026-01-31T12:00:00+01:00"); err != nil || got.Time == nil || got.Time.UTC().Hour() != 11 {
		t.Errorf("%+v, %v", got, err)
	}
	for _, text := range []string{"", "0", "-5", "--5m", "0s", "yesterday", "5", "99999999999999999999", "2026-01-31"} {
		if got, err := ParseAt(text); err == nil && text != "5" {
			t.Errorf("%q: %+v", text, got)
		}
	}
}
