package resolve_test

import (
	"testing"

	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

const (
	web, web6 = "10.0.0.1", "fd00::1"
	api, api6 = "10.0.0.2", "fd00::2"
	other     = "10.0.0.3"
	outside   = "192.0.2.7"
	outside6  = "2001:db8::7"
)

type stage struct {
	event           resolve.Batch
	allowed, denied []string
}

type trap struct {
	name   string
	stages []stage
}

func pair() []*policy.Endpoint {
	return []*policy.Endpoint{pod("a/web", "app=web", web+" "+web6), pod("a/api", "app=api", api+" "+api6, on("node2"))}
}

// selectorTraps are those of "Selectors, endpoints, addresses".
var selectorTraps = []trap{
	{"a Completed pod's address goes to a new pod with other labels: only the new pod's rights count", []stage{
		{world(append(pair(), pod("a/job", "app=job", other)), ingress("p", "app=api", peers(podsOf("app=job")))), []string{other + " " + api + " tcp/80"}, []string{web + " " + api + " tcp/80"}},
		{podEvents(pod("a/job", "app=job", other, finished)), nil, []string{other + " " + api + " tcp/80"}},
		{podEvents(pod("a/new", "app=new", other)), nil, []string{other + " " + api + " tcp/80"}},
		{podEvents(pod("a/new", "app=job", other)), []string{other + " " + api + " tcp/80"}, nil},
	}},
	{"the new pod with the address comes before the old one is said to be finished", []stage{
		{world(append(pair(), pod("a/job", "app=job", other)), ingress("p", "app=api", peers(podsOf("app=job")))), []string{other + " " + api + " tcp/80"}, nil},
		{podEvents(pod("a/new", "app=job", other)), nil, []string{other + " " + api + " tcp/80"}},
		{podEvents(pod("a/job", "app=job", other, finished)), []string{other + " " + api + " tcp/80"}, nil},
	}},
	{"a finished pod does not contest the address of one that terminates", []stage{
		{world([]*policy.Endpoint{pod("a/job", "app=job", web, finished), pod("a/web", "app=web", web, terminating), pair()[1]}, ingress("p", "app=api", peers(podsOf("app=web")))), []string{web + " " + api + " tcp/80"}, nil},
	}},
	{"same pod name, new address in one update: the old one leaves as the new one comes", []stage{
		{world(pair(), ingress("p", "app=api", peers(podsOf("app=web")))), []string{web + " " + api + " tcp/80"}, nil},
		{podEvents(pod("a/web", "app=web", other)), []string{other + " " + api + " tcp/80"}, []string{web + " " + api + " tcp/80", web6 + " " + api6 + " tcp/80"}},
		{podEvents(pod("a/web", "app=web", web, uid("second"))), []string{web + " " + api + " tcp/80"}, []string{other + " " + api + " tcp/80"}},
	}},
	{"dual-stack: the second address arrives later", []stage{
		{world([]*policy.Endpoint{pod("a/web", "app=web", web), pod("a/api", "app=api", api)}, ingress("p", "app=api", peers(podsOf("app=web")))), []string{web + " " + api + " tcp/80", web6 + " " + api6 + " tcp/80"}, nil},
		{podEvents(pod("a/api", "app=api", api+" "+api6)), []string{web + " " + api + " tcp/80"}, []string{web6 + " " + api6 + " tcp/80"}},
		{podEvents(pod("a/web", "app=web", web+" "+web6)), []string{web + " " + api + " tcp/80", web6 + " " + api6 + " tcp/80"}, nil},
	}},
	{"labels change between address assignment and sync", []stage{
		{world([]*policy.Endpoint{pod("a/web", "app=none", ""), pair()[1]}, ingress("p", "app=api", peers(podsOf("app=web")))), nil, []string{web + " " + api + " tcp/80"}},
		{podEvents(pod("a/web", "app=none", web)), nil, []string{web + " " + api + " tcp/80"}},
		{podEvents(pod("a/web", "app=web", web)), []string{web + " " + api + " tcp/80"}, nil},
		{podEvents(pod("a/web", "app=none", web)), nil, []string{web + " " + api + " tcp/80"}},
	}},
	{"a namespace is relabelled, or deleted and created again with other labels", []stage{
		{world(append(pair(), pod("b/x", "app=x", other)), ingress("p", "app=api", peers(nsOf("team=blue")))), []string{other + " " + api + " tcp/80"}, []string{web + " " + api + " tcp/80"}},
		{resolve.Batch{Namespaces: []policy.Namespace{{Name: "b", Labels: labels("team=green")}}}, nil, []string{other + " " + api + " tcp/80"}},
		{resolve.Batch{Namespaces: []policy.Namespace{{Name: "a", Labels: labels("team=blue")}}}, []string{web + " " + api + " tcp/80"}, []string{other + " " + api + " tcp/80"}},
		{resolve.Batch{DeletedNamespaces: []string{"b"}, DeletedEndpoints: []string{"b/x"}}, nil, []string{other + " " + api + " tcp/80"}},
		{resolve.Batch{Endpoints: []*policy.Endpoint{pod("b/x", "app=x", other)}}, nil, []string{other + " " + api + " tcp/80"}}, // before its namespace
		{resolve.Batch{Namespaces: twoNamespaces}, []string{other + " " + api + " tcp/80"}, []string{web + " " + api + " tcp/80"}},
	}},
	{"a namespace that is deleted and put in one batch is there", []stage{
		{world(append(pair(), pod("b/x", "app=x", other)), ingress("p", "app=api", peers(nsOf("team=blue")))), []string{other + " " + api + " tcp/80"}, nil},
		{resolve.Batch{DeletedNamespaces: []string{"b"}, Namespaces: twoNamespaces}, []string{other + " " + api + " tcp/80"}, nil},
	}},
	{"a policy's podSelector is edited: pods that it no longer selects are un-isolated", []stage{
		{world(pair(), ingress("p", "app=api")), []string{api + " " + web + " tcp/80"}, []string{web + " " + api + " tcp/80"}},
		{resolve.Batch{Policies: []*policy.Policy{ingress("p", "app=web")}}, []string{web + " " + api + " tcp/80"}, []string{api + " " + web + " tcp/80"}},
		{resolve.Batch{DeletedPolicies: []string{"a/p"}}, []string{api + " " + web + " tcp/80"}, nil},
	}},
	{"hostNetwork pods match a selector: the node's address is neither target nor peer", []stage{
		{world(append(pair(), pod("a/agent", "app=web", other, hostNetwork)), ingress("p", ""), ingress("q", "app=api", peers(podsOf("app=web")))), []string{web + " " + api + " tcp/80", api + " " + other + " tcp/80"}, []string{other + " " + api + " tcp/80"}},
		{resolve.Batch{Policies: []*policy.Policy{ingress("r", "app=api", peers(block(other+"/32")))}}, []string{other + " " + api + " tcp/80"}, nil},
		{podEvents(pod("a/web", "app=web", other, hostNetwork)), nil, []string{web + " " + api + " tcp/80"}},
	}},
	{"a terminating pod keeps its access until it is gone", []stage{
		{world(pair(), ingress("p", "app=api", peers(podsOf("app=web")))), []string{web + " " + api + " tcp/80"}, nil},
		{podEvents(pod("a/web", "app=web", web, terminating)), []string{web + " " + api + " tcp/80"}, nil},
		{resolve.Batch{DeletedEndpoints: []string{"a/web"}}, nil, []string{web + " " + api + " tcp/80"}},
	}},
	{"from: [] and absent from match every peer; from: [{}] matches none; a refused peer matches no pod", []stage{
		{world(pair(), ingress("p", "app=api", policy.PolicyRule{AnyPeer: true, AnyPort: true})), []string{web + " " + api + " tcp/80", outside + " " + api + " icmp"}, nil},
		{resolve.Batch{Policies: []*policy.Policy{ingress("p", "app=api", peers(policy.Peer{}))}}, nil, []string{web + " " + api + " tcp/80", outside + " " + api + " tcp/80"}},
		{resolve.Batch{Policies: []*policy.Policy{ingress("p", "app=api", peers())}}, nil, []string{web + " " + api + " tcp/80", outside + " " + api + " tcp/80"}},
		{resolve.Batch{Policies: []*policy.Policy{ingress("p", "app=api", ports())}}, nil, []string{web + " " + api + " tcp/80", web + " " + api + " icmp"}},
	}},
	{"to: [] and to: [{}] alike", []stage{
		{world(pair(), egress("p", "app=web", policy.PolicyRule{AnyPeer: true, AnyPort: true})), []string{web + " " + api + " tcp/80", web + " " + outside + " icmp"}, nil},
		{resolve.Batch{Policies: []*policy.Policy{egress("p", "app=web", peers(policy.Peer{}))}}, nil, []string{web + " " + api + " tcp/80", web + " " + outside + " tcp/80"}},
		{resolve.Batch{Policies: []*policy.Policy{egress("p", "app=web", ports())}}, nil, []string{web + " " + api + " tcp/80"}},
	}},
	{"namespaceSelector {} is every namespace, podSelector {} the policy's own", []stage{
		{world(append(pair(), pod("b/x", "app=x", other)), ingress("p", "app=api", peers(podsOf("")))), []string{web + " " + api + " tcp/80"}, []string{other + " " + api + " tcp/80"}},
		{resolve.Batch{Policies: []*policy.Policy{ingress("p", "app=api", peers(nsOf("")))}}, []string{web + " " + api + " tcp/80", other + " " + api + " tcp/80"}, []string{outside + " " + api + " tcp/80"}},
		{resolve.Batch{Policies: []*policy.Policy{ingress("p", "app=api", peers(policy.Peer{Namespaces: selects("team=blue"), Pods: selects("app=web")}))}}, nil, []string{web + " " + api + " tcp/80", other + " " + api + " tcp/80"}},
	}},
	{"egress deny-all without peers isolates egress only", []stage{
		{world(pair(), egress("p", "app=web")), []string{api + " " + web + " tcp/80"}, []string{web + " " + api + " tcp/80", web + " " + outside + " icmp"}},
	}},
	{"a rule with only a protocol lets all ports of it through and nothing else", []stage{
		{world(pair(), ingress("p", "app=api", ports(port(policy.UDP, 0, 65535)))), []string{web + " " + api + " udp/1", outside + " " + api + " udp/65535"}, []string{web + " " + api + " tcp/1", web + " " + api + " icmp"}},
	}},
	{"ipBlock of both families in one rule; except; pods' addresses too", []stage{
		{world(pair(), ingress("p", "app=api", peers(block("192.0.2.0/24", "192.0.2.8/29"), block("2001:db8::/32"), block(web+"/32")))), []string{outside + " " + api + " tcp/80", outside6 + " " + api6 + " tcp/80", web + " " + api + " tcp/80"}, []string{"192.0.2.9 " + api + " tcp/80", web6 + " " + api6 + " tcp/80"}},
	}},
	{"an except in one block does not take what another block allows", []stage{
		{world(pair(), ingress("p", "app=api", peers(block("192.0.2.0/24", outside+"/32"), block(outside+"/32")))), []string{outside + " " + api + " tcp/80"}, nil},
	}},
	{"two policies on one pod add up", []stage{
		{world(pair(), ingress("deny", ""), ingress("p", "app=api", peers(podsOf("app=web")))), []string{web + " " + api + " tcp/80"}, []string{api + " " + web + " tcp/80", outside + " " + api + " tcp/80"}},
	}},
}

// portTraps are those of "Ports", and of the union of rules.
var portTraps = []trap{
	{"a named port stands for different numbers on different pods (ingress)", []stage{
		{world([]*policy.Endpoint{pod("a/web", "app=web", web), pod("a/one", "app=api", api, gives("http", policy.TCP, 80)), pod("a/two", "app=api", other, gives("http", policy.TCP, 8080))}, ingress("p", "app=api", ports(named(policy.TCP, "http")))),
			[]string{web + " " + api + " tcp/80", web + " " + other + " tcp/8080"}, []string{web + " " + api + " tcp/8080", web + " " + other + " tcp/80", web + " " + api + " udp/80"}},
		{podEvents(pod("a/two", "app=api", other, gives("http", policy.TCP, 80))), []string{web + " " + other + " tcp/80"}, []string{web + " " + other + " tcp/8080"}},
	}},
	{"a named port stands for different numbers on different pods (egress)", []stage{
		{world([]*policy.Endpoint{pod("a/web", "app=web", web), pod("a/one", "app=api", api, gives("http", policy.TCP, 80)), pod("b/two", "app=api", other, gives("http", policy.TCP, 8080))}, egress("p", "app=web", policy.PolicyRule{AnyPeer: true, Ports: []policy.PolicyPort{named(policy.TCP, "http")}})),
			[]string{web + " " + api + " tcp/80", web + " " + other + " tcp/8080"}, []string{web + " " + api + " tcp/8080", web + " " + other + " tcp/80", web + " " + outside + " tcp/80", web + " " + outside + " tcp/8080"}},
	}},
	{"a name has a number a protocol", []stage{
		{world([]*policy.Endpoint{pair()[0], pod("a/api", "app=api", api, gives("dns", policy.UDP, 53), gives("dns", policy.TCP, 5353))}, ingress("p", "app=api", ports(named(policy.UDP, "dns")))),
			[]string{web + " " + api + " udp/53"}, []string{web + " " + api + " tcp/53", web + " " + api + " tcp/5353", web + " " + api + " udp/5353"}},
	}},
	{"an unresolved name matches nothing, never everything", []stage{
		{world(pair(), ingress("p", "app=api", ports(named(policy.TCP, "http")))), nil, []string{web + " " + api + " tcp/80", web + " " + api + " tcp/0", web + " " + api + " icmp"}},
		{podEvents(pod("a/api", "app=api", api, gives("http", policy.TCP, 80))), []string{web + " " + api + " tcp/80"}, []string{web + " " + api + " tcp/81"}},
		{podEvents(pod("a/api", "app=api", api)), nil, []string{web + " " + api + " tcp/80"}},
	}},
	{"a named port on an ipBlock stands for nothing", []stage{
		{world([]*policy.Endpoint{pair()[0], pod("a/api", "app=api", api, gives("http", policy.TCP, 80))}, egress("p", "app=web", policy.PolicyRule{Peers: []policy.Peer{block("0.0.0.0/0")}, Ports: []policy.PolicyPort{named(policy.TCP, "http")}})), nil, []string{web + " " + api + " tcp/80", web + " " + outside + " tcp/80"}},
	}},
	{"a named port with pods and an ipBlock beside them: the pods' number does not open the block", []stage{
		{world([]*policy.Endpoint{pair()[0], pod("a/api", "app=api", api, gives("http", policy.TCP, 80))}, egress("p", "app=web", policy.PolicyRule{Peers: []policy.Peer{podsOf("app=api"), block("0.0.0.0/0")}, Ports: []policy.PolicyPort{named(policy.TCP, "http"), port(policy.TCP, 443, 443)}})),
			[]string{web + " " + api + " tcp/80", web + " " + outside + " tcp/443"}, []string{web + " " + outside + " tcp/80"}},
	}},
	{"a name beside a number: each counts", []stage{
		{world([]*policy.Endpoint{pair()[0], pod("a/api", "app=api", api, gives("http", policy.TCP, 80))}, ingress("p", "app=api", ports(named(policy.TCP, "http"), named(policy.TCP, "none"), port(policy.TCP, 443, 443)))), []string{web + " " + api + " tcp/80", web + " " + api + " tcp/443"}, []string{web + " " + api + " tcp/81"}},
	}},
	{"endPort ranges match exactly", []stage{
		{world(pair(), ingress("p", "app=api", ports(port(policy.TCP, 1000, 1999)))), []string{web + " " + api + " tcp/1000", web + " " + api + " tcp/1999"}, []string{web + " " + api + " tcp/999", web + " " + api + " tcp/2000", web + " " + api + " udp/1000"}},
	}},
	{"SCTP rules do not leak into TCP or UDP", []stage{
		{world(pair(), ingress("p", "app=api", ports(port(policy.SCTP, 80, 80)))), []string{web + " " + api + " sctp/80"}, []string{web + " " + api + " tcp/80", web + " " + api + " udp/80"}},
	}},
	{"one rule with ports only, one with peers only: the union is not a cross product", []stage{
		{world(append(pair(), pod("a/x", "app=x", other)), ingress("p", "app=api", peers(podsOf("app=web"))), ingress("q", "app=api", ports(port(policy.TCP, 80, 80)))),
			[]string{web + " " + api + " tcp/81", other + " " + api + " tcp/80"}, []string{other + " " + api + " tcp/81"}},
	}},
	{"ports never let ICMP through; none does", []stage{
		{world(pair(), ingress("p", "app=api", ports(port(policy.TCP, 0, 65535), port(policy.UDP, 0, 65535)))), nil, []string{web + " " + api + " icmp"}},
		{resolve.Batch{Policies: []*policy.Policy{ingress("p", "app=api", peers(podsOf("app=web")))}}, []string{web + " " + api + " icmp"}, nil},
	}},
}

func TestSelectorTraps(t *testing.T) { runTraps(t, selectorTraps) }
func TestPortTraps(t *testing.T)     { runTraps(t, portTraps) }

func runTraps(t *testing.T, traps []trap) {
	for _, tr := range traps {
		t.Run(tr.name, func(t *testing.T) {
			s, m := newScene(t), newModel()
			for i, st := range tr.stages {
				s.do(st.event)
				m.take(st.event)
				s.want(true, st.allowed...)
				s.want(false, st.denied...)
				m.confirm(t, true, st.allowed)
				m.confirm(t, false, st.denied)
				if t.Failed() {
					t.Fatalf("at stage %d", i)
				}
			}
		})
	}
}

// take applies a batch of objects to the model.
func (m *model) take(b resolve.Batch) {
	for _, n := range b.DeletedNamespaces {
		delete(m.namespaces, n)
	}
	for _, ns := range b.Namespaces {
		m.namespaces[ns.Name] = ns
	}
	for _, id := range b.DeletedEndpoints {
		m.remove(id)
	}
	for _, e := range b.Endpoints {
		m.put(e)
	}
	for _, id := range b.DeletedPolicies {
		delete(m.policies, id)
	}
	for _, p := range b.Policies {
		m.policies[p.ID()] = p
	}
}

// confirm holds the table and the oracle to each other.
func (m *model) confirm(t *testing.T, allowed bool, packets []string) {
	t.Helper()
	w, contested, _ := m.effective()
	for _, text := range packets {
		p := packet(text)
		if contested[p.From] || contested[p.To] {
			continue
		}
		if v := policy.Allowed(w, p); v.Allowed != allowed {
			t.Errorf("%s: the oracle says %+v", text, v)
		}
	}
}

// Trap: the same label in two namespaces has one hash, and a group that is of all namespaces is no longer found for one of them when the other goes.
func TestNamespacesOfOneHash(t *testing.T) {
	for range 50 { // of which some hash so
		s := newScene(t)
		s.engine = resolve.Collide()
		s.do(world([]*policy.Endpoint{pod("a/api", "app=api", api), pod("b/other", "app=web", other)}, ingress("p", "app=api", peers(policy.Peer{Namespaces: selects(""), Pods: selects("app=web")}))))
		s.want(true, other+" "+api+" tcp/80")
		s.do(resolve.Batch{DeletedNamespaces: []string{"b"}})
		s.do(podEvents(pod("a/web", "app=web tier=new", web)))
		s.want(true, web+" "+api+" tcp/80")
		s.want(false, other+" "+api+" tcp/80")
		inStep(t, s.engine)
		if t.Failed() {
			return
		}
	}
}

// Trap: an event that changes nothing sends nothing.
func TestApply_NoChangeSendsNothing(t *testing.T) {
	s := newScene(t)
	p := ingress("p", "app=api", peers(podsOf("app=web")), ports(named(policy.TCP, "http")))
	s.do(world(pair(), p))
	same := *p
	same.Generation = 7
	relabelled := pair()
	relabelled[0].Labels["version"] = "2"
	reordered := ingress("p", "app=api", peers(podsOf("app=web"), podsOf("app=web")), ports(named(policy.TCP, "http")))
	for name, b := range map[string]resolve.Batch{
		"all again":                   world(pair(), p),
		"another generation":          {Policies: []*policy.Policy{&same}},
		"a label nobody selects":      podEvents(relabelled...),
		"a peer twice":                {Policies: []*policy.Policy{reordered}},
		"deleted and put":             {DeletedPolicies: []string{"a/p"}, Policies: []*policy.Policy{p}},
		"pods deleted and put":        {DeletedEndpoints: []string{"a/web", "a/api"}, Endpoints: pair()},
		"a pod without address":       podEvents(pod("a/nowhere", "app=web", "")),
		"unknown ones deleted":        {DeletedPolicies: []string{"a/no"}, DeletedEndpoints: []string{"a/no"}, DeletedNamespaces: []string{"no"}},
		"a node that wires nothing":   {NodeAnnounced: []resolve.NodeAnnouncements{{Node: "node1"}}},
		"a pod that nobody selects":   podEvents(pod("b/alone", "app=alone", other)),
		"its address":                 podEvents(pod("b/alone", "app=alone", outside)),
		"namespace with other labels": {Namespaces: []policy.Namespace{{Name: "a", Labels: labels("team=red x=y")}}},
	} {
		if ch := s.do(b); len(ch.Rules)+len(ch.Groups)+len(ch.Nodes) > 0 || ch.Revision != 1 {
			t.Errorf("%s: %+v", name, ch)
		}
	}
}

// Trap: editing one rule touches that rule alone; a group is deleted and added again in one batch.
func TestEditTouchesOneRule(t *testing.T) {
	s := newScene(t)
	s.do(world(pair(), ingress("p", "app=api", peers(podsOf("app=web")), ports(port(policy.TCP, 80, 80)))))
	ch := s.do(resolve.Batch{Policies: []*policy.Policy{ingress("p", "app=api", peers(podsOf("app=web")), ports(port(policy.TCP, 81, 81)))}})
	if len(ch.Rules) != 2 || len(ch.Groups) != 0 {
		t.Errorf("one port edited: %+v", ch)
	}
	ch = s.do(resolve.Batch{DeletedPolicies: []string{"a/p"}, Policies: []*policy.Policy{ingress("q", "app=api", peers(podsOf("app=web")), ports(port(policy.TCP, 81, 81)))}})
	if len(ch.Rules) != 3 || len(ch.Groups) != 0 || len(ch.Nodes) != 0 {
		t.Errorf("renamed: only origins differ, but %+v", ch)
	}
}

// Trap: a pod moves to another node while its policy changes.
func TestMoveWhilePolicyChanges(t *testing.T) {
	s := newScene(t)
	s.do(world(append(pair(), pod("a/db", "app=db", other)), ingress("p", "app=api", peers(podsOf("app=web")))))
	moves := func(node, id, mayAsk string) {
		s.do(resolve.Batch{Endpoints: []*policy.Endpoint{pod("a/api", "app=api", api, on(node), uid(id))}, Policies: []*policy.Policy{ingress("p", "app=api", peers(podsOf(mayAsk)))}})
	}
	s.want(true, web+" "+api+" tcp/80")
	moves("node1", "second", "app=db")
	s.want(true, other+" "+api+" tcp/80")
	s.want(false, web+" "+api+" tcp/80")
	if n := s.nodes["node2"]; len(n.Rules)+len(n.Groups)+len(n.Applied) != 0 {
		t.Errorf("node2 keeps %+v", n)
	}
	moves("node2", "third", "app=web")
	s.want(true, web+" "+api+" tcp/80")
	s.want(false, other+" "+api+" tcp/80")
	if n := s.nodes["node1"]; len(n.Rules)+len(n.Groups)+len(n.Applied) != 0 {
		t.Errorf("node1 keeps %+v", n)
	}
	s.do(resolve.Batch{Endpoints: []*policy.Endpoint{pod("a/api", "app=api", api, on("node1"), uid("fourth"))}, Policies: []*policy.Policy{ingress("p", "app=api")}})
	s.want(false, web+" "+api+" tcp/80", other+" "+api+" tcp/80")
	if n := s.nodes["node2"]; len(n.Rules)+len(n.Groups)+len(n.Applied) != 0 {
		t.Errorf("node2 keeps %+v", n)
	}
}

// A pod gets its node, and then its address, after it was made; for a pod of one UID a node that changes is as good.
func TestScheduledLater(t *testing.T) {
	s := newScene(t)
	s.do(world([]*policy.Endpoint{pair()[0], pod("a/api", "app=api", "", on(""))}, ingress("p", "app=api")))
	s.do(podEvents(pod("a/api", "app=api", api, on(""))))
	if len(s.nodes) > 0 {
		t.Errorf("nodes hold %v", s.nodes)
	}
	for _, node := range []string{"node1", "node2"} {
		s.do(podEvents(pod("a/api", "app=api", api, on(node))))
		if n := s.nodes[node]; n == nil || len(n.Rules) != 1 || len(n.Applied) != 1 {
			t.Errorf("%s holds %+v", node, n)
		}
	}
	if n := s.nodes["node1"]; len(n.Rules)+len(n.Applied) > 0 {
		t.Errorf("node1 keeps %+v", n)
	}
}

// A node has nothing of policies that apply to no pod of it.
func TestSpan(t *testing.T) {
	s := newScene(t)
	s.do(world(pair(), ingress("p", "app=api", peers(podsOf("app=web"))), ingress("none", "app=none", peers(nsOf("")))))
	if n := s.nodes["node1"]; n != nil {
		t.Errorf("node1 has only a peer, but holds %+v", n)
	}
	if n := s.nodes["node2"]; len(n.Rules) != 2 || len(n.Groups) != 1 || len(n.Applied) != 1 {
		t.Errorf("node2 holds %+v", n)
	}
}

// Finished and hostNetwork pods are in no group, and their port names stand for nothing.
func TestNoMembers(t *testing.T) {
	s := newScene(t)
	ch := s.do(world([]*policy.Endpoint{pod("a/done", "app=api", api, finished, gives("http", policy.TCP, 80)), pod("a/host", "app=api", other, hostNetwork, gives("http", policy.TCP, 81))},
		ingress("p", "app=api", ports(named(policy.TCP, "http")))))
	if len(ch.Rules) > 1 || len(ch.Nodes) > 0 {
		t.Errorf("changes %+v", ch)
	}
	if v, _ := s.engine.Policy("a/p"); len(v.AppliedTo) > 0 {
		t.Errorf("applies to %v", v.AppliedTo)
	}
}
