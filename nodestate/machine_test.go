package nodestate

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/flowkeep/flowkeep/nodestate/api/v1"
	"github.com/flowkeep/flowkeep/nodestate/nmstate"
)

var noon = time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)

func TestDecide(t *testing.T) {
	current := parse(t, `{interfaces: [{name: eth0, type: ethernet, mtu: 1500}]}`)
	same, other := parse(t, `{interfaces: [{name: eth0, mtu: 1500}]}`), parse(t, `{interfaces: [{name: eth0, mtu: 1400}]}`)
	object := func(desired nmstate.State) *Object {
		return &Object{UID: "u", Managed: true, Desired: desired, Desire: fmt.Sprint(desired)}
	}
	knows := func(desired nmstate.State, more Memory) Memory {
		more.UID, more.Desire, more.Adopted = "u", fmt.Sprint(desired), true
		return more
	}
	unmanaged, unreadable := object(other), object(other)
	unmanaged.Managed, unreadable.DesiredErr = false, errors.New("no")
	later := noon.Add(time.Minute)
	for name, c := range map[string]struct {
		m    Memory
		o    Observation
		want Action
	}{
		"no object":                    {Memory{}, Observation{}, Action{Kind: Create}},
		"nothing desired":              {Memory{}, Observation{Object: object(nil)}, Action{Kind: Report}},
		"unmanaged":                    {Memory{}, Observation{Object: unmanaged}, Action{Kind: Silence}},
		"new desire":                   {Memory{}, Observation{Object: object(other)}, Action{Kind: Enforce}},
		"new desire, already so":       {Memory{}, Observation{Object: object(same)}, Action{Kind: Enforce}}, // the backend is to say whether it can be had
		"in sync":                      {knows(same, Memory{Checked: true}), Observation{Object: object(same)}, Action{Kind: Report}},
		"drift":                        {knows(other, Memory{Checked: true}), Observation{Object: object(other)}, Action{Kind: Enforce}},
		"drift, too early":             {knows(other, Memory{Checked: true, Next: later}), Observation{Object: object(other)}, Action{Kind: Report, Wake: later}},
		"failed, too early":            {knows(other, Memory{Failures: 3, Next: later}), Observation{Object: object(other)}, Action{Kind: Report, Wake: later}},
		"failed, due":                  {knows(other, Memory{Failures: 3, Next: noon}), Observation{Object: object(other)}, Action{Kind: Enforce}},
		"failed, another desire":       {knows(other, Memory{Failures: 3, Next: later}), Observation{Object: object(same)}, Action{Kind: Enforce}},
		"can't be read":                {knows(other, Memory{}), Observation{Object: object(other), ShowErr: errors.New("no")}, Action{Kind: Report}},
		"desire can't be read":         {Memory{}, Observation{Object: unreadable}, Action{Kind: Report}},
		"left open, due":               {knows(other, Memory{Open: true, Next: noon}), Observation{Object: object(other)}, Action{Kind: Restore}},
		"left open, too early":         {knows(other, Memory{Open: true, Next: later}), Observation{Object: object(other)}, Action{Kind: Report, Wake: later}},
		"left open, another desire":    {knows(other, Memory{Open: true, Next: later}), Observation{Object: object(same)}, Action{Kind: Report, Wake: later}},
		"left open, no object":         {Memory{Open: true, Next: later}, Observation{}, Action{Kind: Create, Wake: later}},
		"left open, unmanaged":         {Memory{Open: true, Next: later}, Observation{Object: unmanaged}, Action{Kind: Silence, Wake: later}},
		"left open, unmanaged and due": {Memory{Open: true, Next: noon}, Observation{Object: unmanaged}, Action{Kind: Restore}},
	} {
		c.o.Now, c.o.Current = noon, current
		if _, got := Decide(c.m, c.o); got != c.want {
			t.Errorf("%s: %+v, not %+v", name, got, c.want)
		}
	}
	superseded := Conclude(knows(other, Memory{Failures: 3, Next: later}), Result{Outcome: v1.OutcomeRolledBack, Superseded: true}, noon, 0)
	for what, desired := range map[string]nmstate.State{"the desire that came": same, "the same desire again": other} {
		if _, got := Decide(superseded, Observation{Now: noon, Object: object(desired), Current: current}); got.Kind != Enforce {
			t.Errorf("after an attempt was superseded, %s waits: %+v", what, got)
		}
	}
	stuck := Conclude(Memory{}, Result{Outcome: v1.OutcomePartial, Superseded: true}, noon, 0)
	if _, got := Decide(stuck, Observation{Now: noon, Object: object(same), Current: current}); got.Kind != Report || !got.Wake.After(noon) {
		t.Errorf("what could not be rolled back for another desire is built upon: %+v", got)
	}
	m, _ := Decide(knows(other, Memory{Failures: 3, Next: later}), Observation{Now: noon, Object: unmanaged})
	if _, got := Decide(m, Observation{Now: noon, Object: object(other), Current: current}); got.Kind != Enforce {
		t.Errorf("managed again, it waits for what was before: %+v", got)
	}
}

// Whatever happens, in whatever order: nothing is enforced for an unmanaged node, for none, before its time, or over what is half undone;
// failures and history are bounded; and deciding twice is deciding once.
func TestDecideAlways(t *testing.T) {
	states := []nmstate.State{
		nil, parse(t, `{interfaces: [{name: eth0, mtu: 1500}]}`), parse(t, `{interfaces: [{name: eth0, mtu: 1400}]}`), parse(t, `{interfaces: [{name: eth1, mtu: 9000}]}`),
	}
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 1))
		m, now := Memory{}, noon
		for range 60 {
			now = now.Add(time.Duration(r.IntN(90)) * time.Second)
			o := Observation{Now: now, Current: parse(t, `{interfaces: [{name: eth0, type: ethernet, mtu: 1500}]}`)}
			if desired := states[r.IntN(len(states))]; r.IntN(8) > 0 {
				o.Object = &Object{UID: fmt.Sprint("u", r.IntN(20)/19), Managed: r.IntN(6) > 0, Desired: desired, Desire: fmt.Sprint(desired), Generation: 1}
			}
			var a, again Action
			m, a = Decide(m, o)
			held := m
			if m, again = Decide(m, o); a != again || m.Failures != held.Failures || len(m.History) != len(held.History) {
				t.Fatalf("seed %d: %+v and then %+v", seed, a, again)
			}
			enforced := a.Kind == Enforce
			if enforced && (o.Object == nil || !o.Object.Managed || o.Object.Desired == nil || m.Open || now.Before(m.Next)) {
				t.Fatalf("seed %d: %+v of %+v with %+v", seed, a, o.Object, m)
			}
			if !a.Wake.IsZero() && a.Wake.Before(now) {
				t.Fatalf("seed %d: to be woken %v ago", seed, now.Sub(a.Wake))
			}
			if enforced || a.Kind == Restore {
				outcomes := []v1.Outcome{v1.OutcomeApplied, v1.OutcomeFailed, v1.OutcomeRolledBack, v1.OutcomePartial}
				failures, superseded := m.Failures, r.IntN(4) == 0
				m = Conclude(m, Result{Outcome: outcomes[r.IntN(4)], Superseded: superseded, Generation: 1, Steps: slices.Repeat([]string{"s"}, r.IntN(2)), Message: fmt.Sprint(r.IntN(5))}, now, r.Float64())
				if superseded && m.Last.Outcome != v1.OutcomeApplied && !m.Open && (m.Failures != failures || !m.Next.IsZero()) {
					t.Fatalf("seed %d: what was superseded counts as a failure: %+v", seed, m)
				}
				if m.Next.After(now.Add(lastRetry * 6 / 5)) {
					t.Fatalf("seed %d: the next attempt is %v away", seed, m.Next.Sub(now))
				}
			}
			if len(m.History) > v1.HistoryLimit {
				t.Fatalf("history of %d", len(m.History))
			}
		}
	}
}

func TestCourseOfAnAttempt(t *testing.T) {
	begun := Object{UID: "u", Managed: true, Desire: "a"}
	with := func(change func(o *Object)) *Object { o := begun; change(&o); return &o }
	for name, c := range map[string]struct {
		now  *Object
		want course
	}{
		"the same":                     {with(func(o *Object) { o.Generation = 7 }), goOn},
		"another desire":               {with(func(o *Object) { o.Desire = "b" }), hurry},
		"nothing desired":              {with(func(o *Object) { o.Desire = "" }), hurry},
		"unmanaged":                    {with(func(o *Object) { o.Managed = false }), breakOff},
		"unmanaged and another desire": {with(func(o *Object) { o.Managed, o.Desire = false, "b" }), breakOff},
		"another object":               {with(func(o *Object) { o.UID = "v" }), breakOff},
		"none":                         {nil, breakOff},
	} {
		if got := courseOf(begun, c.now); got != c.want {
			t.Errorf("%s: %d, not %d", name, got, c.want)
		}
	}
}

func TestBackoff(t *testing.T) {
	for failures, want := range map[int]time.Duration{0: 5 * time.Second, 1: 5 * time.Second, 2: 10 * time.Second, 5: 80 * time.Second, 7: lastRetry, 31: lastRetry, 64: lastRetry, 1 << 30: lastRetry} {
		low, middle, high := Backoff(firstRetry, lastRetry, failures, 0), Backoff(firstRetry, lastRetry, failures, 0.5), Backoff(firstRetry, lastRetry, failures, 0.999)
		if middle != want || low != want*8/10 || high <= middle || high > want*12/10 {
			t.Errorf("after %d failures %v, %v, %v", failures, low, middle, high)
		}
	}
}

func TestTextsAreBounded(t *testing.T) {
	m := Memory{}
	for i := range 100 {
		m = Conclude(m, Result{Outcome: v1.OutcomeFailed, Message: fmt.Sprint(i, strings.Repeat("ä", 5000)), Steps: slices.Repeat([]string{strings.Repeat("ö", 5000)}, 1000)}, noon, 0)
	}
	text, err := json.Marshal(m.History)
	if err != nil || len(text) > 200<<10 || !strings.Contains(string(text), "and 951 more") {
		t.Errorf("%d bytes, %v: %.200s", len(text), err, text[len(text)-200:])
	}
	if strings.Contains(string(text), `\ufffd`) {
		t.Error("a character was cut in two")
	}
	s, err := StatusOf(m, Observation{Now: noon, Object: &Object{}}, Facts{})
	if err != nil || len(s.Conditions[0].Message) > textLength {
		t.Errorf("%v: %d bytes", err, len(s.Conditions[0].Message))
	}
}

// 1,500 interfaces are reported, or truncated and said to be.
func TestManyInterfacesFit(t *testing.T) {
	for _, count := range []int{1500, 20000} {
		var all []any
		for i := range count {
			all = append(all, map[string]any{
				"name": fmt.Sprintf("br-tenant%d", i), "type": "linux-bridge", "state": "up", "mtu": int64(1500), "mac-address": fmt.Sprintf("02:00:00:00:%02x:%02x", i>>8&255, i&255),
				"ipv4": map[string]any{"enabled": true, "dhcp": false, "address": []any{map[string]any{"ip": fmt.Sprintf("10.%d.%d.1", i>>8&255, i&255), "prefix-length": int64(24)}}},
			})
		}
		s, err := StatusOf(Memory{}, Observation{Now: noon, Object: &Object{}, Current: nmstate.State{"interfaces": all}}, Facts{Bridge: "fk0"})
		if err != nil {
			t.Fatal(err)
		}
		if len(s.CurrentState.Raw) > nmstate.ReportLimit || int(s.Interfaces) != count || s.Truncated != (count > 1500) {
			t.Errorf("%d interfaces: %d bytes, says %d, truncated %v", count, len(s.CurrentState.Raw), s.Interfaces, s.Truncated)
		}
	}
}

// A large desire leaves less room to the report, so that the API server takes both.
func TestReportHasTheRoomThatTheDesireLeaves(t *testing.T) {
	var all []any
	for i := range 20000 {
		all = append(all, map[string]any{"name": fmt.Sprintf("br-tenant%d", i), "type": "linux-bridge", "state": "up", "mtu": int64(1500)})
	}
	for _, size := range []int{0, 500 << 10, 1000 << 10, 1300 << 10} {
		s, err := StatusOf(Memory{}, Observation{Now: noon, Object: &Object{Size: size}, Current: nmstate.State{"interfaces": all}}, Facts{Bridge: "fk0"})
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(s)
		if total := size + len(text); err != nil || total > nmstate.ObjectLimit || !s.Truncated || total < min(nmstate.ReportLimit+size, nmstate.ObjectLimit)-1000 {
			t.Errorf("with %d bytes of desire the object has %d, truncated: %v", size, total, s.Truncated)
		}
	}
}

func TestGatewayThatTheDesireRemoves(t *testing.T) {
	const before = `{routes: {running: [
		{destination: 0.0.0.0/0, next-hop-address: 192.0.2.1, next-hop-interface: eth0, metric: 100},
		{destination: 0.0.0.0/0, next-hop-address: 192.0.2.2, next-hop-interface: eth0, metric: 200},
		{destination: "::/0", next-hop-address: "fe80::1", next-hop-interface: eth0}]}}`
	const left = `{routes: {running: [{destination: 0.0.0.0/0, next-hop-address: 192.0.2.2, next-hop-interface: eth0, metric: 200}]}}`
	for name, c := range map[string]struct {
		desired, current string
		want             bool
	}{
		"all by destination":            {`{routes: {config: [{state: absent, destination: 0.0.0.0/0}]}}`, `{}`, true},
		"each by address":               {`{routes: {config: [{state: absent, destination: 0.0.0.0/0, next-hop-address: 192.0.2.1}, {state: absent, destination: 0.0.0.0/0, next-hop-address: 192.0.2.2}]}}`, `{}`, true},
		"one of two, and none is left":  {`{routes: {config: [{state: absent, destination: 0.0.0.0/0, next-hop-address: 192.0.2.1}]}}`, `{}`, false},
		"all, and one is there":         {`{routes: {config: [{state: absent, destination: 0.0.0.0/0}]}}`, left, false},
		"by interface":                  {`{routes: {config: [{state: absent, next-hop-interface: eth0}]}}`, `{}`, false},
		"of the other family":           {`{routes: {config: [{state: absent, destination: "::/0"}]}}`, `{}`, false},
		"not absent":                    {`{routes: {config: [{destination: 0.0.0.0/0, next-hop-address: 192.0.2.9, next-hop-interface: eth0}]}}`, `{}`, false},
		"with an address that it needs": {`{interfaces: [{name: eth0, ipv4: {enabled: false}}]}`, `{}`, false},
	} {
		if got := Gateways()[0].Waived(parse(t, c.desired), parse(t, before), parse(t, c.current)); got != c.want {
			t.Errorf("%s: waived %v", name, got)
		}
	}
}

func TestGatewaysInForce(t *testing.T) {
	s := parse(t, `{routes: {running: [
		{destination: 0.0.0.0/0, next-hop-address: 192.0.2.1, next-hop-interface: eth0, metric: 10},
		{destination: 0.0.0.0/0, next-hop-address: 192.0.2.7, next-hop-interface: eth1, metric: 100},
		{destination: 0.0.0.0/0, next-hop-address: 192.0.2.8, next-hop-interface: eth1, metric: 1, table-id: 100},
		{destination: 0.0.0.0/0, next-hop-address: 0.0.0.0, next-hop-interface: tun0},
		{destination: 198.51.100.0/24, next-hop-address: 192.0.2.2, next-hop-interface: eth0},
		{destination: "::/0", next-hop-address: "fe80::1", next-hop-interface: eth0, table-id: 254, metric: 1024},
		{destination: "::/0", next-hop-address: "2001:db8::1", next-hop-interface: eth0, metric: 1024}]}}`)
	for everything, want := range map[string][]hop{
		"0.0.0.0/0": {{netip.MustParseAddr("192.0.2.1"), "eth0"}},
		"::/0":      {{netip.MustParseAddr("fe80::1%eth0"), "eth0"}, {netip.MustParseAddr("2001:db8::1"), "eth0"}},
	} {
		if got := gatewaysInForce(s, everything); !slices.Equal(got, want) {
			t.Errorf("%s: %v", everything, got)
		}
	}
	if got := gatewaysInForce(nil, "::/0"); got != nil {
		t.Error(got)
	}
}
