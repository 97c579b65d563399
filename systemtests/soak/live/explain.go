package live

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
)

// explained is what of netctl explain's answer is compared.
type explained struct {
	Ways []struct {
		Allowed, Self bool
		Disagreements []string
		Traces        []struct{ Problem string }
	}
	Problems []string
}

// explain asks netctl of some of the ways that were tried: its verdict is the oracle's, and the switches' that of netctl.
func (p *player) explain(ctx context.Context, rng *rand.Rand, attempts []*attempt, n int) error {
	var errs []error
	for range min(n, len(attempts)) {
		a := attempts[rng.IntN(len(attempts))]
		to := a.packet.To.String()
		if a.packet.To.Is6() {
			to = "[" + to + "]"
		}
		var x explained
		err := p.netctl(ctx, &x, "explain", a.packet.From.String(), fmt.Sprintf("%s:%d/%s", to, a.packet.Port, strings.ToLower(a.packet.Protocol)))
		if err != nil {
			return fmt.Errorf("explain: %w", err)
		}
		p.Explained++
		if wrong := wrongly(&x, a.verdict.Allowed); wrong != "" {
			p.Differences++
			errs = append(errs, &Difference{fmt.Sprintf("netctl explain %s: %s", a, wrong)})
		}
	}
	return errors.Join(errs...)
}

func wrongly(x *explained, allowed bool) string {
	ofANode := func(problem string) bool { return strings.HasPrefix(problem, "node ") } // others are netmaster's own, as a slow memcached
	if len(x.Ways) != 1 || slices.ContainsFunc(x.Problems, ofANode) {
		return fmt.Sprintf("%+v", x)
	}
	w := &x.Ways[0]
	switch {
	case w.Allowed != allowed:
		return fmt.Sprintf("it says that it is allowed: %v", w.Allowed)
	case len(w.Disagreements) > 0:
		return strings.Join(w.Disagreements, "; ")
	case len(w.Traces) == 0 && !w.Self: // what a pod sends to itself comes to no switch
		return "no proof"
	}
	for _, t := range w.Traces {
		if t.Problem != "" {
			return t.Problem
		}
	}
	return ""
}
