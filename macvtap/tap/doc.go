// Package tap makes macvtap devices, and keeps on disk what is needed to make them again.
//
// The device plugin allocates: a Record has parent, mode and interface index of a device, for as long as it is exposed.
// The device is made in the node's network namespace, with a device node for the container runtime to hand into the
// container, for pods without an attachment. The CNI plugin adopts it: it removes the link there and makes one in the
// pod's network namespace. An Attachment has the pod. Both processes use the same directory, under a lock:
//
//	devices/KEY.json    records
//	attached/KEY.json   attachments
//	dev/KEY             device nodes of what is attached or on the node
//	lock
//
// An attachment is written before its link is made and removed after its link is gone, so that a process that dies between the steps leaves
// nothing that the next ADD, DEL or GC does not find. Removing needs no space: a full disk refuses pods and lets them go.
//
// The devices /dev/tapN that devtmpfs makes are never handed out: devtmpfs knows no network namespaces, so two links with one index share one
// node, which belongs to whichever came first. Nodes are made here, with the numbers that sysfs has in the link's own
// network namespace.
package tap
