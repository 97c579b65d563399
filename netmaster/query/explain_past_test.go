package query

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netmaster/history"
	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// changes makes three states: nothing denied, all denied, and db gone.
func changes(p *place) (revisions [3]uint64) {
	h := history.New(history.Config{Most: 2, Bytes: 1 << 20})
	p.cfg.History = h
	for i, b := range []resolve.Batch{{DeletedPolicies: []string{"shop/db"}},
		{Policies: []*policy.Policy{{Namespace: "shop", Name: "shut", IsolatesIngress: true}}}, {DeletedEndpoints: []string{"shop/db"}, Withdrawn: []resolve.Announcement{{Node: "node1", Namespace: "shop", Name: "db", UID: "db"}}}} {
		p.owner.engine.Apply(b)
		h.Record(p.owner.engine, &b, time.Now().Add(time.Duration(i-3)*time.Hour))
		revisions[i] = p.owner.engine.Revision()
	}
	return revisions
}

func TestExplain_PastRevision(t *testing.T) {
	p, _ := withServices(t)
	r := changes(p)
	ask := func(to string, at inspect.At) (inspect.Explained, error) {
		target, err := inspect.ParseTarget(to)
		if err != nil {
			t.Fatal(err)
		}
		return asked[inspect.Explained](p, inspect.Question{Kind: inspect.AskExplain, From: "10.9.9.9", To: &target, At: &at})
	}
	then := time.Now().Add(-90 * time.Minute)
	for name, at := range map[string]inspect.At{"revision": {Revision: r[1]}, "time": {Time: &then}, "ago": {Ago: 90 * time.Minute}} {
		x, err := ask("10.0.0.2:5432", at)
		if err != nil || x.At == nil || x.Revision != r[1] || x.At.Revision != r[1] || x.At.Until == nil ||
			len(x.Ways) != 1 || len(x.Ways[0].Traces) > 0 || !x.Ways[0].Unproved ||
			!strings.Contains(strings.Join(x.Problems, " "), "no proof") {
			t.Errorf("%s: %+v, %v", name, x, err)
		}
	}
	p.nodes.asked = nil
	if x, err := ask("svc/shop/one", inspect.At{Revision: r[1]}); err != nil || x.Service == nil || !strings.Contains(strings.Join(x.Service.Notes, " "), "as they are now") {
		t.Errorf("%+v, %v", x, err)
	}
	if len(p.nodes.asked) > 0 {
		t.Errorf("nodes were asked %+v", p.nodes.asked)
	}
	gone := time.Now().Add(-4 * time.Hour)
	for says, at := range map[string]inspect.At{"is not kept: the oldest that is, is": {Revision: r[0] - 1}, "is not there yet": {Revision: r[2] + 1}, "was in force at": {Time: &gone}} {
		if _, err := ask("shop/api:1", at); status.Code(err) != codes.NotFound || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", says, err)
		}
	}
	if _, err := ask("shop/api:1", inspect.At{}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("no time: %v", err)
	}
	p.cfg.History = nil
	if _, err := ask("shop/api:1", inspect.At{Revision: 1}); status.Code(err) != codes.Unimplemented {
		t.Errorf("no history: %v", err)
	}
}

// A pod that is gone is explained as it was, by its name.
func TestExplain_DeletedPod(t *testing.T) {
	p := twoNodes(t)
	h := history.New(history.Config{Most: 10, Bytes: 1 << 20})
	p.cfg.History = h
	apply := func(b resolve.Batch) uint64 {
		p.owner.engine.Apply(b)
		h.Record(p.owner.engine, &b, time.Now())
		return p.owner.engine.Revision()
	}
	pod := &policy.Endpoint{Namespace: "shop", Name: "brief", UID: "brief", Node: "node1", Labels: map[string]string{"app": "db"}, Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.7")}}
	apply(resolve.Batch{Namespaces: []policy.Namespace{{Name: "shop"}}})
	was := apply(resolve.Batch{Endpoints: []*policy.Endpoint{pod}, Policies: []*policy.Policy{{Namespace: "shop", Name: "shut", AppliedTo: is("app", "db"), IsolatesIngress: true}}})
	apply(resolve.Batch{DeletedEndpoints: []string{"shop/brief"}})
	target := inspect.Target{Name: "shop/brief", Port: "80"}
	x, err := asked[inspect.Explained](p, inspect.Question{Kind: inspect.AskExplain, From: "world", To: &target, At: &inspect.At{Revision: was}})
	if err != nil || len(x.Ways) != 1 || x.Ways[0].Allowed || x.Ways[0].Ingress.Isolating()[0] != "shop/shut" {
		t.Errorf("%+v, %v", x, err)
	}
	if _, err := asked[inspect.Explained](p, inspect.Question{Kind: inspect.AskExplain, From: "world", To: &target}); status.Code(err) != codes.NotFound {
		t.Errorf("now: %v", err)
	}
	if st, err := asked[inspect.Status](p, inspect.Question{Kind: inspect.AskStatus}); err != nil || st.History == nil || st.History.Changes != 2 {
		t.Errorf("%+v, %v", st.History, err)
	}
}

// A namespace that changed more than is kept is named, in the answer and where its pod is the question.
func TestExplain_NamesDroppedHistory(t *testing.T) {
	p := twoNodes(t)
	h := history.New(history.Config{Most: 10, Bytes: 8 << 10})
	p.cfg.History = h
	var began time.Time
	for i, label := range []string{"", strings.Repeat("x", 2000), ""} {
		b := resolve.Batch{Endpoints: []*policy.Endpoint{{
			Namespace: "wide",
			Name:      "pod",
			Node:      "node1",
			Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.8")},
			Labels:    map[string]string{"app": label},
		}}}
		p.owner.engine.Apply(b)
		at := time.Now().Add(time.Duration(i-3) * time.Hour)
		if h.Record(p.owner.engine, &b, at); i == 1 {
			began = at
		}
	}
	explained := func(from string) (inspect.Explained, error) {
		target := inspect.Target{Name: "10.0.0.9", Port: "80"}
		q := inspect.Question{Kind: inspect.AskExplain, From: from, To: &target, At: &inspect.At{Time: &began}}
		return asked[inspect.Explained](p, q)
	}
	x, err := explained("10.0.0.8")
	if err != nil || !strings.Contains(strings.Join(x.Problems, " "), "kept for 1 namespaces, wide") {
		t.Errorf("%q, %v", x.Problems, err)
	}
	_, err = explained("wide/pod")
	if status.Code(err) != codes.NotFound || !strings.Contains(err.Error(), "is not kept") {
		t.Error(err)
	}
}
