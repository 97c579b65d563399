package server

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/netmaster/feed"
	"github.com/flowkeep/flowkeep/policydb/labelcache"
)

// problems returns the problems of this process for netctl status.
func (s *server) problems() []string {
	var out []string
	if p := s.watcher.Problem(); p != "" {
		out = append(out, "the API server cannot be watched; current rules stay in force: "+p)
	}
	if p := s.watcher.Served.Problem(); p != "" {
		out = append(out, "Services cannot be watched; nodes keep those that they hold: "+p)
	}
	if p := s.lagProblem(); p != "" {
		out = append(out, p)
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
	if text := s.unattached.Load().Problem(); text != "" {
		out = append(out, text)
	}
	if text, ok := s.webUIProblem.Load().(string); ok {
		out = append(out, text)
	}
	return out
}

// trafficProblem describes connected nodes in different traffic modes; empty if there are none.
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
	reach := "do not"
	// auto interoperates with the others, except with nodes of other segments in mode route
	if modes["auto"] != nil {
		reach = "may not"
	}
	return "nodes are in different traffic modes, and their pods " + reach + " reach each other: " +
		strings.Join(parts, "; ") + ": give every netplugin the same --traffic-mode"
}

// trafficNow returns the present trafficProblem. It is called every second and is cheap if nodes agree.
func (s *server) trafficNow() string {
	if s.feed.OneTrafficMode() {
		return ""
	}
	return trafficProblem(s.feed.Nodes())
}

// observeTraffic logs when traffic modes begin or cease to differ.
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

// observe updates the gauges.
func (s *server) observe() {
	c := s.engine.Counts()
	for name, v := range map[string]int{
		"namespaces": c.Namespaces,
		"endpoints":  c.Endpoints,
		"policies":   c.Policies,
		"rules":      c.Rules,
		"groups":     c.Groups,
	} {
		s.metrics.objects.WithLabelValues(name).Set(float64(v))
	}
	s.metrics.revision.Set(float64(s.engine.Revision()))
	s.metrics.events.Set(float64(s.watcher.Events()))
	s.reportMembers()
	s.metrics.apiUp.Set(s.observeAPI())
	s.metrics.servicesUp.Set(0)
	if s.services.IsKnown() && s.watcher.Served.Problem() == "" {
		s.metrics.servicesUp.Set(1)
	}
	_, lag := s.watcher.Lag()
	s.metrics.watchLag.Set(lag.Seconds())
	s.metrics.settling.Set(float64(s.gate.waits()))
	s.metrics.waiting.Set(float64(s.intake.waits()))
	s.observeElection()
	s.observeTraffic()
	waiting, err := s.store.Problem()
	s.metrics.storeWaiting.Set(float64(waiting))
	if err != nil {
		s.metrics.storeErrors.Inc()
	}
}

// observeElection updates the gauges of the election.
func (s *server) observeElection() {
	leads, epoch, standbys := 0.0, 0.0, 0.0
	if s.standby() == "" {
		leads = 1
		if l := s.now.Load(); l != nil && l.Term != nil {
			epoch = float64(l.Epoch())
		}
	}
	if r := s.standbys.Load(); r != nil {
		standbys = float64(len(r.standbys))
	}
	s.metrics.standbys.Set(standbys)
	s.metrics.leads.Set(leads)
	s.metrics.epoch.Set(epoch)
}

// observeAPI logs the loss and the return of the API server.
func (s *server) observeAPI() (up float64) {
	problem := s.watcher.Problem()
	switch {
	case problem != "" && s.apiProblem == "":
		s.log.Warn("the API server cannot be watched; current rules stay in force", "error", problem)
	case problem == "" && s.apiProblem != "":
		s.log.Info("the API server can be watched again")
	}
	if s.apiProblem = problem; problem != "" {
		return 0
	}
	return 1
}

// counted returns the version of the engine's state in this term, for caching.
func (s *server) counted() labelcache.Stamp {
	at := labelcache.Stamp{Term: s.nonce, Revision: s.labels.Load(), Standing: s.feed.Standings()}
	if l := s.now.Load(); l != nil && l.Term != nil {
		at.Epoch, at.Term = l.Epoch(), l.nonce
	}
	return at
}
