// Package driftcheck compares a switch's flows, meters and groups with their desired state while both change, and
// reports the differences. A Checker works off the owner goroutine, which repairs them.
package driftcheck
