// Package slow scales the time limits of tests by the measured slowness of the machine.
package slow

import (
	"os"
	"strconv"
	"time"
)

// Factor returns the slowness of this machine from the environment variable FLOWKEEP_SLOW. The gate measures it before
// each phase (1, 2 or 3), and scripts/kernel estimates it for an emulated machine (up to 12). It is 1 if the variable is
// missing or no number from 1 on.
func Factor() float64 {
	f, err := strconv.ParseFloat(os.Getenv("FLOWKEEP_SLOW"), 64)
	if err != nil || !(f >= 1) { // NaN too
		return 1
	}
	return f
}

// Stretch returns a time limit multiplied by Factor.
func Stretch(d time.Duration) time.Duration { return time.Duration(float64(d) * Factor()) }
