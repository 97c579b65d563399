package conntrack

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// Unserved requests the deletion of connections to endpoints that serve their Service no more, and counts them. Each of
// those is the UDP connections of a zone to a frontend, and an endpoint: their clients get another endpoint then.
func (c *Counter) Unserved(those []ofctl.Connections) {
	if len(those) == 0 {
		return
	}
	c.mu.Lock()
	c.unserved = append(c.unserved, those...)
	c.mu.Unlock()
	signal(c.wake)
	signal(c.urgent)
}

// takeUnserved returns the connections to delete.
func (c *Counter) takeUnserved() []ofctl.Connections {
	c.mu.Lock()
	defer c.mu.Unlock()
	those := c.unserved
	c.unserved = nil
	return those
}

// endUnserved counts and deletes the connections of endpoints that serve no more. What the switch does not delete now
// is tried again in a second.
func (c *Counter) endUnserved(ctx context.Context) {
	those := c.takeUnserved()
	if len(those) == 0 {
		return
	}
	cuts, err := c.countUnserved(ctx, those)
	c.note(err)
	if err := c.cfg.Conntrack.Forget(ctx, those); err != nil {
		c.cfg.Logger.Warn("could not delete connections to removed Service endpoints", "error", err)
		c.mu.Lock()
		c.unserved = append(those, c.unserved...)
		c.mu.Unlock()
		return
	}
	c.report(cuts)
}

// owesUnserved reports whether deletions wait.
func (c *Counter) owesUnserved() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.unserved) > 0
}

// countUnserved returns the connections that are about to be deleted, by their endpoint.
func (c *Counter) countUnserved(ctx context.Context, those []ofctl.Connections) ([]Cut, error) {
	text, err := c.dump(ctx, those[0].Zone)
	if err != nil {
		return nil, err
	}
	found := make([]Cut, len(those))
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		t, live, err := ParseLine(line)
		from, replyErr := replySource(line)
		if err != nil || replyErr != nil || !live {
			continue
		}
		i := slices.IndexFunc(those, func(k ofctl.Connections) bool {
			to := netip.AddrPortFrom(t.Dst, t.DstPort)
			if !k.To.Addr().IsValid() { // a node port
				to = netip.AddrPortFrom(k.To.Addr(), t.DstPort)
			}
			return policy.Protocol(k.Protocol) == t.Protocol && to == k.To &&
				netip.AddrPortFrom(k.Addr, k.Port) == from
		})
		if i < 0 {
			continue
		}
		cut := &found[i]
		if cut.Count == 0 {
			*cut = Cut{
				Reason:    ServiceGone,
				Endpoint:  from.String(),
				Protocols: map[policy.Protocol]int{},
				Example:   t,
			}
		}
		cut.Count++
		cut.Protocols[t.Protocol]++
	}
	return slices.DeleteFunc(found, func(cut Cut) bool { return cut.Count == 0 }), nil
}

// replySource returns where the replies of a connection come from, before they are translated, of a line as ParseLine
// reads it.
func replySource(line string) (netip.AddrPort, error) {
	_, rest, _ := strings.Cut(line, "reply=(")
	reply, _, closed := strings.Cut(rest, ")")
	if !closed {
		return netip.AddrPort{}, fmt.Errorf("conntrack: no reply tuple in %q", line)
	}
	var t Tuple
	for field := range strings.SplitSeq(reply, ",") {
		if err := t.set(field); err != nil {
			return netip.AddrPort{}, fmt.Errorf("conntrack: %w in %q", err, line)
		}
	}
	return netip.AddrPortFrom(t.Src, t.SrcPort), nil
}
