package server

import (
	"fmt"
	"strings"
	"testing"
	"time"

	apifeed "github.com/flowkeep/flowkeep/api/feed"
	"github.com/flowkeep/flowkeep/internal/wire"
)

// TestDrift_IsAnEventAtTheNode: a drift is an Event with its counts and outcome. An invalid drift ends the stream.
func TestDrift_IsAnEventAtTheNode(t *testing.T) {
	w := newWorld(t, shop(t)...)
	m := w.start()
	n := held(m, "node1")
	n.say(wire.FromDrift(&wire.Drift{Missing: 2, Extra: 1, Example: "missing: table 43"}))
	until(t, "the event", func() bool {
		return w.reported("Node /node1 FlowkeepDrift", "2 missing, 0 changed, 1 extra", "they are repaired", "missing: table 43")
	})
	n.say(wire.FromDrift(&wire.Drift{Changed: 1, Problem: "the switch is full"}))
	until(t, "the next event", func() bool {
		return w.reported("FlowkeepDrift", "1 changed", "could not be repaired: the switch is full")
	})
	n.say(&apifeed.NodeMessage{Message: &apifeed.NodeMessage_Drift{Drift: &apifeed.Drift{Example: strings.Repeat("x", 5000)}}})
	until(t, "the end", n.is(func() bool { return n.ended != nil }))
}

// TestDrift_EventsAreLimited: a permanent drift has few Events. Later ones have the sum of the suppressed ones.
func TestDrift_EventsAreLimited(t *testing.T) {
	f := drifts{byNode: map[string]*pendingDrift{}}
	now := time.Unix(1e9, 0)
	var told []string
	for i := range 100 {
		if all, messages, tell := f.add("node1", &wire.Drift{Missing: 1}, now.Add(time.Duration(i)*10*time.Second)); tell {
			told = append(told, fmt.Sprintf("%d:%d/%d", i, all.Missing, messages))
		}
	}
	if got := strings.Join(told, " "); got != "0:1/1 1:1/1 2:1/1 61:59/59 62:1/1 63:1/1" {
		t.Errorf("told %s", got)
	}
	if _, _, tell := f.add("node2", &wire.Drift{Extra: 1}, now); !tell {
		t.Error("one node keeps another's from being told")
	}
	f.retain(func(node string) bool { return node == "node2" })
	if len(f.byNode) != 1 {
		t.Errorf("remembers %v", f.byNode)
	}
}
