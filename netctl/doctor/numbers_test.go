package doctor

import (
	"strings"
	"testing"
)

func TestNumbers_OtherPrograms(t *testing.T) {
	own := []Rule{
		{Priority: 50, Table: localTable, Interface: gateway},
		{Priority: 60, Table: 26214, Interface: gateway},
		{Priority: 61, Table: 26214, Interface: wire},
		{Priority: 100, Table: localTable},
		{Priority: 32766, Table: 254},
	}
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
	} {
		t.Run(name, func(t *testing.T) {
			var b book
			b.numbers(&Numbers{Table: 26214, Priority: 50, Rules: Known(c.rules), Routes: Known(c.routes)})
			if len(b.list) != 1 || b.list[0].Level != c.level || !strings.Contains(b.list[0].Do, c.flag) {
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
