package native

import (
	"testing"

	"github.com/flowkeep/flowkeep/internal/testkit/netns"
)

// TestKernelLoopbackKeepsItsAddress: the kernel's own loopback interface takes more addresses, and loses none.
func TestKernelLoopbackKeepsItsAddress(t *testing.T) {
	netns.New(t).Enter(t)
	b := newBench(t, Config{})
	const both = "[{ip: 127.0.0.1, prefix-length: 8}, {ip: 198.51.100.1, prefix-length: 32}]"
	b.apply("interfaces: [{name: lo, ipv4: {enabled: true, address: " + both + "}}]")
	b.refused("interfaces: [{name: lo, ipv4: {enabled: true, address: [{ip: 198.51.100.1, prefix-length: 32}]}}]",
		"name that address too")
	b.refused("interfaces: [{name: lo, state: down}]", "leave it up")
}
