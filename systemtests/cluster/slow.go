package cluster

import (
	"fmt"
	"os"
	"strconv"
	"time"
)

// Slowness says by how much longer everything takes here than on the machines that the tests' time limits are for:
// FLOWKEEP_SLOW, as the virtual machine of systemtests/vm sets it, which emulates its processors. 1 where nothing is said.
func Slowness() float64 {
	f, err := strconv.ParseFloat(os.Getenv("FLOWKEEP_SLOW"), 64)
	if err != nil || f < 1 {
		return 1
	}
	return f
}

// Rate is the packets a second that a probe sends here where it sends so many elsewhere: far fewer where a dozen probes would keep
// the machine busy.
func Rate(perSecond float64) string {
	return fmt.Sprintf("%.0f", max(perSecond/(Slowness()*Slowness()), 10))
}

// Stretch is a time limit as it holds here. Limits of Until, Check and Settle are stretched by these.
func Stretch(d time.Duration) time.Duration { return time.Duration(float64(d) * Slowness()) }
