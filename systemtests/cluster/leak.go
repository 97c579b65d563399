package cluster

import "fmt"

// Leak begins the line of a failure where a denied packet passed. The gate repeats a failed test only if it printed no
// such line. A lost packet of an allowed connection is no leak.
const Leak = "LEAK"

// Crash begins the line of a failure where a program of Flowkeep panicked. The gate does not repeat the test either.
const Crash = "CRASH"

// leaked returns a failure's text, with Leak in front.
func leaked(format string, args ...any) string { return Leak + " " + fmt.Sprintf(format, args...) }
