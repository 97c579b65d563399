// Package agent decides what a node gives to pods as macvtap devices, again whenever anything that it depends on is another, and has the
// device plugin offer it.
//
// One goroutine decides (macvtap.Select). Others follow what it decides by: the node's links, the explicit configuration, and, through
// Cluster, the policies and the node's labels. A report of what came out goes to the API server off the main goroutine,
// so that nothing waits for it. What was last known is on the node's disk: a start without the API server exposes what
// it would have exposed then, and says so. Before the policies were ever known nothing is exposed but what an explicit
// configuration lists, for a policy may say that less is.
package agent
