// Package check proves with packets that a cluster's network and policies work: which connections between pods of its
// own have to open or to stay shut, and whether they did.
//
//	checks := check.Plan(&facts)                 // what is expected, at which stage
//	probes := check.Probes(checks, check.Friend) // what a client pod tries, again and again
//	row := check.Judge(&c, state, change)        // what was seen of a check
//
// Plan and Judge are functions over values. Serve and Watch run in the pods ("netctl check serve" and "netctl check
// probe"); netctl creates the pods, and reads the events that Watch prints from their logs.
package check
