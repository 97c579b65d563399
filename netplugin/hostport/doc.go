// Package hostport restores rules of pods' hostPorts that another program removed, such as a firewall that was
// reloaded. The container runtime runs the CNI plugin portmap once for each pod; this package repeats portmap's ADD.
//
// It does so for pods that were attached while the CNI configuration named the backend nftables: only then do a pod's
// ADD, its repetition and its DEL write the same tables. Pods, rules and time are values of ledger, which is pure;
// keeper.go reads the tables and runs portmap.
package hostport
