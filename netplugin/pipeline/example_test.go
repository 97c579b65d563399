package pipeline_test

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/ofctl/fake"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// An update compiles to changes of flows, which one bundle brings to the switch.
func ExampleCompiler_Apply() {
	c := pipeline.New(pipeline.Config{
		Gateway: pipeline.Device{Port: 1, MAC: ofctl.MAC{2, 0, 0, 0, 0, 1}},
		Wire:    pipeline.Device{Port: 2, MAC: ofctl.MAC{2, 0, 0, 0, 0, 2}},
		Out:     pipeline.Device{Port: 3, MAC: ofctl.MAC{2, 0, 0, 0, 0, 3}},
	}, nil)
	sw := fake.New()
	mods, _ := c.Take()
	if err := sw.Commit(context.Background(), mods); err != nil {
		fmt.Println(err)
	}
	isolation := &policy.Rule{Direction: policy.Ingress, AppliedTo: policy.Key{1}}
	isolation.Key = policy.RuleKey(isolation)
	c.Apply(policy.NodeUpdate{
		Revision: 1,
		Rules:    []policy.RuleChange{{Key: isolation.Key, Rule: isolation}},
		Groups: []policy.GroupUpdate{{
			Key:     policy.Key{1},
			Kind:    policy.AppliedToGroup,
			Replace: true,
			Added:   []netip.Addr{netip.MustParseAddr("10.244.1.2")},
		}},
	})
	mods, _ = c.Take()
	if err := sw.Commit(context.Background(), mods); err != nil {
		fmt.Println(err)
	}
	for _, m := range mods {
		if m.Flow.Table == pipeline.TableIngress || m.Flow.Table == pipeline.TableIngress+3 {
			fmt.Println(m.Flow.Match, m.Flow.Actions)
		}
	}
	// Output:
	// ct_state=-inv+trk,ct_nw_dst=10.244.1.2,ip [set_field:0x1->reg4 goto_table:41]
	// reg4=0x1 [goto_table:71]
}
