package driftcheck

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
)

// Verify compares the switch with its desired state, changes nothing, and returns an inspect.NodeVerify as JSON. With
// independently the flows are read without ofctl.
func (c *Checker) Verify(ctx context.Context, independently bool) ([]byte, error) {
	began := time.Now()
	var out inspect.NodeVerify
	compare := c.Compare
	if independently {
		compare = c.compareIndependently
	}
	err := compare(ctx, func(x *Comparison) {
		out = inspect.NodeVerify{
			Node:               c.Node,
			Revision:           x.Revision,
			Held:               x.Flows,
			Wanted:             x.Wanted,
			DriftCheckInterval: c.Interval,
			DriftCount:         x.DriftCount,
			Differences:        append([]inspect.Difference{}, c.differences(x, inspect.MostDifferences)...),
		}
		if x.second != nil {
			out.Independent = independentReading(x)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", c.Node, err)
	}
	out.Took = time.Since(began)
	return json.Marshal(out)
}

// independentReading returns which tables were read independently, and what could not be read.
func independentReading(x *Comparison) *inspect.IndependentReading {
	groups, meters := x.second.Counts()
	out := &inspect.IndependentReading{
		Tables: []inspect.TableRead{},
		Groups: &groups,
		Meters: &meters,
		Unread: []string{},
	}
	for _, t := range x.second.Tables {
		out.Tables = append(out.Tables, inspect.TableRead{Table: t, Name: pipeline.TableName(t)})
	}
	for i := range x.second.Unread {
		if i == inspect.MostDifferences {
			out.Unread = append(out.Unread, fmt.Sprintf("%d more", len(x.second.Unread)-i))
			break
		}
		out.Unread = append(out.Unread, x.second.Unread[i].String())
	}
	return out
}
