package agent

import (
	"fmt"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl"
)

// drift is what audits have found since netplugin started. It belongs to the owner.
type drift struct {
	audited     time.Time // when the last audit came to its end
	took        time.Duration
	problem     string    // why the last one did not, or what it found was not mended
	at          time.Time // when the last drift was found
	last, total inspect.DriftCount
}

// drifted notes what an audit found and what became of it, and tells netmaster.
func (a *agent) drifted(x *comparison, failed error) {
	n := inspect.DriftCount{Missing: x.missing, Changed: x.changed, Extra: x.extra}
	a.drift.last, a.drift.at = n, time.Now()
	a.drift.total.Add(n)
	for kind, count := range map[string]int{inspect.FlowMissing: n.Missing, inspect.FlowChanged: n.Changed, inspect.FlowExtra: n.Extra} {
		a.metrics.drift.WithLabelValues(kind).Add(float64(count))
	}
	told := wire.Drift{Missing: uint64(n.Missing), Changed: uint64(n.Changed), Extra: uint64(n.Extra)}
	if list := a.differences(x, 1); len(list) > 0 {
		told.Example = exampleText(&list[0])
	}
	if failed != nil {
		a.drift.problem = "what the last audit found could not be mended: " + failed.Error()
		told.Problem = failed.Error()
	}
	a.log.Warn("the switch's flows had drifted", "missing", n.Missing, "changed", n.Changed, "extra", n.Extra, "example", told.Example, "mended", failed == nil)
	a.client.Drifted(told)
}

func exampleText(d *inspect.Difference) string {
	if d.TableName == inspect.MeterTable {
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

// differences tells of what was found, of each kind the first most, with the owner held.
func (a *agent) differences(x *comparison, most int) []inspect.Difference {
	var wanted, extra []inspect.Difference
	for _, f := range firstFlows(x.absent, most) {
		wanted = append(wanted, inspect.Difference{Kind: inspect.FlowMissing, Flow: describe(&f, a.compiler.Describe(&f))})
	}
	for i := range x.meters[:min(len(x.meters), most)] {
		wanted = append(wanted, x.meters[i].describe())
	}
	n := map[bool]int{}
	for i := range x.found {
		f := &x.found[i]
		if n[f.extra]++; n[f.extra] > most {
			continue
		}
		d := inspect.Difference{Kind: inspect.FlowExtra, Flow: describe(&f.have, a.compiler.Describe(&f.have))}
		if f.foreign != nil {
			d.Foreign = f.foreign.Error()
		}
		if f.extra {
			extra = append(extra, d)
			continue
		}
		if want, ok := x.at.Want(&f.have); ok {
			d.Kind, d.Found, d.FoundCookie = inspect.FlowChanged, d.Actions, d.Cookie
			d.Flow = describe(&want, a.compiler.Describe(&want))
			d.Packets, d.Bytes = f.have.Packets, f.have.Bytes
		}
		wanted = append(wanted, d)
	}
	return append(wanted, extra...)
}

// firstFlows are the first in the order of the tables.
func firstFlows(flows []ofctl.Flow, most int) []ofctl.Flow {
	if len(flows) <= auditStep {
		pipeline.SortFlows(flows)
	}
	return flows[:min(len(flows), most)]
}
