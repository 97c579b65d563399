package ofctl_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/flowkeep/flowkeep/ofctl"
)

// All flows take effect at one instant, or none does.
func ExampleSession_Commit() {
	ctx := context.Background()
	s, err := ofctl.Connect(ctx, "/var/run/openvswitch/br0.mgmt")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close()
	toPod := ofctl.Flow{
		Table:    0,
		Priority: 100,
		Match:    ofctl.Match{EtherType: ofctl.EtherIPv4, NwDst: netip.MustParsePrefix("10.244.1.2/32")},
		Actions:  []ofctl.Action{{Kind: ofctl.Output, Port: 3}},
	}
	err = s.Commit(ctx, []ofctl.FlowMod{{Command: ofctl.Add, Flow: toPod}})
	if refused, ok := errors.AsType[*ofctl.SwitchError](err); ok {
		fmt.Println("nothing has changed; the switch refuses", refused.Flow)
	}
}
