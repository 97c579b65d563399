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

// querySupport returns the node's part of a support bundle. An error of one part does not affect the others.
func (ins *inspector) querySupport(ctx context.Context) ([]byte, error) {
	out := inspect.Support{Program: "netplugin", Version: ins.a.cfg.Version}
	problem := func(what string, err error) {
		if err != nil {
			out.Problems = append(out.Problems, fmt.Sprintf("%s: %v", what, err))
		}
	}
	if self := ins.a.cfg.Self; self != nil {
		var err error
		out.Flags, out.Log = self.Flags, self.Log.Text()
		out.Metrics, err = self.Metrics()
		problem("metrics", err)
	}
	var sets []memberList
	problem("rules", ins.a.do(ctx, func() { out.Rules, sets = ins.a.rules.copy() }))
	out.Groups = describeGroups(sets)
	slices.SortFunc(out.Rules, func(x, y *policy.Rule) int { return strings.Compare(x.Key.String(), y.Key.String()) })
	for _, command := range switchWords {
		text, err := ins.a.vswitchd.askSwitch(ctx, command)
		problem("ovs-vswitchd "+command, err)
		out.Switch = append(out.Switch, inspect.SwitchWord{Command: command, Text: strings.ToValidUTF8(text[:min(len(text), longestWord)], "")})
	}
	return json.Marshal(out)
}

// memberList is the members of groups of a kind.
type memberList struct {
	kind    policy.GroupKind
	keys    []policy.Key
	members []netip.Addr
}

// copy returns rules and sets that the owner goes on to change.
func (r *ruleset) copy() (rules []*policy.Rule, sets []memberList) {
	for _, rule := range r.rules {
		rules = append(rules, rule)
	}
	for _, s := range r.groups.Sets() {
		sets = append(sets, memberList{s.Kind(), slices.Clone(s.Keys()), slices.Collect(s.Members())})
	}
	return rules, sets
}

func describeGroups(sets []memberList) (list []inspect.NodeGroup) {
	kinds := map[policy.GroupKind]string{policy.PeerGroup: "peers", policy.AppliedToGroup: "applied-to"}
	for _, s := range sets {
		slices.SortFunc(s.members, netip.Addr.Compare)
		members := make([]string, 0, len(s.members))
		for _, m := range s.members {
			members = append(members, m.String())
		}
		for _, k := range s.keys {
			list = append(list, inspect.NodeGroup{Kind: kinds[s.kind], Key: k, Members: members})
		}
	}
	slices.SortFunc(list, func(x, y inspect.NodeGroup) int { return strings.Compare(x.Kind+x.Key.String(), y.Kind+y.Key.String()) })
	return list
}
