package server

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/flowkeep/flowkeep/api/wellknown"
	"github.com/flowkeep/flowkeep/netmaster/claims"
	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/store"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Reasons for refusing announcements of nodes.
const (
	refusedAddress = "address" // pod address outside the node's podCIDRs
	refusedNoUID   = "no_uid"
)

// admission is the set of nodes that may connect.
type admission struct {
	nodes   map[string]bool
	refused map[string]bool // by an administrator
}

// admit returns why a node may not connect; nil if it may. Safe for concurrent use.
func (s *server) admit(node string) error {
	a := s.admission.Load()
	switch {
	case a == nil || a.nodes[node]:
		return nil
	case a.refused[node]:
		return status.Errorf(codes.FailedPrecondition,
			"an administrator refuses node %s: its Node has the label %s=true",
			node, wellknown.LabelRefused)
	}
	return status.Errorf(codes.FailedPrecondition,
		"the API server has no Node %s: it is served when its kubelet has registered it", node)
}

// admitted calls f on the owner goroutine if the node may connect, and returns an error otherwise.
func (s *server) admitted(ctx context.Context, node string, f func()) error {
	var refused error
	err := s.Do(ctx, func(*resolve.Engine) {
		if refused = s.admit(node); refused == nil {
			f()
		}
	})
	if err != nil {
		return err
	}
	return refused
}

// setAdmission makes the present Nodes the only ones that may connect. Call it once all Nodes are known.
func (s *server) setAdmission() {
	if a := s.admission.Load(); a != nil && maps.Equal(a.nodes, s.nodes) && maps.Equal(a.refused, s.refusedNodes) {
		return
	}
	s.admission.Store(&admission{nodes: maps.Clone(s.nodes), refused: maps.Clone(s.refusedNodes)})
}

// setNodes sets the Nodes and their claims, and returns them with the claims that were granted.
func (s *server) setNodes(infos []policy.NodeInfo) (granted []policy.NodeInfo) {
	granted, refused := s.claims.Settle(infos)
	clear(s.nodes)
	clear(s.refusedNodes)
	for i := range granted {
		if granted[i].Refused {
			s.refusedNodes[granted[i].Name] = true
		} else {
			s.nodes[granted[i].Name] = true
		}
	}
	if s.admission.Load() != nil {
		s.setAdmission()
	}
	s.reportClaims(refused)
	s.setCIDRs(granted)
	s.nodesChanged.Add(1)
	s.segments.setNodes(granted)
	s.feed.SetNodes(s.visible(granted))
	return granted
}

// restoreClaims restores the granted claims from the policy DB.
func (s *server) restoreClaims(granted []policy.NodeInfo) {
	s.claims = claims.New(granted)
	s.setCIDRs(granted)
	s.segments.setNodes(granted)
	if len(granted) > 0 {
		s.feed.SetNodes(s.visible(granted))
	}
}

// visible returns the fields of nodes that are sent to other nodes.
func (s *server) visible(granted []policy.NodeInfo) []policy.NodeInfo {
	out := make([]policy.NodeInfo, 0, len(granted))
	for _, n := range granted {
		if !n.Refused {
			out = append(out, policy.NodeInfo{
				Name:      n.Name,
				Addresses: n.Addresses,
				PodCIDRs:  n.PodCIDRs,
				Links:     s.segments.granted(n.Name),
			})
		}
	}
	return out
}

// reportClaims writes an Event for each new claim that conflicts with another node's.
func (s *server) reportClaims(refused []claims.Refusal) {
	s.metrics.claimsRefused.Set(float64(len(refused)))
	before := s.reportedClaims
	s.reportedClaims = make(map[claims.Refusal]bool, len(refused))
	for _, r := range refused {
		if s.reportedClaims[r] = true; before[r] {
			continue
		}
		kind, what := "InternalIP", r.Prefix.Addr().String()
		if r.PodCIDR {
			kind, what = "podCIDR", r.Prefix.String()
		}
		s.log.Error("a node claims an address of another node: the claim is not sent to other nodes",
			"node", r.Node, "kind", kind, "claim", what, "holder", r.Holder)
		s.cfg.Report.Emit(wellknown.EventClaimRefused, "", r.Node, r.Node,
			fmt.Sprintf("its Node has %s %s, which node %s had first: no other node sends packets for it to this "+
				"node; if that is a former name of this machine, kubectl delete node %[3]s", kind, what, r.Holder))
	}
}

// setCIDRs sets the podCIDRs of all nodes, and evaluates their announcements again.
func (s *server) setCIDRs(granted []policy.NodeInfo) {
	before := s.podCIDRs
	s.podCIDRs = make(map[string][]netip.Prefix, len(granted))
	for i := range granted {
		if n := &granted[i]; !n.Refused {
			s.podCIDRs[n.Name] = n.PodCIDRs
		}
	}
	var changed resolve.Batch
	for node := range s.announced {
		now, known := s.podCIDRs[node]
		old, was := before[node]
		byOthers := s.cfg.NoPodCIDRs && len(now) == 0 // depends on the addresses of other nodes
		if known == was && slices.Equal(old, now) && !byOthers {
			continue
		}
		for _, a := range s.engine.Announcements(node) {
			foreign := s.foreignOf(node, a.Addresses)
			if slices.Equal(foreign, a.Foreign) {
				continue
			}
			a.Foreign = foreign
			s.reportForeign(&a)
			changed.Reassessed = append(changed.Reassessed, a)
		}
	}
	if len(changed.Reassessed) > 0 {
		s.apply(changed, store.Change{})
	}
}

// foreignOf returns the addresses that are outside the node's podCIDRs, from which netplugin assigns all pod
// addresses. Otherwise anyone with a node's certificate could attribute an address to a pod of that node, or take it
// from another pod. Pods that started under earlier podCIDRs keep such addresses, and their own node must not allow
// traffic to them. All addresses are foreign if the node has no Node object or no podCIDRs. With Config.NoPodCIDRs,
// a Node without podCIDRs may use addresses that no other node has.
func (s *server) foreignOf(node string, addresses []netip.Addr) (out []netip.Addr) {
	own, known := s.podCIDRs[node]
	trusted := known && len(own) == 0 && s.cfg.NoPodCIDRs
	for _, a := range addresses {
		switch {
		case slices.ContainsFunc(own, func(p netip.Prefix) bool { return p.Contains(a) }):
		case trusted && !s.claims.OtherHas(a, node):
		default:
			out = append(out, a)
		}
	}
	return out
}

// refuseAnnouncement reports whether an announcement is ignored because it has no UID: it could refer to any pod of
// the name.
func (s *server) refuseAnnouncement(a *resolve.Announcement) bool {
	if a.UID != "" {
		return false
	}
	s.metrics.refusedClaims.WithLabelValues(refusedNoUID).Inc()
	if s.refusals.Allow(a.Node+" UID", time.Now()) {
		s.log.Warn("a node announces a pod without a UID: the announcement is ignored", "node", a.Node,
			"pod", a.ID())
	}
	return true
}
