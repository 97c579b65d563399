package trace

import (
	"testing"

	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl/trace"
)

// What is shown is one way through the tables: without the trace's own door, and without the judgement behind the commit, which a
// trace cannot make.
func TestStepsOfATrace(t *testing.T) {
	steps := func(tables ...uint8) (list []trace.Step) {
		for _, n := range tables {
			list = append(list, trace.Step{Table: n})
		}
		return list
	}
	for name, c := range map[string]struct {
		passes []trace.Pass
		want   []uint8
	}{
		"denied":   {[]trace.Pass{{Steps: steps(0, 20, 30, 31, 33)}}, []uint8{20, 30, 31, 33}},
		"allowed":  {[]trace.Pass{{Steps: steps(0, 20, 30, 40, 50)}, {Steps: steps(20, 30, 40, 50, 60)}}, []uint8{20, 30, 40, 50, 60}},
		"told of":  {[]trace.Pass{{Steps: steps(0, 20, 30, 34, 37, 40, 50)}, {Steps: steps(20, 30, 34, 37, 73, 40, 50, 60)}}, []uint8{20, 30, 34, 37, 40, 50, 60}},
		"lost":     {[]trace.Pass{{Steps: steps(0, 20, 30, 40, 50)}, {Steps: steps(20)}}, []uint8{20, 30, 40, 50, 20}},
		"nothing":  {[]trace.Pass{{}}, nil},
		"no steps": {[]trace.Pass{{Steps: steps(0, 20)}, {}}, []uint8{20}},
	} {
		var got []uint8
		for _, s := range judgedSteps(&trace.Trace{Passes: c.passes}) {
			got = append(got, s.Table)
		}
		if len(got) != len(c.want) {
			t.Errorf("%s: %v, not %v", name, got, c.want)
			continue
		}
		for i := range got {
			if got[i] != c.want[i] {
				t.Errorf("%s: %v, not %v", name, got, c.want)
			}
		}
	}
	if pipeline.TableCommit != 50 {
		t.Error("the tables of this test are not the pipeline's")
	}
}
