// Package explain answers questions about the policies of a whole world: may this packet pass and why, what is allowed
// between two ends, who reaches whom, and what would change with another set of policies.
//
// A Model is an index over a policy.World. Its answers are those of policy.Allowed, the oracle, and are plain values with
// JSON tags, because they travel from netmaster to netctl and to the page:
//
//   - Judge is policy.Allowed, only faster.
//   - Explain tells of one packet which policies isolate each end, what each of their rules says and where it fails, and
//     the smallest changes that would let the packet pass (Remedy).
//   - Connections is the set of protocols and ports that is allowed between two addresses.
//   - Matrix is the Connections between all pods, by groups of pods that no policy can tell apart.
//   - Diff is where the Connections of two worlds differ, addresses outside the cluster included.
//
// Policies in a dry run judge nothing; Explain tells what they would say (DryRun), and Enforced makes the world in which they judge.
//
// The package is pure: no clock, no input, no output. Models are immutable; all their methods may be called concurrently.
//
// What it doesn't know: Services (addresses are those of pods, after translation), and that a node always reaches its own
// pods. A caller that has a node's own address before it says so itself.
package explain
