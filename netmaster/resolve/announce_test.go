package resolve_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// says is a node's announcement of a pod.
func says(e *policy.Endpoint, addresses string) resolve.Announcement {
	a := resolve.Announcement{Node: e.Node, Namespace: e.Namespace, Name: e.Name, UID: e.UID}
	for _, text := range strings.Fields(addresses) {
		a.Addresses = append(a.Addresses, netip.MustParseAddr(text))
	}
	return a
}

func announced(a ...resolve.Announcement) resolve.Batch { return resolve.Batch{Announced: a} }

func withdrawn(a ...resolve.Announcement) resolve.Batch { return resolve.Batch{Withdrawn: a} }

func (s *scene) settled(want ...string) {
	s.t.Helper()
	var got []string
	for _, e := range s.last.Settled {
		got = append(got, e.Node+" "+e.ID+" "+e.UID)
	}
	if strings.Join(got, ",") != strings.Join(want, ",") {
		s.t.Errorf("settled %v, want %v", got, want)
	}
}

var webToAPI = ingress("p", "app=api", peers(podsOf("app=web")))

func TestAnnouncedBeforeThePodIsKnown(t *testing.T) {
	s := newScene(t)
	s.do(world(nil, webToAPI))
	p := pod("a/api", "app=api", "", on("node2"))
	s.do(announced(says(p, api)))
	s.settled()
	s.do(podEvents(pod("a/api", "app=api", "", on("node2"), uid("before"))))
	s.settled()
	s.do(podEvents(p))
	s.settled("node2 a/api uid-api")
	s.want(false, web+" "+api+" tcp/80")
}

func TestAnnouncedSettlesWithoutAnyChange(t *testing.T) {
	s := newScene(t)
	p := pod("b/free", "app=x", "")
	s.do(world([]*policy.Endpoint{p}, webToAPI))
	before := s.engine.Revision()
	s.do(announced(says(p, other)))
	s.settled("node1 b/free uid-free")
	if s.engine.Revision() != before {
		t.Errorf("revision %d after %d", s.engine.Revision(), before)
	}
	s.do(announced(says(p, other)))
	s.settled("node1 b/free uid-free")
}

func TestAnnouncedBeatsStatus(t *testing.T) {
	s := newScene(t)
	old, now := pod("a/old", "app=web", web), pod("a/now", "app=x", "")
	s.do(world([]*policy.Endpoint{old, now, pair()[1]}, webToAPI))
	s.want(true, web+" "+api+" tcp/80")
	s.do(announced(says(now, web)))
	s.want(false, web+" "+api+" tcp/80")
	s.do(withdrawn(says(now, "")))
	s.want(true, web+" "+api+" tcp/80")
	if len(s.conflicts) > 0 {
		t.Errorf("conflicts %v", s.conflicts)
	}
}

// The node's word replaces the status, whatever the API says later; and the word that the pod is unwired holds until the
// pod is another or wired anew.
func TestWithdrawn_StaysFreeDespiteStatus(t *testing.T) {
	s := newScene(t)
	p := pod("a/web", "app=web", web)
	s.do(world([]*policy.Endpoint{p, pair()[1]}, webToAPI))
	s.do(announced(says(p, other)))
	s.want(true, other+" "+api+" tcp/80")
	s.want(false, web+" "+api+" tcp/80")
	s.do(withdrawn(says(p, "")))
	s.do(podEvents(pod("a/web", "app=web", web, terminating)))
	s.want(false, web+" "+api+" tcp/80", other+" "+api+" tcp/80")
	s.do(podEvents(pod("a/next", "app=x", web)))
	s.want(false, web+" "+api+" tcp/80")
	s.do(announced(says(p, other)))
	s.want(true, other+" "+api+" tcp/80")
	s.do(withdrawn(says(p, "")))
	s.do(podEvents(pod("a/web", "app=web", other, uid("second"))))
	s.want(true, other+" "+api+" tcp/80")
}

func TestWithdrawn_OtherNodeOrUIDIsIgnored(t *testing.T) {
	s := newScene(t)
	p := pod("a/web", "app=web", web)
	s.do(world([]*policy.Endpoint{p, pair()[1]}, webToAPI))
	s.do(withdrawn(says(pod("a/web", "", "", on("node9")), "")))
	s.want(true, web+" "+api+" tcp/80")
	s.do(announced(says(p, other)))
	s.do(withdrawn(says(pod("a/web", "", "", uid("before")), "")))
	s.do(resolve.Batch{NodeAnnounced: []resolve.NodeAnnouncements{{Node: "node9"}}})
	s.want(true, other+" "+api+" tcp/80")
}

// A node cannot speak of pods that run elsewhere, not even in the place of the node that waits for them.
func TestAnnouncedByOtherNode(t *testing.T) {
	s := newScene(t)
	p := pod("a/web", "app=web", web)
	s.do(world([]*policy.Endpoint{p, pair()[1]}, webToAPI))
	s.do(announced(says(pod("a/web", "", "", on("node9")), other)))
	s.settled()
	s.want(false, other+" "+api+" tcp/80")
	s.want(true, web+" "+api+" tcp/80")
	late := pod("a/late", "app=web", "")
	s.do(announced(says(late, "10.0.0.9")))
	s.do(announced(says(pod("a/late", "", "", on("node9")), "10.0.0.8")))
	s.do(podEvents(late))
	s.settled("node1 a/late uid-late")
	s.want(true, "10.0.0.9 "+api+" tcp/80")
	s.want(false, "10.0.0.8 "+api+" tcp/80")
}

// A pod that is deleted by force, and perhaps made again, runs on until its node has ended it: it stays isolated.
func TestDeletedButStillAttached(t *testing.T) {
	s := newScene(t)
	p := pod("a/db-0", "app=db", "")
	s.do(world(append(pair(), p), ingress("q", "app=db", peers(podsOf("app=api")))))
	s.do(announced(says(p, other)))
	s.want(false, web+" "+other+" tcp/80")
	s.do(resolve.Batch{DeletedEndpoints: []string{"a/db-0"}})
	s.want(false, web+" "+other+" tcp/80")
	s.want(true, api+" "+other+" tcp/80")
	next := pod("a/db-0", "app=db", "", on("node2"), uid("second"))
	s.do(podEvents(next))
	s.do(announced(says(next, "10.0.0.9")))
	s.settled("node2 a/db-0 second")
	s.want(false, web+" "+other+" tcp/80", web+" 10.0.0.9 tcp/80")
	s.want(true, api+" "+other+" tcp/80", api+" 10.0.0.9 tcp/80")
	s.do(withdrawn(says(p, "")))
	s.want(true, web+" "+other+" tcp/80")
	s.want(false, web+" 10.0.0.9 tcp/80")
}

// A node's hello replaces what it announced earlier, also what waits for its pod.
func TestHelloReplaces(t *testing.T) {
	s := newScene(t)
	web1, web2, api1 := pod("a/web1", "app=web", ""), pod("a/web2", "app=web", ""), pair()[1]
	s.do(world([]*policy.Endpoint{web1, web2, api1}, webToAPI))
	s.do(announced(says(web1, web), says(web2, other), says(pod("a/late", "", ""), outside)))
	s.want(true, web+" "+api+" tcp/80", other+" "+api+" tcp/80")
	s.do(resolve.Batch{NodeAnnounced: []resolve.NodeAnnouncements{{Node: "node1", All: []resolve.Announcement{says(web2, other)}}}})
	s.settled("node1 a/web2 uid-web2")
	s.want(false, web+" "+api+" tcp/80")
	s.want(true, other+" "+api+" tcp/80")
	s.do(podEvents(pod("a/late", "app=web", "")))
	s.settled()
	s.want(false, outside+" "+api+" tcp/80")
}

// Who has not heard of nodes for a while forgets what they said: pods have the addresses that the API server has of them, whether their nodes
// announced others or took them back, and who was deleted is nobody.
func TestForgetAnnouncements(t *testing.T) {
	s := newScene(t)
	web1, free, gone, api1 := pod("a/web1", "app=web", web), pod("a/free", "app=web", other), pod("a/gone", "app=web", ""), pair()[1]
	s.do(world([]*policy.Endpoint{web1, free, gone, api1}, webToAPI))
	s.do(announced(says(web1, "10.0.0.77"), says(free, other), says(gone, outside), says(pod("a/late", "", ""), "10.0.0.78")))
	s.do(withdrawn(says(free, "")))
	s.do(resolve.Batch{DeletedEndpoints: []string{"a/gone"}})
	s.want(true, "10.0.0.77 "+api+" tcp/80", outside+" "+api+" tcp/80")
	s.want(false, web+" "+api+" tcp/80", other+" "+api+" tcp/80")
	s.do(resolve.Batch{ForgetAnnouncements: true})
	s.want(true, web+" "+api+" tcp/80", other+" "+api+" tcp/80")
	s.want(false, "10.0.0.77 "+api+" tcp/80", outside+" "+api+" tcp/80")
	s.do(podEvents(pod("a/late", "app=web", "")))
	s.settled()
	s.do(announced(says(web1, "10.0.0.77")))
	s.settled("node1 a/web1 uid-web1")
	s.want(true, "10.0.0.77 "+api+" tcp/80")
	s.want(false, web+" "+api+" tcp/80")
}

// Two living pods with one address: it is nobody's as a peer and isolated for both; told once; ends when one lets go.
func TestContested(t *testing.T) {
	s := newScene(t)
	s.do(world(append(pair(), pod("a/twin", "app=x", web, on("node2"))), webToAPI, ingress("q", "app=web"), ingress("r", "app=x", peers(podsOf("app=api")))))
	if len(s.conflicts) != 1 || s.conflicts[0].Address.String() != web || strings.Join(s.conflicts[0].Endpoints, " ") != "a/twin a/web" {
		t.Errorf("conflicts %v", s.conflicts)
	}
	s.want(false, web+" "+api+" tcp/80")
	for node, want := range map[string]int{"node1": 1, "node2": 2} {
		if n := s.nodes[node]; len(n.Applied) != want {
			t.Errorf("%s has appliedTo groups %v, want %d", node, n.Applied, want)
		}
	}
	if v, _ := s.engine.Endpoint("a/web"); len(v.Contested) != 1 {
		t.Errorf("endpoint %+v", v)
	}
	s.do(podEvents(pod("a/twin", "app=x", web, on("node2"))))
	if len(s.conflicts) != 1 {
		t.Errorf("told again: %v", s.conflicts)
	}
	s.do(podEvents(pod("a/twin", "app=x", web, on("node2"), terminating)))
	s.want(true, web+" "+api+" tcp/80")
	s.do(podEvents(pod("a/twin", "app=x", web, on("node2"))))
	if len(s.conflicts) != 2 {
		t.Errorf("a new conflict is not told: %v", s.conflicts)
	}
}

// A kubelet may say of all its pods that they have one address. That is one conflict, and no more work than their number.
func TestManyClaimOneAddress(t *testing.T) {
	s := newScene(t)
	b := world(pair(), webToAPI, ingress("all", ""))
	for i := range 2000 {
		b.Endpoints = append(b.Endpoints, pod(fmt.Sprintf("a/twin%d", i), "app=web", other))
	}
	s.do(b)
	if len(s.conflicts) != 1 || len(s.conflicts[0].Endpoints) != 2000 {
		t.Errorf("%d conflicts", len(s.conflicts))
	}
	s.want(false, other+" "+api+" tcp/80", web+" "+other+" tcp/80")
	b.DeletedEndpoints, b.Endpoints = nil, nil
	for i := range 1999 {
		b.DeletedEndpoints = append(b.DeletedEndpoints, fmt.Sprintf("a/twin%d", i))
	}
	s.do(b)
	s.want(true, other+" "+api+" tcp/80")
	if len(s.conflicts) != 1 {
		t.Errorf("conflicts %v", s.conflicts)
	}
}

// An address that is not the node's to give out is isolated there as the pod's policies say, and is nobody's peer; it takes nothing from who has it, also
// where that one is on the same node, and is as others when it is the node's again.
func TestForeign(t *testing.T) {
	s := newScene(t)
	p, twin := pod("a/db-0", "app=db", other), pod("a/twin", "app=db", "")
	s.do(world(append(pair(), p, twin), webToAPI, ingress("q", "app=db", peers(podsOf("app=api"))), egress("r", "app=db"), ingress("s", "app=web", peers(podsOf("app=db")))))
	foreign := func(e *policy.Endpoint, addresses string, these ...string) resolve.Announcement {
		a := says(e, addresses)
		for _, text := range these {
			a.Foreign = append(a.Foreign, netip.MustParseAddr(text))
		}
		return a
	}
	isolated := func() {
		t.Helper()
		s.want(false, web+" "+other+" tcp/80", other+" "+web+" tcp/80", other+" "+outside+" tcp/80")
	}
	isolated()
	now := foreign(p, other, other)
	s.do(announced(now))
	s.settled()
	isolated()
	s.want(true, api+" "+other+" tcp/80")
	for key, members := range s.groups {
		if _, there := members[netip.MustParseAddr(other)]; there {
			t.Errorf("a foreign address is in peer group %s", key)
		}
	}
	if v, _ := s.engine.Endpoint("a/db-0"); len(v.Addresses) != 0 || len(v.Foreign) != 1 {
		t.Errorf("endpoint %+v", v)
	}
	if w := s.engine.WorldOf(netip.MustParseAddr(other)); len(w.Endpoints) > 0 {
		t.Errorf("held by %+v", w.Endpoints)
	}
	s.do(announced(foreign(twin, other+" "+web, other, web)))
	s.want(false, other+" "+api+" tcp/80", web+" "+api+" tcp/80")
	if v, _ := s.engine.Endpoint("a/web"); len(v.Contested) > 0 || len(s.conflicts) > 0 {
		t.Errorf("contested: %+v, %v", v, s.conflicts)
	}
	s.do(withdrawn(says(twin, "")))
	s.want(true, web+" "+api+" tcp/80")
	isolated()
	now.Foreign = nil
	s.do(resolve.Batch{Reassessed: []resolve.Announcement{now, says(twin, outside)}})
	s.settled()
	isolated()
	if w := s.engine.WorldOf(netip.MustParseAddr(other)); len(w.Endpoints) != 1 {
		t.Errorf("held by %+v", w.Endpoints)
	}
	s.do(resolve.Batch{DeletedEndpoints: []string{"a/db-0"}})
	now.Foreign = now.Addresses
	s.do(resolve.Batch{Reassessed: []resolve.Announcement{now}})
	isolated()
	s.do(withdrawn(now))
	s.want(true, web+" "+other+" tcp/80", other+" "+outside+" tcp/80")
	inStep(t, s.engine)
}

// Anybody who may create pods may give one the UID of another, as the mirror pod of a static pod has its kubelet's: it is that of its own name, and takes
// nothing from others of this UID, whether they are there or still wired.
func TestTwoPodsOfOneUID(t *testing.T) {
	s := newScene(t)
	p, fake := pod("a/db-0", "app=db", "", uid("one")), pod("a/fake", "app=web", "", uid("one"))
	s.do(world(append(pair(), p), ingress("q", "app=db", peers(podsOf("app=api")))))
	s.do(announced(says(p, other)))
	s.do(podEvents(fake))
	s.settled()
	judged := func() {
		t.Helper()
		s.want(false, web+" "+other+" tcp/80")
		s.want(true, api+" "+other+" tcp/80")
	}
	judged()
	s.do(resolve.Batch{DeletedEndpoints: []string{"a/fake"}})
	judged()
	s.do(resolve.Batch{DeletedEndpoints: []string{"a/db-0"}})
	s.do(podEvents(fake))
	s.settled()
	judged()
	s.do(announced(says(fake, "10.0.0.9")))
	s.settled("node1 a/fake one")
	s.do(withdrawn(says(fake, "")))
	judged()
}
