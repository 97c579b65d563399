package main

import (
	"testing"

	"github.com/flowkeep/flowkeep/internal/reference"
)

func TestReference(t *testing.T) {
	for _, name := range []string{"FLOWKEEP_SERVER", "FLOWKEEP_CA", "FLOWKEEP_CERT", "FLOWKEEP_KEY"} {
		t.Setenv(name, "")
	}
	(&reference.Binary{TB: t, Root: rootCommand()}).Check(*update)
}
