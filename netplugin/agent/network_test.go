package agent

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/internal/testkit/netns"
	"github.com/flowkeep/flowkeep/netplugin/hostnet"
)

// TestSetUpWithoutLinks_LostPodCIDR: the flows of a lost podCIDR are removed before its policy rules. A change of nodes
// waits for the owner goroutine for that, a repair does not.
func TestSetUpWithoutLinks_LostPodCIDR(t *testing.T) {
	h, _ := keptHost(t, slog.New(slog.DiscardHandler))
	former := netip.MustParsePrefix("10.244.1.0/24")
	cfg := &hostnet.Config{Self: h.rules.nodes[0]}
	rule := func() bool {
		out, err := exec.Command("ip", "rule").CombinedOutput()
		if err != nil {
			t.Error(err)
		}
		return strings.Contains(string(out), former.String())
	}
	netns.New(t).Do(func() {
		if err := h.do(t.Context(), func() { h.node.openSetUp(t.Context(), cfg.Self.PodCIDRs) }); err != nil {
			t.Error(err)
		}
		if err := h.setUpWithoutLinks(t.Context(), cfg); err != nil || !rule() {
			t.Errorf("no policy rule of %s (%v)", former, err)
		}
		cfg.Self.PodCIDRs = []netip.Prefix{netip.MustParsePrefix("10.244.7.0/24")}
		release, busy := make(chan struct{}), make(chan struct{})
		go func() {
			_ = h.do(t.Context(), func() {
				h.rules.nodes = slices.Clone(h.rules.nodes)
				h.rules.nodes[0].PodCIDRs = cfg.Self.PodCIDRs
				close(busy)
				<-release
			})
		}()
		<-busy
		brief, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if err := h.setUpWithoutLinks(brief, cfg); !errors.Is(err, context.DeadlineExceeded) || !rule() {
			t.Errorf("it did not wait for the owner: %v, the former rule is there: %v", err, rule())
		}
		h.steady = true
		if err := h.setUpWithoutLinks(brief, cfg); err != nil || rule() {
			t.Errorf("a repair: %v, the former rule is there: %v", err, rule())
		}
		h.steady = false
		close(release)
		if err := h.setUpWithoutLinks(t.Context(), cfg); err != nil {
			t.Error(err)
		}
		if err := h.do(t.Context(), func() {
			if slices.Contains(h.node.returned, former) {
				t.Errorf("the flows of %s are not removed", former)
			}
		}); err != nil {
			t.Error(err)
		}
	})
}
