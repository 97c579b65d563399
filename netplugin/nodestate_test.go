package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/internal/nmstate"
	"github.com/flowkeep/flowkeep/netplugin/nodestate"
)

// The program nmstatectl knows nothing of Flowkeep: what would touch it does not get there.
func TestGuard(t *testing.T) {
	o := nodeStateFlags{bridge: "fk0"}
	for desired, path := range map[string]string{
		"interfaces: [{name: fk0, type: ovs-bridge, state: absent}]":                               "interfaces[fk0]",
		"interfaces: [{name: eth1, controller: fk0}]":                                              "interfaces[eth1].controller",
		"interfaces: [{name: br1, type: linux-bridge, bridge: {port: [{name: fk-gw}]}}]":           "interfaces[br1].bridge.port",
		"interfaces: [{name: w, type: vlan, vlan: {base-iface: fkp12, id: 5}}]":                    "interfaces[w].vlan.base-iface",
		"routes: {config: [{destination: 10.0.0.0/8, next-hop-interface: fk-gw}]}":                 "routes.config[0].next-hop-interface",
		"interfaces: [{name: eth1, mtu: 1400}, {name: fk0, state: ignore}]":                        "",
		"interfaces: [{name: b0, type: bond, link-aggregation: {mode: 802.3ad, port: [a, fk-x]}}]": "interfaces[b0].link-aggregation.port",
	} {
		s, err := nmstate.Parse([]byte(desired))
		if err != nil {
			t.Fatal(err)
		}
		err = o.guard(s)
		if path == "" && err != nil || path != "" && (!errors.Is(err, nodestate.ErrRefused) || !strings.HasPrefix(err.Error(), path)) {
			t.Errorf("%s: %v", desired, err)
		}
	}
}
