package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// switchWords are what ovs-vswitchd is asked for support: its version, bridges and ports, and how it fares.
var switchWords = []string{"version", "dpif/show", "memory/show", "upcall/show", "coverage/show", "dpctl/show", "dpctl/ct-stats-show"}

// longestWord bounds what is passed on of an answer of ovs-vswitchd's, in bytes.
const longestWord = 256 << 10

// querySupport tells what there is to know of this node. What cannot be told leaves the rest.
func (a *agent) querySupport(ctx context.Context) ([]byte, error) {
	out := inspect.Support{Program: "netplugin", Version: a.cfg.Version}
	problem := func(what string, err error) {
		if err != nil {
			out.Problems = append(out.Problems, fmt.Sprintf("%s: %v", what, err))
		}
	}
	if self := a.cfg.Self; self != nil {
		var err error
		out.Flags, out.Log = self.Flags, self.Log.Text()
		out.Metrics, err = self.Metrics()
		problem("metrics", err)
	}
	var groups map[groupID][]netip.Addr
	problem("rules", a.do(ctx, func() { out.Rules, groups = a.rules.copy() }))
	out.Groups = describeGroups(groups)
	slices.SortFunc(out.Rules, func(x, y *policy.Rule) int { return strings.Compare(x.Key.String(), y.Key.String()) })
	for _, command := range switchWords {
		text, err := a.askSwitch(ctx, command)
		problem("ovs-vswitchd "+command, err)
		out.Switch = append(out.Switch, inspect.SwitchWord{Command: command, Text: strings.ToValidUTF8(text[:min(len(text), longestWord)], "")})
	}
	return json.Marshal(out)
}

// copy is of what the owner would otherwise have to wait for.
func (r *ruleset) copy() (rules []*policy.Rule, groups map[groupID][]netip.Addr) {
	groups = make(map[groupID][]netip.Addr, len(r.groups))
	for _, rule := range r.rules {
		rules = append(rules, rule)
	}
	for id, members := range r.groups {
		list := make([]netip.Addr, 0, len(members))
		for m := range members {
			list = append(list, m)
		}
		groups[id] = list
	}
	return rules, groups
}

func describeGroups(groups map[groupID][]netip.Addr) (list []inspect.NodeGroup) {
	for id, members := range groups {
		slices.SortFunc(members, netip.Addr.Compare)
		g := inspect.NodeGroup{Kind: map[policy.GroupKind]string{policy.PeerGroup: "peers", policy.AppliedToGroup: "applied-to"}[id.kind], Key: id.key, Members: []string{}}
		for _, m := range members {
			g.Members = append(g.Members, m.String())
		}
		list = append(list, g)
	}
	slices.SortFunc(list, func(x, y inspect.NodeGroup) int { return strings.Compare(x.Kind+x.Key.String(), y.Kind+y.Key.String()) })
	return list
}
