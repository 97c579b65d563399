package main

import (
	"flag"
	"testing"

	"github.com/flowkeep/flowkeep/internal/reference"
)

var update = flag.Bool("update", false, "write docs/reference/netplugin.md anew")

func TestReference(t *testing.T) {
	cmd := rootCommand()
	cmd.Flag("node-name").DefValue = "the host name"
	for _, c := range cmd.Commands() {
		if f := c.Flag("node-name"); f != nil {
			f.DefValue = "the host name"
		}
	}
	reference.Check(t, cmd, "../docs/reference/netplugin.md", *update)
}
