package query

import (
	"cmp"
	"slices"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// waysOf returns how packets travel between a node and each other node. In traffic modes route and geneve all ways
// are alike.
func (s *sources) waysOf(node string) ([]inspect.PeerWay, error) {
	infos := s.cfg.Nodes.Infos()
	i := slices.IndexFunc(infos, func(n policy.NodeInfo) bool { return n.Name == node })
	if i < 0 {
		return nil, status.Errorf(codes.NotFound, "there is no node %s", node)
	}
	mode := s.cfg.Nodes.Node(node).TrafficMode
	out := make([]inspect.PeerWay, 0, len(infos)-1)
	for j := range infos {
		if j == i {
			continue
		}
		w := inspect.PeerWay{Peer: infos[j].Name, Way: mode}
		switch mode {
		case string(policy.WayRoute), string(policy.WayGeneve):
			w.Reason = "traffic mode " + mode
		default:
			way, reason := policy.ExplainWay(&infos[i], &infos[j])
			w.Way, w.Reason = string(way), reason
		}
		out = append(out, w)
	}
	slices.SortFunc(out, func(a, b inspect.PeerWay) int { return cmp.Compare(a.Peer, b.Peer) })
	return out, nil
}
