package lint

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

func selector(pairs ...string) *policy.Selector {
	s := &policy.Selector{}
	for i := 0; i+1 < len(pairs); i += 2 {
		s.Requirements = append(s.Requirements, policy.Requirement{Key: pairs[i], Operator: policy.In, Values: []string{pairs[i+1]}})
	}
	return s
}

func pods(s *policy.Selector) policy.Peer { return policy.Peer{Pods: s} }

func block(cidr string, except ...string) policy.Peer {
	b := &policy.IPBlock{CIDR: netip.MustParsePrefix(cidr)}
	for _, e := range except {
		b.Except = append(b.Except, netip.MustParsePrefix(e))
	}
	return policy.Peer{Block: b}
}

func port(protocol policy.Protocol, first, last uint16) policy.PolicyPort {
	return policy.PolicyPort{Protocol: protocol, First: first, Last: last}
}

func name(n string, protocol policy.Protocol) policy.PolicyPort {
	return policy.PolicyPort{Protocol: protocol, Name: n}
}

func from(peers ...policy.Peer) policy.PolicyRule {
	return policy.PolicyRule{AnyPeer: len(peers) == 0, Peers: peers, AnyPort: true}
}

func on(r policy.PolicyRule, ports ...policy.PolicyPort) policy.PolicyRule {
	r.AnyPort, r.Ports = false, ports
	return r
}

// ingress is a policy shop/NAME for pods of these labels.
func ingress(name string, applied *policy.Selector, rules ...policy.PolicyRule) *policy.Policy {
	return &policy.Policy{Namespace: "shop", Name: name, AppliedTo: *applied, IsolatesIngress: true, Ingress: rules}
}

func egress(name string, applied *policy.Selector, rules ...policy.PolicyRule) *policy.Policy {
	return &policy.Policy{Namespace: "shop", Name: name, AppliedTo: *applied, IsolatesEgress: true, Egress: rules}
}

// shop has pods web and db, with one job that is over.
func shop(policies ...*policy.Policy) *Cluster {
	pod := func(namespace, app string, last byte, ports ...policy.NamedPort) *policy.Endpoint {
		return &policy.Endpoint{Namespace: namespace, Name: app, Labels: map[string]string{"app": app}, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 244, 0, last})}, Ports: ports}
	}
	over := pod("shop", "job", 9)
	over.Finished = true
	return &Cluster{
		World: &policy.World{
			Namespaces: []policy.Namespace{{Name: "shop", Labels: map[string]string{nameLabel: "shop"}}, {Name: "ops", Labels: map[string]string{nameLabel: "ops", "team": "ops"}}},
			Endpoints: []*policy.Endpoint{pod("shop", "web", 1), pod("shop", "db", 2, policy.NamedPort{Name: "sql", Protocol: policy.TCP, Number: 5432}, policy.NamedPort{Name: "gossip", Protocol: policy.UDP, Number: 7000}),
				pod("ops", "top", 3), over},
			Policies: policies,
		},
		PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/24"), netip.MustParsePrefix("10.244.1.0/24")},
	}
}

func TestFindings(t *testing.T) {
	web, db, all := selector("app", "web"), selector("app", "db"), selector()
	sql := port(policy.TCP, 5432, 5432)
	for _, c := range []struct {
		what     string
		policies []*policy.Policy
		want     []string // code, field; the field's policy where it is not shop/db
	}{
		{"nothing wrong", []*policy.Policy{ingress("db", db, on(from(pods(web)), sql))}, nil},
		{"nobody is isolated", []*policy.Policy{ingress("db", selector("app", "job"), from(pods(web)))}, []string{"FK001 spec.podSelector"}},
		{"a peer nobody is", []*policy.Policy{ingress("db", db, from(pods(web), pods(selector("app", "wbe"))))}, []string{"FK002 spec.ingress[0].from[1]"}},
		{"a namespace there is not", []*policy.Policy{ingress("db", db, from(policy.Peer{Namespaces: selector("team", "dev")}))}, []string{"FK003 spec.ingress[0].from[0].namespaceSelector"}},
		{"a namespace without such pods", []*policy.Policy{ingress("db", db, from(policy.Peer{Namespaces: selector("team", "ops"), Pods: web}))}, []string{"FK002 spec.ingress[0].from[0]"}},
		{"a port's name", []*policy.Policy{ingress("db", db, on(from(pods(web)), name("sql", policy.TCP)))}, nil},
		{"a port's name nobody has", []*policy.Policy{ingress("db", db, on(from(pods(web)), sql, name("mysql", policy.TCP)))}, []string{"FK004 spec.ingress[0].ports[1]"}},
		{"a port's name that other pods have", []*policy.Policy{ingress("db", web, on(from(pods(web)), name("sql", policy.TCP)))}, []string{"FK004 spec.ingress[0].ports[0]"}},
		{"a port's name of the peer", []*policy.Policy{egress("db", web, on(from(pods(db)), name("sql", policy.TCP)), on(from(), name("gossip", policy.UDP)), on(from(), port(policy.UDP, 53, 53), port(policy.TCP, 53, 53)))}, nil},
		{"a port's name of another protocol", []*policy.Policy{ingress("db", db, on(from(pods(web)), name("gossip", policy.TCP)))}, []string{"FK005 spec.ingress[0].ports[0]"}},
		{"a port's number of another protocol", []*policy.Policy{ingress("db", db, on(from(pods(web)), port(policy.TCP, 7000, 7000)))}, []string{"FK005 spec.ingress[0].ports[0]"}},
		{"no peer is left", []*policy.Policy{ingress("db", db, policy.PolicyRule{AnyPort: true})}, []string{"FK006 spec.ingress[0]"}},
		{"names of no pods", []*policy.Policy{egress("db", db, on(from(block("203.0.113.0/24")), name("sql", policy.TCP)))}, []string{"FK006 spec.egress[0]"}},
		{"rules without their type", []*policy.Policy{{Namespace: "shop", Name: "db", AppliedTo: *db, IsolatesIngress: true, Egress: []policy.PolicyRule{from()}}}, []string{"FK007 spec.egress"}},
		{"covered in the policy", []*policy.Policy{ingress("db", db, on(from(pods(web)), port(policy.TCP, 1, 9999)), on(from(pods(web)), sql))}, []string{"FK008 spec.ingress[1]"}},
		{"twice the same", []*policy.Policy{ingress("db", db, on(from(pods(web)), sql), on(from(pods(web)), sql))}, []string{"FK008 spec.ingress[1]"}},
		{"covered by a wider policy", []*policy.Policy{ingress("all", all, on(from(policy.Peer{Namespaces: all}), sql)), ingress("db", db, on(from(pods(web)), sql), on(from(pods(web)), port(policy.TCP, 80, 80)))}, []string{"FK008 spec.ingress[0]"}},
		{"not covered by a narrower policy", []*policy.Policy{ingress("db", all, on(from(policy.Peer{Namespaces: all}), sql)), ingress("one", db, from())}, nil},
		{"covered with the pods there are", []*policy.Policy{ingress("db", db, on(from(pods(selector("tier", "x")), pods(web)), sql), on(from(policy.Peer{Namespaces: selector("team", "ops")}, pods(web)), sql)),
			ingress("ops", db, from(policy.Peer{Namespaces: all, Pods: selector("app", "top")}))}, []string{"FK002 spec.ingress[0].from[0]", "FK009 spec.ingress[1]"}},
		{"a name covered by all numbers", []*policy.Policy{ingress("db", db, on(from(pods(web)), name("sql", policy.TCP)), on(from(pods(web)), port(policy.TCP, 0, 65535)))}, []string{"FK008 spec.ingress[0]"}},
		{"without effect", []*policy.Policy{ingress("db", db, on(from(pods(web)), sql)), ingress("deny", db)}, []string{"FK010 shop/deny spec"}},
		{"isolates and lets everything through", []*policy.Policy{ingress("db", db, from())}, []string{"FK010 spec"}},
		{"denies", []*policy.Policy{ingress("db", db)}, nil},
		{"pods by their addresses", []*policy.Policy{ingress("db", db, from(block("10.244.0.2/32")))}, []string{"FK011 spec.ingress[0].from[0].ipBlock.cidr"}},
		{"the world, and all pods with it", []*policy.Policy{ingress("db", db, on(from(block("0.0.0.0/0")), sql))}, []string{"FK011 spec.ingress[0].from[0].ipBlock.cidr"}},
		{"the world without pods", []*policy.Policy{ingress("db", db, on(from(block("0.0.0.0/0", "10.244.0.0/16")), sql))}, nil},
		{"no DNS", []*policy.Policy{egress("db", web, on(from(pods(db)), sql))}, []string{"FK012 spec.egress"}},
		{"DNS by another policy", []*policy.Policy{egress("db", web, on(from(pods(db)), sql)), egress("dns", all, on(from(), port(policy.UDP, 53, 53), port(policy.TCP, 53, 53)))}, nil},
		{"no egress at all", []*policy.Policy{egress("db", web)}, nil},
		{"half of DNS", []*policy.Policy{egress("db", web, on(from(), port(policy.TCP, 53, 53)))}, []string{"FK013 spec.egress[0].ports[0]"}},
		{"not understood", []*policy.Policy{{Namespace: "shop", Name: "db", AppliedTo: *db, IsolatesIngress: true, Problems: []string{"spec.ingress[0].from[0]: names no selector and no ipBlock"}}}, []string{"FK014 spec.ingress[0].from[0]"}},
		{"not understood, and enforced", []*policy.Policy{{Namespace: "shop", Name: "db", AppliedTo: *db, IsolatesIngress: true, Problems: []string{"metadata.annotations: no"}}}, []string{"FK014 metadata.annotations"}},
		{"a dry run", []*policy.Policy{dryRun(ingress("db", db, on(from(pods(web)), sql)))}, []string{"FK015 metadata.annotations"}},
		{"a dry run that chooses nobody, and whose peer is nobody", []*policy.Policy{dryRun(ingress("db", selector("app", "gone"), on(from(pods(selector("app", "gone"))), port(policy.TCP, 1, 1))))},
			[]string{"FK001 spec.podSelector", "FK015 metadata.annotations", "FK002 spec.ingress[0].from[0]"}},
		{"a dry run is not covered", []*policy.Policy{dryRun(ingress("db", db, on(from(pods(web)), sql), on(from(pods(web)), sql))), ingress("all", db, on(from(pods(web)), sql))}, []string{"FK015 metadata.annotations"}},
		{"a dry run covers nothing", []*policy.Policy{ingress("db", db, on(from(pods(web)), sql)), dryRun(ingress("run", db, on(from(pods(web)), sql)))}, []string{"FK015 shop/run metadata.annotations"}},
		{"no DNS, once it is enforced", []*policy.Policy{dryRun(egress("db", web, on(from(pods(db)), sql)))}, []string{"FK012 spec.egress", "FK015 metadata.annotations"}},
		{"DNS in a dry run is none", []*policy.Policy{egress("db", web, on(from(pods(db)), sql)), dryRun(egress("dns", web, on(from(), port(policy.UDP, 53, 53), port(policy.TCP, 53, 53))))}, []string{"FK012 spec.egress", "FK015 shop/dns metadata.annotations"}},
		{"DNS in force is enough for a dry run", []*policy.Policy{dryRun(egress("db", web, on(from(pods(db)), sql))), egress("dns", all, on(from(), port(policy.UDP, 53, 53), port(policy.TCP, 53, 53)))}, []string{"FK015 metadata.annotations"}},
	} {
		var got []string
		for _, f := range Check(shop(c.policies...)) {
			text := f.Code + " " + f.Field
			if f.Policy != "shop/db" {
				text = f.Code + " " + f.Policy + " " + f.Field
			}
			got = append(got, text)
			if f.Message == "" || f.Remedy == "" || f.Severity == "" {
				t.Errorf("%s: says too little: %+v", c.what, f)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: found\n  %s\nwant\n  %s", c.what, strings.Join(got, "\n  "), strings.Join(c.want, "\n  "))
		}
	}
}

func dryRun(p *policy.Policy) *policy.Policy {
	p.DryRun = true
	return p
}

// TestCoveringRulesAreNamed, so that one can look at them.
func TestCoveringRulesAreNamed(t *testing.T) {
	db := selector("app", "db")
	f := Check(shop(ingress("db", db, on(from(), port(policy.TCP, 80, 80))), ingress("wide", selector(), on(from(), port(policy.TCP, 1, 100)))))
	if len(f) != 1 || f[0].Code != PolicyNoEffect || f[0].Policy != "shop/db" {
		t.Fatalf("found %+v", f)
	}
	f = Check(shop(ingress("db", db, on(from(), port(policy.TCP, 80, 80)), on(from(), port(policy.TCP, 200, 200))), ingress("wide", selector(), on(from(), port(policy.TCP, 1, 100)))))
	if len(f) != 1 || f[0].Code != CoveredAlways || !slices.Equal(f[0].By, []string{"shop/wide ingress[0]"}) || f[0].Rule != 0 || f[0].Direction != "ingress" {
		t.Errorf("found %+v", f)
	}
}

// TestDefaultDeny is for pods that may come, unless it is there twice.
func TestDefaultDeny(t *testing.T) {
	db, web := selector("app", "db"), selector("app", "web")
	both := []*policy.Policy{ingress("db", db, from(pods(web))), ingress("web", web, from(pods(db))), ingress("deny", selector())}
	f := Check(shop(both...))
	if len(f) != 1 || f[0].Policy != "shop/deny" || f[0].Code != PolicyNoEffect || f[0].Severity != Info {
		t.Errorf("a default deny: %+v", f)
	}
	f = Check(shop(append(both, ingress("deny-too", selector()), ingress("part", db, on(from(pods(web)), port(policy.TCP, 1, 2))))...))
	if len(f) != 3 || f[0].Severity != Info || f[1].Policy != "shop/deny-too" || f[1].Severity != Warning || f[2].Policy != "shop/part" || f[2].Severity != Warning {
		t.Errorf("twice, and a part of another: %+v", f)
	}
}

// TestOneNamespace looks at no other's policies, but with all pods.
func TestOneNamespace(t *testing.T) {
	c := shop(ingress("db", selector("app", "db"), from(policy.Peer{Namespaces: selector("team", "ops")})), &policy.Policy{Namespace: "ops", Name: "x", AppliedTo: *selector("a", "b"), IsolatesIngress: true})
	for namespace, want := range map[string]int{"": 1, "shop": 0, "ops": 1} {
		c.Namespace = namespace
		if got := Check(c); len(got) != want {
			t.Errorf("in %q: %+v", namespace, got)
		}
	}
}

// TestLargeClusters are looked at in time, or it is said that they are not.
func TestLargeClusters(t *testing.T) {
	c := shop()
	for i := range 1000 {
		labels := map[string]string{"app": fmt.Sprint(i % 250)}
		c.World.Endpoints = append(c.World.Endpoints, &policy.Endpoint{Namespace: "shop", Name: fmt.Sprint("pod", i), Labels: labels, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})}})
	}
	for i := range 250 {
		c.World.Policies = append(c.World.Policies, ingress(fmt.Sprint("p", i), selector("app", fmt.Sprint(i)), on(from(pods(selector("app", fmt.Sprint((i+1)%250)))), port(policy.TCP, 80, 80)), on(from(), port(policy.TCP, 81, 81))))
	}
	for _, f := range Check(c) {
		t.Fatalf("found %+v", f)
	}
	c.most = 1000
	if found := Check(c); len(found) != 1 || found[0].Code != NotCompared {
		t.Errorf("found %+v", found)
	}
}
