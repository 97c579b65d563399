// Package explain answers queries about all policies of a world: is a packet allowed and why, what is allowed between
// two ends, which pods reach each other, and what another set of policies would change.
//
// A Model is an index over a policy.World. Its verdicts equal those of policy.Allowed, the oracle. Results are plain
// values with JSON tags, because netmaster sends them to netctl and to the web UI:
//
//   - Judge is policy.Allowed, only faster.
//   - Explain lists for a packet the policies that isolate each end, the result of each of their rules with the reason,
//     and the smallest changes that would allow the packet (Remedy).
//   - Connections is the set of protocols and ports that is allowed between two addresses.
//   - Matrix is the Connections between all pods, by groups of pods that no policy distinguishes.
//   - Diff lists where the Connections of two worlds differ, addresses outside the cluster included.
//
// Policies in a dry run do not affect verdicts. Explain returns the verdict that they would give (DryRun), and
// Enforced returns the world in which they are in force.
//
// The package is pure: no clock, no input, no output. Models are immutable and safe for concurrent use.
//
// Services are not modelled (addresses are those of pods, after translation), and neither is the rule that a node
// always reaches its own pods. Callers handle a node's own addresses themselves.
package explain
