package hostnet

import (
	"strings"
	"testing"
)

// TestSetup_LooksUpLocalWithoutPodCIDRs: a node delivers packets to its own addresses in a family in which it has no
// podCIDRs, whoever moved the kernel's rule.
func TestSetup_LooksUpLocalWithoutPodCIDRs(t *testing.T) {
	const kernels, moved = "0: from all lookup local", "100: from all lookup local"
	dual := func(t *testing.T, n Numbers) {
		cfg := nodeConfig()
		cfg.Numbers = n
		if err := Setup(cfg); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		before func(t *testing.T)
		want   string
	}{
		"never had podCIDRs":            {func(*testing.T) {}, kernels},
		"lost its podCIDRs":             {func(t *testing.T) { dual(t, DefaultNumbers) }, kernels},
		"lost them before an upgrade":   {func(t *testing.T) { dual(t, FormerNumbers) }, kernels},
		"lost them with other numbers":  {func(t *testing.T) { dual(t, otherNumbers) }, kernels},
		"another program moved it":      {func(t *testing.T) { shell(t, moveLocal) }, moved},
		"another program added another": {func(t *testing.T) { shell(t, addLocal) }, kernels},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := nodeConfig()
			cfg.Self.PodCIDRs, cfg.Earlier = prefixes("10.244.1.0/24"), []Numbers{otherNumbers}
			in(t, host(t), func() error {
				shell(t, "ip link set lo up")
				c.before(t)
				for range 2 {
					if err := Setup(cfg); err != nil {
						return err
					}
				}
				got := strings.Join(strings.Fields(output(t, "ip -6 rule")), " ")
				if want := c.want + " 32766: from all lookup main"; got != want {
					t.Errorf("rules: %s, want %s", got, want)
				}
				if to := routeGet(t, "::1"); !strings.HasPrefix(to, "local ::1") {
					t.Errorf("to ::1: %s", to)
				}
				return nil
			})
		})
	}
}

var otherNumbers = Numbers{Table: 7, Priority: 300}

// What other programs do to the kernel's look-up of the table local.
const (
	addLocal  = "ip -6 rule add pref 100 lookup local protocol kernel"
	moveLocal = addLocal + "; ip -6 rule del pref 0"
)
