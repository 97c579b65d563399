package appctl

import (
	"strings"
	"testing"
)

const shown = `system@ovs-system:
  lookups: hit:5 missed:2529 lost:2529
  flows: 0
  masks: hit:0 total:0 hit/pkt:0.00
  cache: hit:0 hit-rate:0.00%
  caches:
    masks-cache: size:256
  port 0: ovs-system (internal)
  port 1: fk0 (internal)
`

func TestParseLookups(t *testing.T) {
	got, err := ParseLookups(shown)
	if want := (Lookups{5, 2529, 2529}); err != nil || got != want {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	for name, text := range map[string]string{"nothing": "", "two datapaths": shown + shown, "words": "  lookups: hit:a missed:1 lost:0\n",
		"too large": "  lookups: hit:0 missed:99999999999999999999 lost:0\n", "a port's name": "  port 1: lookups: hit:1 missed:1 lost:1 (internal)\n"} {
		if got, err := ParseLookups(text); err == nil {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestLookupsSince(t *testing.T) {
	before := Lookups{10, 5, 1}
	if got, want := (Lookups{11, 8, 4}).Since(before), (Lookups{1, 3, 3}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got, want := (Lookups{1, 2, 0}).Since(before), (Lookups{1, 2, 0}); got != want {
		t.Errorf("of a new datapath: %+v, want %+v", got, want)
	}
}

func FuzzParseLookups(f *testing.F) {
	f.Add(shown)
	f.Fuzz(func(t *testing.T, text string) {
		if l, err := ParseLookups(text); err != nil && l != (Lookups{}) {
			t.Errorf("%+v with %v", l, err)
		} else if err == nil && !strings.Contains(text, "lookups: hit:") {
			t.Errorf("%+v out of %q", l, text)
		}
	})
}
