package server

import (
	"slices"

	"github.com/flowkeep/flowkeep/api/wellknown"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// staticPods holds the UIDs, by ID, of mirror pods that are excluded as peers and have been reported.
type staticPods map[string]string

// takeStatic makes mirror pods peers in namespaces that allow it, and reports the others once. It replaces endpoints
// in the map and modifies none.
func (s *server) takeStatic(endpoints map[string]*policy.Endpoint) {
	for id, e := range endpoints {
		switch {
		case e == nil || !e.NoPeer:
			delete(s.static, id)
			continue
		case slices.Contains(s.cfg.StaticPodNamespaces, e.Namespace):
			peer := *e
			peer.NoPeer = false
			endpoints[id] = &peer
			delete(s.static, id)
			continue
		case e.HostNetwork: // never a peer
			continue
		case s.static[id] == e.UID:
			continue
		}
		s.static[id] = e.UID
		s.log.Warn("a static pod outside --static-pod-namespaces: policies isolate it, but it matches no peer",
			"pod", id, "node", e.Node)
		s.cfg.Report.Emit(wellknown.EventStaticPod, e.Namespace, e.Name, e.UID,
			"a static pod in a namespace that netmaster's --static-pod-namespaces does not name: "+
				"its policies hold, and no selector of a peer matches it")
	}
	s.metrics.staticPods.Set(float64(len(s.static)))
}
