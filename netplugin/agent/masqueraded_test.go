package agent

import (
	"log/slog"
	"os/exec"
	"testing"

	"github.com/flowkeep/flowkeep/internal/testkit/netns"
	"github.com/flowkeep/flowkeep/netplugin/hostnet"
)

// TestKeepHost_RequestsDeletions: each repair of the nftables tables leads to a deletion of the connections that were
// opened meanwhile, also one that fails, and the first one.
func TestKeepHost_RequestsDeletions(t *testing.T) {
	h, infos := keptHost(t, slog.New(slog.DiscardHandler))
	h.deletions = make(chan hostnet.Config, 1)
	netns.New(t).Do(func() {
		for step, want := range []struct {
			command string
			deletes bool
		}{
			{"true", true}, // and an error, as there are no links
			{"true", false},
			{"nft delete table inet flowkeep", true},
			{"nft add table inet others", false},
		} {
			if out, err := exec.Command("sh", "-ec", want.command).CombinedOutput(); err != nil {
				t.Errorf("%s: %v: %s", want.command, err, out)
			}
			if err := h.keepHost(t.Context(), infos); err == nil {
				t.Error("no error without links")
			}
			select {
			case cfg := <-h.deletions:
				if !want.deletes || len(cfg.Self.PodCIDRs) == 0 {
					t.Errorf("step %d, %s: deletes connections to %v", step, want.command, cfg.Self.PodCIDRs)
				}
			default:
				if want.deletes {
					t.Errorf("step %d, %s: deletes no connections", step, want.command)
				}
			}
		}
	})
}
