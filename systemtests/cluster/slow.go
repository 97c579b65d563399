package cluster

import (
	"strconv"
	"time"

	"github.com/flowkeep/flowkeep/internal/testkit/slow"
)

// Slowness returns the factor by which the tests' time limits are longer; see slow.Factor.
func Slowness() float64 { return slow.Factor() }

// IsEmulated reports whether the processors are emulated; see slow.IsEmulated.
func IsEmulated() bool { return slow.IsEmulated() }

// Rate returns how many packets a second a probe sends on an open way: fewer on a slow machine, where the packets and
// answers of a dozen probes would use the processors up. Probes of denied ways keep their rate.
func Rate(perSecond float64) float64 {
	return min(perSecond, max(perSecond/(Slowness()*Slowness()), 10))
}

// formatRate returns a rate as the probe's flag -rate has it.
func formatRate(perSecond float64) string { return strconv.FormatFloat(perSecond, 'f', 0, 64) }

// Window returns for how long a test observes that something does not happen; see slow.Window.
func Window(d time.Duration) time.Duration { return slow.Window(d) }

// Stretch returns a time limit multiplied by Slowness. Until, Check and Settle stretch their limits themselves.
func Stretch(d time.Duration) time.Duration { return slow.Stretch(d) }
