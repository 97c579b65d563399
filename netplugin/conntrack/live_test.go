package conntrack

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

func addrs(list ...string) map[netip.Addr]struct{} {
	set := map[netip.Addr]struct{}{}
	for _, a := range list {
		set[netip.MustParseAddr(a)] = struct{}{}
	}
	return set
}

func TestSumUp(t *testing.T) {
	conn := func(from, to string, sport, dport uint16) Tuple {
		return Tuple{Protocol: policy.TCP, Src: netip.MustParseAddr(from), Dst: netip.MustParseAddr(to), SrcPort: sport, DstPort: dport}
	}
	live := []Tuple{conn("10.0.0.2", "10.0.0.1", 1, 80), conn("10.0.0.2", "10.0.0.1", 2, 80), conn("10.0.0.3", "10.0.0.1", 3, 80), conn("10.0.0.2", "10.0.0.1", 4, 81),
		conn("10.0.0.9", "10.0.0.1", 5, 80), conn("10.0.0.1", "10.0.0.1", 6, 80), conn("10.0.0.1", "10.0.0.5", 7, 80), conn("10.0.0.4", "10.0.0.5", 8, 80)}
	w := Wanted{To: addrs("10.0.0.1"), From: addrs("10.0.0.4"), Node: addrs("10.0.0.9")}
	sums, more := SumUp(live, w, 3)
	if len(sums) != 3 || sums[0].Count != 2 || sums[0].Example.SrcPort != 1 || more != 1 {
		t.Errorf("%+v and %d more", sums, more)
	}
	if sums, more = SumUp(live, w, 9); len(sums) != 4 || more != 0 {
		t.Errorf("%+v and %d more", sums, more)
	}
}

// However often somebody asks, the switch is left alone for a while after each look.
func TestLiveLeavesTheSwitchAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		looks, look := 0, 20*time.Millisecond
		c := New(configured(lookFunc(func() string {
			looks++
			time.Sleep(look)
			return "tcp,orig=(src=10.0.0.2,dst=10.0.0.1,sport=1,dport=80),state=ESTABLISHED\ntcp,orig=(src=10.0.0.2,dst=10.0.0.1,sport=1,dport=81),state=TIME_WAIT\n"
		})))
		live, err := c.Live(t.Context())
		if err != nil || len(live) != 1 {
			t.Fatalf("%v, %v", live, err)
		}
		looked := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), rest*look-1)
		defer cancel()
		if _, err := c.Live(ctx); err == nil || !strings.Contains(err.Error(), "not read again") || looks != 1 {
			t.Errorf("%v after %d looks", err, looks)
		}
		if _, err := c.Live(t.Context()); err != nil || looks != 2 || time.Since(looked) != rest*look+look {
			t.Errorf("%v after %d looks and %v", err, looks, time.Since(looked))
		}
	})
}

type lookFunc func() string

func (f lookFunc) Settled(context.Context) error                     { return nil }
func (f lookFunc) Dump(context.Context, uint16) (string, error)      { return f(), nil }
func (f lookFunc) Forget(context.Context, []ofctl.Connections) error { return nil }
