// Package nodestate is the agent that holds a node's network to its NodeNetworkState: it reads the node through a Backend, decides
// what to do next (Decide, a function over values), makes changes that are undone unless they prove good, and reports.
//
// A change is safe: what undoes it is on disk before it begins (Journal); afterwards the node is read back, and what
// held before (the API server is reachable, the default gateway answers, the Node is Ready) must hold again within
// the revert time. If not, or if the process dies meanwhile, it is rolled back, then reported. Failures are retried
// at growing intervals until the desired state changes.
package nodestate
