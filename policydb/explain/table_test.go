package explain_test

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/policydb/explain"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func selector(pairs ...string) policy.Selector {
	var s policy.Selector
	for _, pair := range pairs {
		key, value, _ := strings.Cut(pair, "=")
		s.Requirements = append(s.Requirements, policy.Requirement{Key: key, Operator: policy.In, Values: []string{value}})
	}
	return s
}

func chosen(pairs ...string) *policy.Selector { s := selector(pairs...); return &s }

func pod(id, address string, labels ...string) *policy.Endpoint {
	namespace, name, _ := strings.Cut(id, "/")
	e := &policy.Endpoint{Namespace: namespace, Name: name, Labels: map[string]string{}, Addresses: []netip.Addr{addr(address)}, Node: "node1"}
	for _, l := range labels {
		key, value, _ := strings.Cut(l, "=")
		e.Labels[key] = value
	}
	return e
}

// shop has a database that lets api pods in at its named port, and monitoring from team ops; web may only send to
// 10.9.0.0/16 but 10.9.9.0/24, and to the port named db.
func shop() *policy.World {
	db := pod("shop/db", "10.0.0.1", "app=db")
	db.Ports = []policy.NamedPort{{Name: "sql", Protocol: policy.TCP, Number: 5432}}
	host := pod("kube-system/proxy", "192.168.0.1", "app=api")
	host.HostNetwork = true
	done := pod("shop/job", "10.0.0.9", "app=api")
	done.Finished = true
	return &policy.World{
		Namespaces: []policy.Namespace{{Name: "shop", Labels: map[string]string{"team": "sales"}}, {Name: "ops"}, {Name: "kube-system"}},
		Endpoints:  []*policy.Endpoint{db, pod("shop/api", "10.0.0.2", "app=api"), pod("shop/web", "10.0.0.3", "app=web"), pod("ops/prober", "10.0.1.1"), host, done},
		Policies: []*policy.Policy{
			{Namespace: "shop", Name: "db", AppliedTo: selector("app=db"), IsolatesIngress: true, Ingress: []policy.PolicyRule{
				{Peers: []policy.Peer{{Pods: chosen("app=api")}}, Ports: []policy.PolicyPort{{Protocol: policy.TCP, Name: "sql"}}},
				{Peers: []policy.Peer{{Namespaces: chosen("team=ops")}}, AnyPort: true},
				{Ports: []policy.PolicyPort{{Protocol: policy.TCP, First: 22, Last: 22}}}, // its only peer was refused
			}},
			{Namespace: "shop", Name: "web", AppliedTo: selector("app=web"), IsolatesEgress: true, Egress: []policy.PolicyRule{
				{Peers: []policy.Peer{{Block: &policy.IPBlock{CIDR: netip.MustParsePrefix("10.9.0.0/16"), Except: []netip.Prefix{netip.MustParsePrefix("10.9.9.0/24")}}}}, AnyPort: true},
				{Peers: []policy.Peer{{Block: &policy.IPBlock{CIDR: netip.MustParsePrefix("10.0.0.0/24")}}, {}}, Ports: []policy.PolicyPort{{Protocol: policy.TCP, Name: "sql"}, {Protocol: policy.UDP, First: 8000, Last: 8010}}},
			}},
		},
	}
}

// story is an explanation as lines.
func story(x explain.Explanation) (lines []string) {
	for _, side := range []struct {
		name string
		explain.Side
	}{{"egress", x.Egress}, {"ingress", x.Ingress}} {
		lines = append(lines, side.name+" "+string(side.Reason))
		for _, p := range side.Policies {
			for _, r := range p.Rules {
				lines = append(lines, rules(p.Policy, r)...)
			}
		}
		for _, r := range side.Remedies {
			lines = append(lines, "remedy: "+r.String())
		}
	}
	return lines
}

func rules(id string, r explain.RuleReport) (lines []string) {
	head := id + "[" + string(rune('0'+r.Rule)) + "] "
	if r.Allows {
		lines = append(lines, head+"allows")
	}
	for _, p := range r.Peers {
		for _, f := range p.Failures {
			lines = append(lines, head+p.String()+": "+f.String())
		}
	}
	for _, p := range r.Ports {
		if p.Failure != nil {
			lines = append(lines, head+p.String()+": "+p.Failure.String())
		}
	}
	return lines
}

func TestExplanations(t *testing.T) {
	const db0, db1, db2 = "shop/db[0] pods app=api: ", "shop/db[1] namespaces team=ops: ", "shop/db[2] TCP/22: "
	m := explain.NewModel(shop())
	for _, c := range []struct {
		name, from, to string
		protocol       policy.Protocol
		port           uint16
		want           []string
	}{
		{"a rule allows, by a named port", "10.0.0.2", "10.0.0.1", policy.TCP, 5432, []string{
			"egress open", "ingress allowed", "shop/db[0] allows",
			db1 + "namespace shop has team=sales, wanted: team=ops", db2 + "the packet has TCP/5432",
		}},
		{"another number than the name's", "10.0.0.2", "10.0.0.1", policy.TCP, 80, []string{
			"egress open", "ingress isolated", "shop/db[0] TCP/sql: on pod shop/db the port sql is TCP/5432, the packet has TCP/80",
			db1 + "namespace shop has team=sales, wanted: team=ops", db2 + "the packet has TCP/80",
			"remedy: label team=ops on namespace shop", "remedy: use port TCP/5432", "remedy: rule shop/db ingress[0] with port TCP/80",
			"remedy: rule shop/db ingress[1] with peer shop/api",
			"remedy: a policy that allows pod shop/db ingress from shop/api at TCP/80",
		}},
		{"a pod and a namespace without labels", "10.0.1.1", "10.0.0.1", policy.TCP, 22, []string{
			"egress open", "ingress isolated", db0 + "pod ops/prober is not in namespace shop", db0 + "pod ops/prober has no label app, wanted: app=api",
			"shop/db[0] TCP/sql: on pod shop/db the port sql is TCP/5432, the packet has TCP/22",
			db1 + "namespace ops has no label team, wanted: team=ops",
			"remedy: label team=ops on namespace ops", "remedy: rule shop/db ingress[1] with peer ops/prober", "remedy: rule shop/db ingress[2] with peer ops/prober",
			"remedy: a policy that allows pod shop/db ingress from ops/prober at TCP/22",
		}},
		{"a pod of hostNetwork is no peer", "192.168.0.1", "10.0.0.1", policy.TCP, 5432, []string{
			"egress notPod", "ingress isolated", db0 + "192.168.0.1 is no pod's own address, and selectors choose pods",
			db1 + "192.168.0.1 is no pod's own address, and selectors choose pods", db2 + "the packet has TCP/5432",
			"remedy: rule shop/db ingress[0] with peer 192.168.0.1", "remedy: rule shop/db ingress[1] with peer 192.168.0.1",
			"remedy: a policy that allows pod shop/db ingress from 192.168.0.1 at TCP/5432",
		}},
		{"an ipBlock's except; a name means nothing to a block", "10.0.0.3", "10.9.9.7", 1, 0, []string{
			"egress isolated", "shop/web[0] ipBlock 10.9.0.0/16 except 10.9.9.0/24: 10.9.9.7 is in 10.9.9.0/24, which is excepted",
			"shop/web[1] ipBlock 10.0.0.0/24: 10.9.9.7 is not in 10.0.0.0/24", "shop/web[1] nothing: the entry has neither selectors nor ipBlock, and matches nothing",
			"shop/web[1] TCP/sql: the packet has protocol(1)", "shop/web[1] UDP/8000-8010: the packet has protocol(1)",
			"remedy: rule shop/web egress[0] with peer 10.9.9.7", "remedy: a policy that allows pod shop/web egress to 10.9.9.7 at protocol(1)",
			"ingress notPod",
		}},
		{"a name of a pod that only a block chose", "10.0.0.3", "10.0.0.1", policy.TCP, 5432, []string{
			"egress isolated", "shop/web[0] ipBlock 10.9.0.0/16 except 10.9.9.0/24: 10.0.0.1 is not in 10.9.0.0/16",
			"shop/web[1] nothing: the entry has neither selectors nor ipBlock, and matches nothing",
			"shop/web[1] TCP/sql: sql is a port's name, which means nothing to an ipBlock", "shop/web[1] UDP/8000-8010: the packet has TCP/5432",
			"remedy: use port UDP/8000", "remedy: rule shop/web egress[1] with port TCP/5432", "remedy: rule shop/web egress[0] with peer shop/db",
			"remedy: a policy that allows pod shop/web egress to shop/db at TCP/5432",
			"ingress isolated", db0 + "pod shop/web has app=web, wanted: app=api",
			db1 + "namespace shop has team=sales, wanted: team=ops", db2 + "the packet has TCP/5432",
			"remedy: label app=api on pod shop/web", "remedy: label team=ops on namespace shop",
			"remedy: rule shop/db ingress[0] with peer shop/web", "remedy: rule shop/db ingress[1] with peer shop/web",
			"remedy: a policy that allows pod shop/db ingress from shop/web at TCP/5432",
		}},
		{"a pod to itself", "10.0.0.1", "10.0.0.1", policy.UDP, 1, []string{"egress self", "ingress self"}},
		{"no policy isolates", "10.0.0.1", "10.0.0.3", policy.TCP, 1, []string{"egress open", "ingress open"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := story(m.Explain(policy.Packet{From: addr(c.from), To: addr(c.to), Protocol: c.protocol, Port: c.port}))
			if !slices.Equal(got, c.want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(c.want, "\n"))
			}
		})
	}
}

func TestEnds(t *testing.T) {
	w := shop()
	w.Endpoints = append(w.Endpoints, pod("shop/thief", "10.0.0.1"))
	m := explain.NewModel(w)
	for address, want := range map[string]struct {
		kind            explain.EndKind
		node            string
		pods, contested []string
	}{
		"10.0.0.3":    {explain.Pod, "node1", []string{"shop/web"}, nil},
		"10.0.0.1":    {explain.Pod, "node1", []string{"shop/db"}, []string{"shop/thief"}},
		"192.168.0.1": {explain.HostNetwork, "node1", []string{"kube-system/proxy"}, nil},
		"10.0.0.9":    {explain.Finished, "", []string{"shop/job"}, nil},
		"8.8.8.8":     {explain.Outside, "", nil, nil},
	} {
		x := m.Explain(policy.Packet{From: addr(address), To: addr("10.0.0.2"), Protocol: policy.TCP, Port: 80})
		if x.From.Kind != want.kind || x.From.Node != want.node || !slices.Equal(x.From.Pods, want.pods) || !slices.Equal(x.From.Contested, want.contested) || x.From.Address != addr(address) {
			t.Errorf("%s: %+v", address, x.From)
		}
	}
}

func TestExplanation_JSONRoundTrip(t *testing.T) {
	x := explain.NewModel(shop()).Explain(policy.Packet{From: addr("10.0.0.3"), To: addr("10.0.0.1"), Protocol: policy.TCP, Port: 5432})
	text, err := json.Marshal(x)
	if err != nil {
		t.Fatal(err)
	}
	var back explain.Explanation
	if err := json.Unmarshal(text, &back); err != nil || !reflect.DeepEqual(x, back) {
		t.Errorf("%v\n%+v\n%+v", err, x, back)
	}
	if upper := regexp.MustCompile(`"[A-Z]\w*":`).FindString(string(text)); upper != "" {
		t.Errorf("%s is not lowerCamel in %s", upper, text)
	}
}

// lines are a matrix's cells that are not all.
func cellLines(x explain.Matrix) (lines []string) {
	for i, from := range x.Groups {
		for j, to := range x.Groups {
			if c := x.Cell(i, j); !c.IsAll() {
				lines = append(lines, from.Name+" > "+to.Name+": "+c.String())
			}
		}
	}
	return lines
}

func TestMatrixOfAShop(t *testing.T) {
	w := shop()
	w.Endpoints = append(w.Endpoints, pod("shop/api2", "10.0.0.12", "app=api", "hash=1"), pod("shop/x", "10.0.0.13", "app=x"), pod("shop/y", "10.0.0.14", "app=y"))
	m := explain.NewModel(w)
	for _, c := range []struct {
		q    explain.Question
		want []string
	}{
		{explain.Question{Namespaces: []string{"shop"}}, []string{
			"shop app > shop/db: none", "shop app=api > shop/db: TCP 5432",
			"shop/web > shop app: UDP 8000-8010", "shop/web > shop app=api: UDP 8000-8010", "shop/web > shop/db: none",
		}},
		{explain.Question{Namespaces: []string{"shop"}, Protocol: policy.UDP, Port: 8000}, []string{
			"shop app > shop app: UDP 8000", "shop app > shop app=api: UDP 8000", "shop app > shop/db: none", "shop app > shop/web: UDP 8000",
			"shop app=api > shop app: UDP 8000", "shop app=api > shop app=api: UDP 8000", "shop app=api > shop/db: none", "shop app=api > shop/web: UDP 8000",
			"shop/db > shop app: UDP 8000", "shop/db > shop app=api: UDP 8000", "shop/db > shop/db: UDP 8000", "shop/db > shop/web: UDP 8000",
			"shop/web > shop app: UDP 8000", "shop/web > shop app=api: UDP 8000", "shop/web > shop/db: none", "shop/web > shop/web: UDP 8000",
		}},
		{explain.Question{Namespaces: []string{"ops"}, Outside: true}, nil},
	} {
		if got := cellLines(m.Matrix(c.q)); !slices.Equal(got, c.want) {
			t.Errorf("%+v: got\n%s\nwant\n%s", c.q, strings.Join(got, "\n"), strings.Join(c.want, "\n"))
		}
	}
	x := m.Matrix(explain.Question{Outside: true})
	if want := []string{"kube-system/proxy", "shop/job"}; !slices.Equal(x.Apart, want) {
		t.Errorf("apart: %v", x.Apart)
	}
	var outside []string
	for _, g := range x.Groups {
		if g.Pods == nil {
			outside = append(outside, g.String())
		}
	}
	if want := []string{"world", "10.0.0.0/24", "10.9.0.0/16", "10.9.9.0/24"}; !slices.Equal(outside, want) {
		t.Errorf("outside: %v", outside)
	}
	if c, ok := x.Between("shop/api", "shop/api2"); !ok || !c.IsAll() {
		t.Errorf("api pods: %s %v", c, ok)
	}
	if _, ok := x.Between("shop/api", "shop/nobody"); ok {
		t.Error("nobody is in the matrix")
	}
}

func TestMatrixTravels(t *testing.T) {
	for want, w := range map[string]*policy.World{`{"groups":[],"values":[],"cells":[]}`: {}, "": shop()} {
		x := explain.NewModel(w).Matrix(explain.Question{Outside: len(w.Endpoints) > 0})
		text, err := json.Marshal(x)
		if err != nil || want != "" && string(text) != want {
			t.Errorf("%s: %v", text, err)
		}
		var back explain.Matrix
		if err := json.Unmarshal(text, &back); err != nil || !reflect.DeepEqual(cellLines(x), cellLines(back)) {
			t.Errorf("%s is read as %+v: %v", text, back, err)
		}
	}
}

func TestFamiliesMayDiffer(t *testing.T) {
	a, b := pod("shop/a", "10.0.0.1"), pod("shop/b", "10.0.0.2")
	a.Addresses, b.Addresses = append(a.Addresses, addr("fd00::1")), append(b.Addresses, addr("fd00::2"))
	block := policy.Peer{Block: &policy.IPBlock{CIDR: netip.MustParsePrefix("10.0.0.1/32")}}
	w := &policy.World{
		Endpoints: []*policy.Endpoint{a, b},
		Policies:  []*policy.Policy{{Namespace: "shop", Name: "p", IsolatesIngress: true, Ingress: []policy.PolicyRule{{Peers: []policy.Peer{block}, AnyPort: true}}}},
	}
	m := explain.NewModel(w)
	for family, want := range map[int]string{0: "all", 4: "all", 6: "none"} {
		x := m.Matrix(explain.Question{Family: family})
		if c, _ := x.Between("shop/a", "shop/b"); c.String() != want || (len(x.Uneven) == 1) != (family == 0) {
			t.Errorf("family %d: %s, uneven %v", family, c, x.Uneven)
		}
	}
	d := explain.Diff(m, explain.NewModel(&policy.World{Endpoints: w.Endpoints}))
	var lines []string
	names := func(list []int) (text string) {
		for _, i := range list {
			text += d.Groups[i].Name + " "
		}
		return text
	}
	for _, x := range d.Differences {
		lines = append(lines, names(x.From)+"> "+names(x.To)+string(rune('0'+x.Family))+": "+x.Gained.String())
	}
	want := []string{"shop/b world world IPv6 > shop/a 0: all", "shop/a > shop/b 6: all", "world world IPv6 > shop/b 0: all"}
	if !slices.Equal(lines, want) {
		t.Errorf("%q", lines)
	}
}

// TestDiffKeepsToFamiliesOfBothWorlds: an address that comes or goes is not what policies change.
func TestDiffKeepsToFamiliesOfBothWorlds(t *testing.T) {
	world := func(addresses ...string) *explain.Model {
		a := pod("shop/a", "10.0.0.1")
		a.Addresses = append(a.Addresses, addr("fd00::1"))
		b := *a
		b.Name, b.Addresses = "b", nil
		for _, text := range addresses {
			b.Addresses = append(b.Addresses, addr(text))
		}
		return explain.NewModel(&policy.World{Endpoints: []*policy.Endpoint{a, &b}})
	}
	both, four, six := world("10.0.0.2", "fd00::2"), world("10.0.0.2"), world("fd00::2")
	for _, c := range [][2]*explain.Model{{both, four}, {four, both}, {both, six}, {six, both}, {four, six}} {
		if d := explain.Diff(c[0], c[1]); !d.Same() {
			t.Errorf("%+v", d)
		}
	}
}

// TestNamesMeanNothingToBlocks: of two pods that a rule's block has, and that give the port's name the same number, only the
// one that a selector chooses too may be reached there.
func TestNamesMeanNothingToBlocks(t *testing.T) {
	x, y := pod("shop/x", "10.0.0.1", "app=x"), pod("shop/y", "10.0.0.2", "app=y")
	x.Ports = []policy.NamedPort{{Name: "sql", Protocol: policy.TCP, Number: 5432}}
	y.Ports = x.Ports
	rule := policy.PolicyRule{
		Peers: []policy.Peer{{Block: &policy.IPBlock{CIDR: netip.MustParsePrefix("10.0.0.0/8")}}, {Pods: chosen("app=x")}},
		Ports: []policy.PolicyPort{{Protocol: policy.TCP, Name: "sql"}},
	}
	w := &policy.World{
		Endpoints: []*policy.Endpoint{pod("shop/a", "10.0.0.3", "app=a"), x, y},
		Policies:  []*policy.Policy{{Namespace: "shop", Name: "p", AppliedTo: selector("app=a"), IsolatesEgress: true, Egress: []policy.PolicyRule{rule}}},
	}
	matrix := explain.NewModel(w).Matrix(explain.Question{})
	if got, want := cellLines(matrix), []string{"shop/a > shop/x: TCP 5432", "shop/a > shop/y: none"}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

func TestOutside(t *testing.T) {
	for _, c := range []struct {
		name         string
		blocks, want []string
	}{
		{"no block", nil, []string{"world"}},
		{"the whole", []string{"0.0.0.0/0"}, []string{"world"}},
		{"a block that others cover", []string{"10.0.0.0/8", "10.0.0.0/9", "10.128.0.0/9"}, []string{"world", "10.0.0.0/9", "10.128.0.0/9"}},
		{"all that others cover", []string{"0.0.0.0/1", "128.0.0.0/1", "255.255.255.255/32"}, []string{"0.0.0.0/1", "128.0.0.0/1", "255.255.255.255/32"}},
		{"a pod's address alone, and its neighbour's", []string{"10.0.0.1/32", "10.0.0.0/31"}, []string{"world", "10.0.0.0/31"}},
		{"blocks in blocks", []string{"10.0.0.0/8", "10.1.0.0/16", "10.1.1.0/24", "10.2.0.0/16"}, []string{"world", "10.0.0.0/8", "10.1.0.0/16", "10.1.1.0/24", "10.2.0.0/16"}},
		{"both families", []string{"2001:db8::/32"}, []string{"world", "world IPv6", "2001:db8::/32"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			pol := &policy.Policy{Namespace: "shop", Name: "p", IsolatesEgress: true, Egress: []policy.PolicyRule{{AnyPort: true}}}
			for _, b := range c.blocks {
				pol.Egress[0].Peers = append(pol.Egress[0].Peers, policy.Peer{Block: &policy.IPBlock{CIDR: netip.MustParsePrefix(b)}})
			}
			w := &policy.World{Endpoints: []*policy.Endpoint{pod("shop/a", "10.0.0.1")}, Policies: []*policy.Policy{pol}}
			x := explain.NewModel(w).Matrix(explain.Question{Outside: true})
			var got []string
			for _, g := range x.Groups[1:] {
				got = append(got, g.Name)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

func requirement(key string, op policy.Operator, values ...string) policy.Requirement {
	return policy.Requirement{Key: key, Operator: op, Values: values}
}

// TestLabelsThatHelp: which labels a remedy asks for, of a pod with app=web and tier=b in a namespace with env=dev.
func TestLabelsThatHelp(t *testing.T) {
	const name = "kubernetes.io/metadata.name"
	for _, c := range []struct {
		name       string
		namespaces []policy.Requirement
		pods       []policy.Requirement
		want       string // empty where labels can't help
	}{
		{"a value", nil, []policy.Requirement{requirement("app", policy.In, "db", "api")}, "label app=api on pod dev/web"},
		{"any value", nil, []policy.Requirement{requirement("zone", policy.Exists)}, "label zone=true on pod dev/web"},
		{"any value but one", nil, []policy.Requirement{requirement("zone", policy.Exists), requirement("zone", policy.NotIn, "true")}, "label zone=true-1 on pod dev/web"},
		{"none", nil, []policy.Requirement{requirement("tier", policy.DoesNotExist)}, "no label tier on pod dev/web"},
		{"not this one", nil, []policy.Requirement{requirement("tier", policy.NotIn, "b")}, "no label tier on pod dev/web"},
		{"not this one, but there", nil, []policy.Requirement{requirement("tier", policy.NotIn, "b"), requirement("tier", policy.Exists)}, "label tier=true on pod dev/web"},
		{"a value that another requirement excludes", nil, []policy.Requirement{requirement("app", policy.In, "api", "db"), requirement("app", policy.NotIn, "api")}, "label app=db on pod dev/web"},
		{"a contradiction", nil, []policy.Requirement{requirement("app", policy.In, "api"), requirement("app", policy.DoesNotExist)}, ""},
		{"of the namespace", []policy.Requirement{requirement("env", policy.In, "live")}, nil, "label env=live on namespace dev"},
		{"no longer of the namespace", []policy.Requirement{requirement("env", policy.DoesNotExist)}, nil, "no label env on namespace dev"},
		{"of both", []policy.Requirement{requirement("env", policy.In, "live")}, []policy.Requirement{requirement("app", policy.In, "api")}, "label app=api on pod dev/web and label env=live on namespace dev"},
		{"the label that Kubernetes gives", []policy.Requirement{requirement(name, policy.In, "live")}, nil, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			peer := policy.Peer{Namespaces: &policy.Selector{Requirements: c.namespaces}, Pods: &policy.Selector{Requirements: c.pods}}
			w := &policy.World{
				Namespaces: []policy.Namespace{{Name: "dev", Labels: map[string]string{"env": "dev", name: "dev"}}},
				Endpoints:  []*policy.Endpoint{pod("dev/web", "10.0.0.1", "app=web", "tier=b"), pod("live/db", "10.0.0.2")},
				Policies:   []*policy.Policy{{Namespace: "live", Name: "p", IsolatesIngress: true, Ingress: []policy.PolicyRule{{Peers: []policy.Peer{peer}, AnyPort: true}}}},
			}
			x := explain.NewModel(w).Explain(policy.Packet{From: addr("10.0.0.1"), To: addr("10.0.0.2"), Protocol: policy.TCP, Port: 80})
			var got string
			for _, r := range x.Ingress.Remedies {
				if k := r.Changes[0].Kind; k != explain.AddRulePeer && k != explain.AddPolicy {
					got += r.String()
				}
			}
			if got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}
