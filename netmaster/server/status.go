package server

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/netmaster/feed"
	"github.com/flowkeep/flowkeep/policydb/labelcache"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// problems are what is wrong with this process, for netctl status.
func (s *server) problems() []string {
	var out []string
	if p := s.watcher.Problem(); p != "" {
		out = append(out, "the API server cannot be watched; the rules of before go on: "+p)
	}
	if st := s.cache.Stats(); len(st.Servers) > 0 && !st.Connected {
		out = append(out, "memcached does not answer; label look-ups are computed instead: "+st.Problem)
	}
	if waiting, err := s.store.Problem(); err != nil {
		out = append(out, fmt.Sprintf("the policy DB cannot be written (%d changes wait): %v", waiting, err))
	}
	if text := s.store.SetAside(); text != "" {
		out = append(out, text)
	}
	if text := s.trafficNow(); text != "" {
		out = append(out, text)
	}
	if text, ok := s.pageProblem.Load().(string); ok {
		out = append(out, text)
	}
	return out
}

// trafficProblem tells of connected nodes in different traffic modes; empty if there are none.
func trafficProblem(nodes []feed.NodeStatus) string {
	const most = 3
	modes := map[string][]string{}
	for _, n := range nodes {
		if n.Connected && n.TrafficMode != "" {
			modes[n.TrafficMode] = append(modes[n.TrafficMode], n.Name)
		}
	}
	if len(modes) < 2 {
		return ""
	}
	var parts []string
	for _, mode := range slices.Sorted(maps.Keys(modes)) {
		names := modes[mode]
		text := fmt.Sprintf("%q on %s", mode, strings.Join(names[:min(len(names), most)], ", "))
		if more := len(names) - most; more > 0 {
			text += fmt.Sprintf(" and %d more", more)
		}
		parts = append(parts, text)
	}
	return "nodes are in different traffic modes, and their pods do not reach each other: " + strings.Join(parts, "; ") + ": give every netplugin the same --traffic-mode"
}

// trafficNow is asked for every second: where nodes agree it looks at no more than that.
func (s *server) trafficNow() string {
	if s.feed.OneTrafficMode() {
		return ""
	}
	return trafficProblem(s.feed.Nodes())
}

// observeTraffic says in the log when nodes begin to differ, and when they no longer do.
func (s *server) observeTraffic() {
	problem := s.trafficNow()
	switch {
	case problem != "" && problem != s.trafficProblem:
		s.log.Error(problem)
	case problem == "" && s.trafficProblem != "":
		s.log.Info("all nodes are in one traffic mode again")
	}
	s.trafficProblem = problem
}

// observe keeps the gauges.
func (s *server) observe() {
	c := s.engine.Counts()
	for name, v := range map[string]int{"namespaces": c.Namespaces, "endpoints": c.Endpoints, "policies": c.Policies, "rules": c.Rules, "groups": c.Groups} {
		s.metrics.objects.WithLabelValues(name).Set(float64(v))
	}
	s.metrics.revision.Set(float64(s.engine.Revision()))
	s.metrics.events.Set(float64(s.watcher.Events()))
	s.metrics.invalid.WithLabelValues("NetworkPolicy", "Invalid").Set(float64(len(s.wrong)))
	s.metrics.apiUp.Set(s.observeAPI())
	s.observeElection()
	s.observeTraffic()
	waiting, err := s.store.Problem()
	s.metrics.storeWaiting.Set(float64(waiting))
	if err != nil {
		s.metrics.storeErrors.Inc()
	}
}

// observeElection tells whether this netmaster serves, in which epoch, and who stands by.
func (s *server) observeElection() {
	leads, epoch, standbys := 0.0, 0.0, 0.0
	if s.standby() == "" {
		leads = 1
		if l := s.now.Load(); l != nil && l.Term != nil {
			epoch = float64(l.Epoch())
		}
	}
	if r := s.roll.Load(); r != nil {
		standbys = float64(len(r.standbys))
	}
	s.metrics.standbys.Set(standbys)
	s.metrics.leads.Set(leads)
	s.metrics.epoch.Set(epoch)
}

// observeAPI says in the log when the API server goes, and when it is back.
func (s *server) observeAPI() (up float64) {
	problem := s.watcher.Problem()
	switch {
	case problem != "" && s.apiProblem == "":
		s.log.Warn("the API server cannot be watched; the rules of before go on", "error", problem)
	case problem == "" && s.apiProblem != "":
		s.log.Info("the API server can be watched again")
	}
	if s.apiProblem = problem; problem != "" {
		return 0
	}
	return 1
}

// markGroups notes whose members may have changed, if there is a memcached to be told.
func (s *server) markGroups(c *policy.Changes) {
	if len(s.cfg.Memcached) == 0 || s.standby() != "" {
		return
	}
	for i := range c.Groups {
		s.dirty[c.Groups[i].Key] = struct{}{}
	}
	for i := range c.Nodes {
		for _, a := range c.Nodes[i].AppliedTo {
			s.dirty[a.Key] = struct{}{}
		}
	}
}

// counted is labels, and under which leader.
func (s *server) counted() (epoch, count uint64) {
	count = s.labels.Load()
	if l := s.now.Load(); l != nil && l.Term != nil {
		epoch = l.Epoch()
	}
	return epoch, count
}

// groupsASecond bounds what telling the label cache costs the owner.
const groupsASecond = 200

// publishGroups tells the label cache of some groups that have changed.
func (s *server) publishGroups() {
	n := 0
	for key := range s.dirty {
		if n++; n > groupsASecond {
			return
		}
		delete(s.dirty, key)
		if g, ok := s.engine.Group(key); ok {
			e := labelcache.Entry{Endpoints: g.Members}
			e.Epoch, e.Revision = s.counted()
			s.cache.Put(labelcache.GroupKey(key), e)
		}
	}
}
