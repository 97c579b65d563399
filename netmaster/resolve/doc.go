// Package resolve turns policies, pods and namespaces into rules and groups, and says what each node needs of them. It is
// an incremental engine: Apply takes a batch of events and returns what they changed. There is no clock, log, lock or I/O
// in it; one goroutine owns it.
//
// Equal selectors share a group and equal rules are shared, by content. A pod event looks only at the groups that an index
// by label says could choose the pod. No group is rebuilt for one member.
package resolve
