// Package tap makes macvtap devices, and keeps on disk what is needed to make them again.
//
// The device plugin allocates: a Record says which parent, which mode and which interface index a device has, for as long as it is exposed.
// The CNI plugin attaches: it makes the link in the pod's network namespace, and a device node for the container runtime to hand into the
// container. An Attachment says who has it. Both processes use the same directory, under a lock:
//
//	devices/KEY.json    records
//	attached/KEY.json   attachments
//	dev/KEY             device nodes of what is attached
//	lock
//
// An attachment is written before its link is made and removed after its link is gone, so that a process that dies between the steps leaves
// nothing that the next ADD, DEL or GC does not find. Removing needs no space: a full disk refuses pods and lets them go.
//
// The devices /dev/tapN that devtmpfs makes are never handed out: devtmpfs knows no network namespaces, so two links with one index share one
// node, which belongs to whichever came first. Nodes are made here, with the numbers that sysfs tells in the link's own network namespace.
package tap
