package conntrack

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// Wanted is which connections are to be summed up: those to an address of To, those from one of From, but never those
// that an address of Node began.
type Wanted struct{ To, From, Node map[netip.Addr]struct{} }

// Sum is the connections between two addresses to one port.
type Sum struct {
	Protocol policy.Protocol
	Src, Dst netip.Addr
	DstPort  uint16
	Count    int
	Example  Tuple
}

// SumUp adds up the wanted ones of the live connections, the most numerous first, most sums at the most; more is how
// many connections are in none.
func SumUp(live []Tuple, w Wanted, most int) (sums []Sum, more int) {
	at := map[Tuple]int{}
	for _, t := range live {
		if !w.has(t) {
			continue
		}
		key := t
		key.SrcPort = 0
		i, known := at[key]
		if !known {
			i = len(sums)
			at[key] = i
			sums = append(sums, Sum{Protocol: t.Protocol, Src: t.Src, Dst: t.Dst, DstPort: t.DstPort, Example: t})
		}
		sums[i].Count++
	}
	slices.SortFunc(sums, func(a, b Sum) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), a.Dst.Compare(b.Dst), a.Src.Compare(b.Src),
			cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.DstPort, b.DstPort))
	})
	for _, s := range sums[min(most, len(sums)):] {
		more += s.Count
	}
	return sums[:min(most, len(sums))], more
}

func (w *Wanted) has(t Tuple) bool {
	if _, nodes := w.Node[t.Src]; nodes || t.Src == t.Dst {
		return false
	}
	_, to := w.To[t.Dst]
	_, from := w.From[t.Src]
	return to || from
}

// Live reads the switch's connections now. The switch does nothing else meanwhile, so that however often it is called,
// it takes no more of the switch's time than the counter may; it waits for its turn until ctx ends.
func (c *Counter) Live(ctx context.Context) ([]Tuple, error) {
	select {
	case c.looks <- struct{}{}:
		defer func() { <-c.looks }()
	case <-ctx.Done():
		return nil, fmt.Errorf("conntrack is being read for another request: %w", ctx.Err())
	}
	select {
	case <-time.After(time.Until(c.lookAgain)):
	case <-ctx.Done():
		return nil, fmt.Errorf("conntrack was read a moment ago and is not read again yet: %w", ctx.Err())
	}
	began := time.Now()
	defer func() { c.lookAgain = time.Now().Add(min(rest*time.Since(began), restMost)) }()
	return c.read(ctx)
}
