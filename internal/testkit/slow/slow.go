// Package slow scales the time limits of tests by the measured slowness of the machine.
package slow

import (
	"os"
	"strconv"
	"time"
)

// Factor returns the slowness of this machine from the variable FLOWKEEP_SLOW. The gate measures it before each phase
// (1, 2 or 3), and scripts/kernel estimates it for an emulated machine (up to 12). It is 1 if the variable is missing
// or no whole number from 1 on.
func Factor() float64 {
	n, err := strconv.Atoi(os.Getenv("FLOWKEEP_SLOW"))
	if err != nil || n < 1 {
		return 1
	}
	return float64(n)
}

// Stretch returns a time limit multiplied by Factor.
func Stretch(d time.Duration) time.Duration { return time.Duration(float64(d) * Factor()) }

// IsEmulated reports whether the tests run in the virtual machine of systemtests/vm, which emulates its processors.
func IsEmulated() bool { return os.Getenv("FLOWKEEP_IN_VM") != "" }

// Window returns for how long a test observes that something does not happen. It is multiplied by Factor on an emulated
// machine only: there, what should be observed is 5 to 12 times later. Elsewhere the observation has margin enough, and
// longer ones would exceed the bounds of the gate's phases.
func Window(d time.Duration) time.Duration {
	if IsEmulated() {
		return Stretch(d)
	}
	return d
}
