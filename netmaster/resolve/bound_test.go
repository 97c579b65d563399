package resolve_test

import (
	"testing"

	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// A pod that the API server has bound to no node is no node's: announcements of it wait until it is bound, and count if
// they are of that node and of that pod, whatever its status has.
func TestAnnouncedBeforeThePodIsBound(t *testing.T) {
	for name, uidSaid := range map[string]string{"with its UID": "uid-late", "without a UID": ""} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			s.do(world(pair()[1:], webToAPI))
			taken := says(pod("a/late", "", "", on("evil"), uid(uidSaid)), "10.0.0.66")
			passes := func(want bool, address string) {
				t.Helper()
				s.settled()
				s.want(want, address+" "+api+" tcp/80")
			}
			s.do(announced(taken)) // before the pod is there
			s.do(podEvents(pod("a/late", "app=web", "", on(""))))
			passes(false, "10.0.0.66")
			s.do(announced(taken)) // while it is on no node
			passes(false, "10.0.0.66")
			s.do(podEvents(pod("a/late", "app=web", "", on("node2"))))
			passes(false, "10.0.0.66")
			s.do(podEvents(pod("a/late", "app=web", "10.0.0.9", on("node2"))))
			passes(false, "10.0.0.66")
			passes(true, "10.0.0.9")
			own := says(pod("a/late", "", "", on("node2")), "10.0.0.10")
			s.do(announced(own))
			s.settled("node2 a/late uid-late")
			s.want(true, "10.0.0.10 "+api+" tcp/80")
			s.want(false, "10.0.0.66 "+api+" tcp/80", "10.0.0.9 "+api+" tcp/80")
			inStep(t, s.engine)
		})
	}
}

// The announcement of a pod's own node that comes before the pod is bound is answered when it is.
func TestBindingSettles(t *testing.T) {
	s := newScene(t)
	s.do(world(append(pair()[1:], pod("a/late", "app=web", "", on(""))), webToAPI))
	s.do(announced(says(pod("a/late", "", "", on("node2")), "10.0.0.9")))
	s.settled()
	s.do(podEvents(pod("a/late", "app=web", "", on("node2"))))
	s.settled("node2 a/late uid-late")
	s.want(true, "10.0.0.9 "+api+" tcp/80")
}

// Where the API server names another node than the one that announced a pod, the announcement goes.
func TestAnnouncementEndsWhenPodMoves(t *testing.T) {
	s := newScene(t)
	p := pod("a/web", "app=web", "")
	s.do(world(append(pair()[1:], p), webToAPI))
	s.do(announced(says(p, other)))
	s.want(true, other+" "+api+" tcp/80")
	s.do(podEvents(pod("a/web", "app=web", "10.0.0.9", on("node2"))))
	s.want(false, other+" "+api+" tcp/80")
	s.want(true, "10.0.0.9 "+api+" tcp/80")
	inStep(t, s.engine)
}

// A pod that is no peer is isolated by its policies, is in no peer group, and takes nothing from a pod that has its
// address.
func TestNoPeer(t *testing.T) {
	s := newScene(t)
	none := func(e *policy.Endpoint) { e.NoPeer = true }
	p := pod("a/fake", "app=web", other, none)
	s.do(world(append(pair(), p), webToAPI, ingress("q", "app=web", peers(podsOf("app=api")))))
	s.want(false, other+" "+api+" tcp/80", outside+" "+other+" tcp/80")
	s.want(true, web+" "+api+" tcp/80", api+" "+other+" tcp/80")
	s.do(announced(says(p, web))) // the address of another pod
	s.settled("node1 a/fake uid-fake")
	s.want(true, web+" "+api+" tcp/80")
	if len(s.conflicts) > 0 {
		t.Errorf("conflicts %v", s.conflicts)
	}
	s.do(withdrawn(says(p, "")))
	s.do(resolve.Batch{DeletedEndpoints: []string{"a/fake"}})
	s.want(true, web+" "+api+" tcp/80")
	inStep(t, s.engine)
}
