//go:build !linux

package main

import "github.com/flowkeep/flowkeep/nodestate/nmstate"

// nativeRefusals returns why netctl cannot plan: the native backend is made of Linux' own interfaces.
func (n *nodeReport) nativeRefusals(nmstate.State) (reasons []string, note string) {
	return nil, "netctl plans for the backend native on Linux only: the agent may refuse more than this plan does"
}
