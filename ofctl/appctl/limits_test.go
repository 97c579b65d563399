package appctl

import (
	"maps"
	"testing"

	"github.com/flowkeep/flowkeep/ofctl/ovstest"
)

// TestParseLimits reads what a real Open vSwitch prints of zones with a limit.
func TestParseLimits(t *testing.T) {
	sw := ovstest.Start(t, 0)
	sw.AppCtl(t, "dpctl/ct-set-limits", "dummy@ovs-dummy", "zone=65521,limit=200000", "zone=65522,limit=90000")
	text := sw.AppCtl(t, "dpctl/ct-get-limits", "dummy@ovs-dummy")
	got, err := ParseLimits(text)
	if want := (map[uint16]Limit{65521: {Limit: 200000}, 65522: {Limit: 90000}}); err != nil || !maps.Equal(got, want) {
		t.Errorf("%q: %v, %v, want %v", text, got, err, want)
	}
	if _, err := ParseLimits("zone=99999,limit=1,count=0"); err == nil {
		t.Error("takes a zone that there cannot be")
	}
}
