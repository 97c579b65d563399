package native

import (
	"maps"
	"testing"
)

// TestBondKeepsItsDelays: the kernel keeps delays as multiples of miimon, and refuses them without it.
func TestBondKeepsItsDelays(t *testing.T) {
	for name, c := range map[string]struct{ changed, want, written map[string]string }{
		"another miimon": {
			changed: map[string]string{"miimon": "50"},
			want:    map[string]string{"miimon": "50", "updelay": "200", "downdelay": "300"},
			written: map[string]string{"miimon": "50", "updelay": "200", "downdelay": "300"},
		},
		"no miimon": {
			changed: map[string]string{"miimon": "0", "updelay": "0", "downdelay": "0"},
			want:    map[string]string{"miimon": "0", "updelay": "0", "downdelay": "0"},
			written: map[string]string{"miimon": "0"},
		},
		"another delay": {
			changed: map[string]string{"updelay": "400"},
			want:    map[string]string{"miimon": "100", "updelay": "400", "downdelay": "300"},
			written: map[string]string{"updelay": "400"},
		},
	} {
		if keepDelays(c.changed, c.want); !maps.Equal(c.changed, c.written) {
			t.Errorf("%s: %v is written, not %v", name, c.changed, c.written)
		}
	}
}

// TestNewBondNamesWhatTheKernelBeginsOtherwise: 0 of an option that a new bond has as 1.
func TestNewBondNamesWhatTheKernelBeginsOtherwise(t *testing.T) {
	b := &bondSpec{Mode: "balance-rr", Options: map[string]string{
		"miimon": "100", "updelay": "0", "packets_per_slave": "0", "num_grat_arp": "0",
	}}
	want := map[string]string{"miimon": "100", "packets_per_slave": "0", "num_grat_arp": "0"}
	if have := b.atFirst(); !maps.Equal(have, want) {
		t.Errorf("%v, not %v", have, want)
	}
}
