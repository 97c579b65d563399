package live

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

// explaining bounds how long netctl may take until it explains a settled state.
const explaining = 60 * time.Second

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
		x, err := p.explanation(ctx, a)
		if err != nil {
			return fmt.Errorf("explain: %w", err)
		}
		p.Explained++
		if wrong := wrongly(x, a.verdict.Allowed); wrong != "" {
			p.Differences++
			errs = append(errs, &Difference{fmt.Sprintf("netctl explain %s: %s", a, wrong)})
		}
	}
	return errors.Join(errs...)
}

// explanation is netctl's answer when all nodes have in force what they were sent: a pod that was deleted by force is taken apart later, and
// its node hears of that again.
func (p *player) explanation(ctx context.Context, a *attempt) (*explained, error) {
	to := netip.AddrPortFrom(a.packet.To, uint16(a.packet.Port))
	var x *explained
	err := cluster.Until(ctx, explaining, func() error {
		x = new(explained)
		if err := p.netctl(ctx, x, "explain", a.packet.From.String(), fmt.Sprintf("%v/%s", to, strings.ToLower(a.packet.Protocol))); err != nil {
			return err
		}
		if i := slices.IndexFunc(x.Problems, func(problem string) bool { return strings.Contains(problem, "has not all in force yet") }); i >= 0 {
			return errors.New(x.Problems[i])
		}
		return nil
	})
	return x, err
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
