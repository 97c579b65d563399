package agent

import (
	"encoding/json"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/api/inspect"
)

// Live connections are told by addresses and port, those of others and of the node itself are not.
func TestQueryConnections(t *testing.T) {
	a, _, _ := testAgent(t)
	a.cfg.DatapathType, a.cfg.OVSControl = "netdev", filepath.Join(t.TempDir(), "ctl")
	answering(t, a.cfg.OVSControl, func(line string) string {
		if !strings.Contains(line, "dump-conntrack") {
			return "3"
		}
		const rest = "),reply=(src=10.0.0.1,dst=10.0.0.2),zone=65521,protoinfo=(state=ESTABLISHED)\n"
		return "tcp,orig=(src=10.0.0.2,dst=10.0.0.1,sport=5,dport=80" + rest + "tcp,orig=(src=10.0.0.2,dst=10.0.0.1,sport=6,dport=80" + rest + "tcp,orig=(src=10.0.0.2,dst=10.0.0.3,sport=7,dport=80" + rest
	})
	go a.loop(t.Context())
	filter := &inspect.ConnectionFilter{To: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}
	for _, c := range []struct {
		q    inspect.NodeQuery
		want int
	}{{inspect.NodeQuery{Kind: inspect.QueryConnections, Connections: filter}, 2}, {inspect.NodeQuery{Kind: inspect.QueryConnections, Connections: &inspect.ConnectionFilter{}}, 0}, {inspect.NodeQuery{Kind: inspect.QueryConnections}, -1}} {
		body, err := json.Marshal(c.q)
		if err != nil {
			t.Fatal(err)
		}
		text, err := a.inspector.Query(t.Context(), body)
		var out inspect.NodeConnections
		got := -1
		if err == nil {
			if err := json.Unmarshal(text, &out); err != nil {
				t.Fatal(err)
			}
			got = 0
			for _, n := range out.Counts {
				got += n.Connections
			}
		}
		if got != c.want {
			t.Errorf("%s: %d connections, want %d: %s, %v", body, got, c.want, text, err)
		}
	}
}
