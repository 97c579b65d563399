package pipeline

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/flowkeep/flowkeep/ofctl"
)

func limitedPod(b Bandwidth) LocalEndpoint {
	return LocalEndpoint{
		ID:        "shop/web",
		Port:      300,
		MAC:       ofctl.MAC{2, 0, 0, 0, 0, 9},
		Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00::2")},
		Bandwidth: b,
	}
}

// limitedTables returns the tables of flows that name a bandwidth meter, and the meters.
func limitedTables(c *Compiler) (tables []uint8, meters []uint32) {
	for _, f := range c.Flows() {
		if len(f.Actions) > 0 && f.Actions[0].Kind == ofctl.Metered && IsBandwidthMeter(f.Actions[0].Value) {
			tables = append(tables, f.Table)
			meters = append(meters, f.Actions[0].Value)
		}
	}
	slices.Sort(tables)
	slices.Sort(meters)
	return tables, slices.Compact(meters)
}

// What a pod sends passes its meter at the input, and what it receives passes the other at the output, in both families;
// the compiler wants exactly the meters that flows name.
func TestBandwidth_OneMeterADirection(t *testing.T) {
	for _, c := range []struct {
		name   string
		limit  Bandwidth
		tables []uint8
		meters []ofctl.Meter
	}{
		{"none", Bandwidth{}, nil, nil},
		{"egress", Bandwidth{Egress: 10e6}, []uint8{TableInput, TableInput},
			[]ofctl.Meter{{ID: 66136, Rate: 10000, Burst: 2000, Kilobits: true}}},
		{"ingress", Bandwidth{Ingress: 1000}, []uint8{TableOutput, TableOutput},
			[]ofctl.Meter{{ID: 66137, Rate: 1, Burst: 640, Kilobits: true}}},
		{"both", Bandwidth{Ingress: 999, Egress: 1 << 63}, []uint8{TableInput, TableInput, TableOutput, TableOutput},
			[]ofctl.Meter{{ID: 66136, Rate: 4294967295, Burst: 858993459, Kilobits: true},
				{ID: 66137, Rate: 1, Burst: 640, Kilobits: true}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			config := testConfig
			config.Limits = true
			compiler := New(config, nil)
			compiler.PutEndpoint(limitedPod(c.limit))
			tables, named := limitedTables(compiler)
			want := compiler.BandwidthMeters()
			if !slices.Equal(tables, c.tables) || !slices.Equal(want, c.meters) {
				t.Errorf("flows in %v, meters %v, want %v, %v", tables, want, c.tables, c.meters)
			}
			ids := []uint32{}
			for _, m := range want {
				ids = append(ids, m.ID)
			}
			if !slices.Equal(named, ids) {
				t.Errorf("flows name %v, wanted are %v", named, ids)
			}
			compiler.RemoveEndpoint("shop/web")
			if left := compiler.BandwidthMeters(); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

// Where the switch has no meters no flow names one.
func TestBandwidth_NoMeters(t *testing.T) {
	compiler := New(testConfig, nil)
	compiler.PutEndpoint(limitedPod(Bandwidth{Ingress: 1e6, Egress: 1e6}))
	if tables, _ := limitedTables(compiler); len(tables) > 0 {
		t.Errorf("flows in %v name meters", tables)
	}
}

// Meters of bandwidth are no others' meters, whatever the port's number is.
func TestBandwidth_IDs(t *testing.T) {
	if id := ingressMeter(65276); id > 200_000 || !IsBandwidthMeter(egressMeter(0)) {
		t.Errorf("the highest meter is %d", id)
	}
	for _, m := range slices.Concat(Meters(100, MaxOpeningRate), AnswerMeters()) {
		if IsBandwidthMeter(m.ID) {
			t.Errorf("%+v passes for a meter of bandwidth", m)
		}
	}
}
