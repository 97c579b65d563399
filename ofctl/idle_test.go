package ofctl_test

import (
	"errors"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/ofctl/ovstest"
)

// Open vSwitch forgets a bundle for which it hears nothing (ovs-vswitchd.conf.db(5), bundle-idle-timeout): nothing is changed, and the session stays usable.
func TestABundleIsForgotten(t *testing.T) {
	sw := ovstest.Start(t, 1)
	sw.VSCtl(t, "set", "Open_vSwitch", ".", "other_config:bundle-idle-timeout=1")
	s := connect(t, sw)
	flows := []ofctl.Flow{{Priority: 1, Actions: []ofctl.Action{{Kind: ofctl.Output, Port: 1}}}}
	err := s.Commit(t.Context(), mods(ofctl.Add, flows), func() { time.Sleep(4 * time.Second) }) // the switch's own time
	var refused *ofctl.SwitchError
	if !errors.As(err, &refused) || refused.Flow != nil {
		t.Errorf("%v, want a refusal of no flow", err)
	}
	if left := dump(t, s); len(left) != 0 {
		t.Errorf("%d flows of a bundle that was forgotten", len(left))
	}
	if err := s.Commit(t.Context(), mods(ofctl.Add, flows)); err != nil {
		t.Error(err)
	}
}
