package clean

import (
	"slices"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/internal/rtnl"
	"github.com/vishvananda/netlink"
)

// macvtaps returns the macvtap devices of the network namespace.
func macvtaps() ([]netlink.Link, error) {
	links, err := rtnl.Dump(netlink.LinkList)
	return slices.DeleteFunc(links, func(l netlink.Link) bool { return l.Type() != "macvtap" }), err
}

func TestTapsGoWithTheState(t *testing.T) {
	m := newMachine(t)
	m.run("ip", "link", "add", "nic0", "type", "veth", "peer", "name", "nic1")
	before := m.picture()
	m.run("ip", "link", "add", "link", "nic0", "name", "fktap0", "index", "268435456", "type", "macvtap", "mode", "bridge")
	if out, err := m.clean(func(c *Config) { c.State, c.TapLinks = false, macvtaps }); err != nil || !strings.Contains(m.picture(), "link fktap0") {
		t.Errorf("the state stays: %v\n%s", err, out)
	}
	out, err := m.clean(func(c *Config) { c.TapLinks = macvtaps })
	if after := m.picture(); err != nil || after != before || !strings.Contains(out, "macvtap device fktap0") {
		t.Errorf("the state goes: %v\n%s\nthere is\n%s", err, out, after)
	}
}
