// Package nodeconfig decides what NodeNetworkConfigurationPolicy objects want of nodes: which policies choose a node, which of
// its interfaces they match, what all of them together make of its desired state, and which node may change when.
//
// It is pure: no clock, no client, no lock. The handler (package handler) keeps objects and writes what is decided here.
package nodeconfig
