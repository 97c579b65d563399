// Package conntrack knows the connections that live on this node's switch: whose permission an update took away, and
// by which rule they had lived. Flows end them by themselves (docs/decisions/001); this package counts what they
// ended, and makes the switch forget the connections of a pod that is gone before its address is given to another.
//
// Judge is pure. Counter is the edge: it reads conntrack after an update that could end anything, off the owner's
// goroutine.
package conntrack
