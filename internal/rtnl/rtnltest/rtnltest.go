// Package rtnltest helps tests of packages that use rtnl.
package rtnltest

import (
	"testing"

	"github.com/flowkeep/flowkeep/internal/rtnl"
)

// ReadLinks returns the links of the thread's network namespace.
func ReadLinks(t testing.TB) *rtnl.Links {
	t.Helper()
	links, err := rtnl.ReadLinks()
	if err != nil {
		t.Fatal(err)
	}
	return links
}
