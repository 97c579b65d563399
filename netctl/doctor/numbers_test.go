package doctor

import (
	"slices"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/api/wellknown"
)

// flowkeepRules returns the rules that netplugin writes, and one of the kernel's.
func flowkeepRules(table, priority int) []Rule {
	pods := Rule{Protocol: kernelProtocol, Source: "10.244.1.0/24", Interface: gateway}
	toGateway, service, translated := pods, pods, pods
	toGateway.Priority, toGateway.Table, toGateway.Destination = priority, localTable, "10.244.1.1/32"
	service.Priority, service.Table = priority+10, table
	translated.Priority, translated.Table, translated.Interface = priority+11, table+3, wellknown.OutDevice
	former := translated
	former.Table, former.Interface, former.Mark, former.Mask = table, wellknown.WireDevice, formerMark, formerMark
	arrival := Rule{Protocol: kernelProtocol, Interface: "lo", Priority: priority + 12, Table: table + 1}
	arrival.Mark, arrival.Mask = wellknown.ArrivalMark, wellknown.ArrivalMark
	outArrival := Rule{Protocol: kernelProtocol, Interface: "lo", Priority: priority + 13, Table: table + 4}
	outArrival.Mark, outArrival.Mask = wellknown.OutArrivalMark, wellknown.OutArrivalMark
	returning := pods
	returning.Priority, returning.Next = priority+9, priority+50
	returning.Mark, returning.Mask = wellknown.ReturningMark, wellknown.ReturningMark
	toPods := Rule{Protocol: kernelProtocol, Interface: "lo", Priority: priority + 51, Table: table + 2}
	toPods.Destination = "10.244.1.0/24"
	replies := toPods
	replies.Priority, replies.Table, replies.Interface = priority+53, table, gateway
	geneve := pods
	geneve.Priority, geneve.Table, geneve.Interface = priority+52, table+5, wellknown.OutDevice
	geneve.Geneve = true
	forged := Rule{Protocol: kernelProtocol, Source: "fd00:2::11/128", Destination: "fd00:244::/32"}
	own := forged
	forged.Priority, forged.Table = priority+49, table+5
	own.Priority, own.Interface, own.Next = priority+48, "lo", priority+50
	return []Rule{toGateway, service, translated, {
		Priority: priority + 50,
		Table:    localTable,
		Protocol: kernelProtocol,
	}, returning, arrival, {
		Priority: 32766,
		Table:    254,
		Protocol: kernelProtocol,
	}, toPods, outArrival, former, geneve, replies, own, forged}
}

// with returns Flowkeep's rules, of which one is changed.
func with(at int, change func(*Rule)) []Rule {
	list := flowkeepRules(26214, 50)
	change(&list[at])
	return list
}

func TestNumbers_OtherPrograms(t *testing.T) {
	own := flowkeepRules(26214, 50)
	for name, c := range map[string]struct {
		rules  []Rule
		routes []string
		level  Level
		flag   string
	}{
		"none":                {own, nil, OK, ""},
		"a route":             {own, []string{"198.51.100.0/24"}, Problem, "--service-table"},
		"a rule of the table": {append(own, Rule{Priority: 1000, Table: 26214}), nil, Problem, "--service-table"},
		"a priority":          {[]Rule{{Priority: 61, Table: 254}}, nil, Problem, "--rule-priority"},
		"cloud-init's":        {[]Rule{{Priority: 1000, Table: 102}}, nil, OK, ""},
		"a former version's":  {flowkeepRules(102, 50), nil, OK, ""},
		"no protocol":         {with(0, func(r *Rule) { r.Protocol = 0 }), nil, Problem, "--rule-priority"},
		"another protocol":    {with(0, func(r *Rule) { r.Protocol = 4 }), nil, Problem, "--rule-priority"},
		"no destination":      {with(0, func(r *Rule) { r.Destination = "" }), nil, Problem, "--rule-priority"},
		"local by a mark":     {with(3, func(r *Rule) { r.Mark = 1 }), nil, Problem, "--rule-priority"},
		"local by an address": {with(3, func(r *Rule) { r.Source = "192.0.2.1/32" }), nil, Problem, "--rule-priority"},
		"a rule of the next":  {append(own, Rule{Priority: 1000, Table: 26215}), nil, Problem, "--service-table"},
		"marked, to main":     {with(5, func(r *Rule) { r.Table = 254 }), nil, Problem, "--rule-priority"},
		"goes on elsewhere":   {with(4, func(r *Rule) { r.Next = 32766 }), nil, Problem, "--rule-priority"},
		"looks up a table":    {with(4, func(r *Rule) { r.Next, r.Table = 0, 254 }), nil, Problem, "--rule-priority"},
		"a rule of the third": {append(own, Rule{Priority: 1000, Table: 26216}), nil, Problem, "--service-table"},
		"own, to main":        {with(7, func(r *Rule) { r.Table = 254 }), nil, Problem, "--rule-priority"},
		"a rule of the last":  {append(own, Rule{Priority: 1000, Table: 26219}), nil, Problem, "--service-table"},
		"Geneve, all packets": {with(10, func(r *Rule) { r.Geneve = false }), nil, Problem, "--rule-priority"},
		"Geneve, to main":     {with(10, func(r *Rule) { r.Table = 254 }), nil, Problem, "--rule-priority"},
		"Geneve, by any port": {with(10, func(r *Rule) { r.Interface = "" }), nil, Problem, "--rule-priority"},
		"fk-out, to main":     {with(2, func(r *Rule) { r.Table = 254 }), nil, Problem, "--rule-priority"},
		"fk-out, all packets": {with(2, func(r *Rule) { r.Source = "" }), nil, Problem, "--rule-priority"},
		"own, goes elsewhere": {with(12, func(r *Rule) { r.Next = 200 }), nil, Problem, "--rule-priority"},
		"forged, by one link": {with(13, func(r *Rule) { r.Interface = gateway }), nil, Problem, "--rule-priority"},
		"local, goes on":      {with(3, func(r *Rule) { r.Next = 200 }), nil, Problem, "--rule-priority"},
		"local by a port":     {with(3, func(r *Rule) { r.Other = true }), nil, Problem, "--rule-priority"},
	} {
		t.Run(name, func(t *testing.T) {
			var b book
			b.numbers(&Numbers{Table: 26214, Priority: 50, Rules: Known(c.rules), Routes: Known(c.routes)})
			found := slices.ContainsFunc(b.list, func(f Finding) bool {
				return f.Level == c.level && strings.Contains(f.Do, c.flag)
			})
			if !found || c.level == OK && len(b.list) != 1 {
				t.Errorf("found %+v, want %s with %q", b.list, c.level, c.flag)
			}
		})
	}
	var b book
	b.numbers(&Numbers{Rules: Fact[[]Rule]{Error: "not permitted"}})
	if len(b.list) != 1 || b.list[0].Level != Unknown {
		t.Errorf("found %+v where rules cannot be read", b.list)
	}
}

// TestNumbers_Protocol: routes with Flowkeep's protocol are another program's only where netplugin does not run.
func TestNumbers_Protocol(t *testing.T) {
	installed := Known([]Link{{Name: gateway}})
	for name, c := range map[string]struct {
		links  Fact[[]Link]
		rules  []Rule
		marked Fact[[]string]
		want   []Level
	}{
		"none":           {Known([]Link{}), nil, Known([]string{}), nil},
		"of Flowkeep":    {installed, nil, Known([]string{"10.244.2.0/24"}), nil},
		"without links":  {Known([]Link{}), flowkeepRules(300, 200), Known([]string{"10.244.2.0/24"}), nil},
		"of others":      {Known([]Link{}), nil, Known([]string{"10.244.2.0/24"}), []Level{Problem}},
		"cannot be read": {installed, nil, Fact[[]string]{Error: "not permitted"}, []Level{Unknown}},
	} {
		t.Run(name, func(t *testing.T) {
			var b book
			b.protocol(&Numbers{Rules: Known(c.rules), Marked: c.marked}, &c.links)
			var got []Level
			for _, f := range b.list {
				got = append(got, f.Level)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("found %+v, want %v", b.list, c.want)
			}
		})
	}
}
