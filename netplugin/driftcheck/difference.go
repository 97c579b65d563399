package driftcheck

import (
	"fmt"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl"
)

// drift is differences that a repair found.
type drift struct {
	inspect.DriftCount
	example string
	failed  error // of the repair
}

// drifted records the differences and the result of their repair, and reports them to netmaster.
func (c *Checker) drifted(x *Comparison, failed error) drift {
	n := x.DriftCount
	c.results.last, c.results.at = n, time.Now()
	c.results.total.Add(n)
	c.metrics.drifted(n)
	report := reportOf(n, c.differences(x, 1))
	if failed != nil {
		c.results.problem = "could not repair the differences of the last drift check: " + failed.Error()
		report.Problem = failed.Error()
	}
	c.Report(report)
	return drift{n, report.Example, failed}
}

// logDrift logs what a drift check found.
func (c *Checker) logDrift(d drift) {
	c.Logger.Warn("the switch's flows had drifted", "missing", d.Missing, "changed", d.Changed, "extra", d.Extra,
		"example", d.example, "repaired", d.failed == nil)
}

// reportOf returns a report to netmaster with the first of the examples.
func reportOf(n inspect.DriftCount, examples []inspect.Difference) wire.Drift {
	report := wire.Drift{Missing: uint64(n.Missing), Changed: uint64(n.Changed), Extra: uint64(n.Extra)}
	if len(examples) > 0 {
		report.Example = exampleText(&examples[0])
	}
	return report
}

func exampleText(d *inspect.Difference) string {
	if d.TableName == inspect.MeterTable || d.TableName == inspect.GroupTable {
		return fmt.Sprintf("%s: %s, %s", d.Kind, d.Match, d.Actions)
	}
	text := fmt.Sprintf("%s: table %d (%s) priority %d %s → %s", d.Kind, d.Table, d.TableName, d.Priority, d.Match, d.Actions)
	if d.Kind == inspect.FlowChanged {
		text += ", found with " + d.Found
	}
	if d.Note != "" {
		text += ", " + d.Note
	}
	return text
}

// differences returns the differences, at most so many of each kind. Call it on the owner goroutine.
func (c *Checker) differences(x *Comparison, maxEach int) []inspect.Difference {
	var wanted, extra []inspect.Difference
	for _, f := range firstFlows(x.absent, maxEach) {
		wanted = append(wanted, inspect.Difference{Kind: inspect.FlowMissing, Flow: FlowOf(&f, c.owner.Describe(&f))})
	}
	for i := range x.meters.found[:min(len(x.meters.found), maxEach)] {
		wanted = append(wanted, x.meters.found[i].describe())
	}
	for i := range x.groups.found[:min(len(x.groups.found), maxEach)] {
		wanted = append(wanted, x.groups.found[i].describe())
	}
	n := map[bool]int{}
	for i := range x.found {
		f := &x.found[i]
		if n[f.extra]++; n[f.extra] > maxEach {
			continue
		}
		d := inspect.Difference{Kind: inspect.FlowExtra, Flow: FlowOf(&f.have, c.owner.Describe(&f.have))}
		if f.foreign != nil {
			d.Foreign = f.foreign.Error()
		}
		if f.extra {
			extra = append(extra, d)
			continue
		}
		if want, ok := x.at.Want(&f.have); ok {
			d.Kind, d.Found, d.FoundCookie = inspect.FlowChanged, d.Actions, d.Cookie
			d.Flow = FlowOf(&want, c.owner.Describe(&want))
			d.Packets, d.Bytes = f.have.Packets, f.have.Bytes
		}
		wanted = append(wanted, d)
	}
	return append(wanted, extra...)
}

// firstFlows returns the first flows, in the order of the tables.
func firstFlows(flows []ofctl.Flow, limit int) []ofctl.Flow {
	if len(flows) <= Step {
		pipeline.SortFlows(flows)
	}
	return flows[:min(len(flows), limit)]
}
