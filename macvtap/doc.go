// Package macvtap decides which of a node's links are given to pods as macvtap devices, under which names, and why: by
// an explicit configuration, else by the policies that select the node, else all physical devices and bonds.
//
// It is pure: no clock, no client, no netlink. Links, policies and the configuration come in as values, an Exposure goes out; package
// report makes the status of Kubernetes objects of it. The agent, the device plugin and the CNI plugin (macvtap) are its edges.
package macvtap
