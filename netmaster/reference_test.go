package main

import (
	"flag"
	"testing"

	"github.com/flowkeep/flowkeep/internal/reference"
)

var update = flag.Bool("update", false, "write docs/reference/netmaster.md anew")

func TestReference(t *testing.T) {
	reference.Check(t, rootCommand(), "../docs/reference/netmaster.md", *update)
}
