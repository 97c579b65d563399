package hostnet

import (
	"encoding/json"
	"math"
	"os"
	"slices"
	"testing"
)

// TestNumbers_Chart: the schema of the chart accepts the numbers that netplugin does.
func TestNumbers_Chart(t *testing.T) {
	var schema struct {
		Properties struct {
			Network struct {
				Properties struct {
					ServiceTable, RulePriority struct {
						Minimum, Maximum int
						Not              struct{ Enum []int }
					}
				}
			}
		}
	}
	text, err := os.ReadFile("../../deploy/chart/values.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	network := &schema.Properties.Network.Properties
	tables, priorities := &network.ServiceTable, &network.RulePriority
	numbers := []int{math.MaxInt32, tables.Maximum, tables.Maximum + 1}
	for n := range 300 {
		numbers = append(numbers, n)
	}
	for _, n := range numbers {
		accepts := n >= tables.Minimum && n <= tables.Maximum && !slices.Contains(tables.Not.Enum, n)
		if err := (Numbers{Table: n, Priority: 50}).Check(); (err == nil) != accepts {
			t.Errorf("serviceTable %d: accepted %v, by Check: %v", n, accepts, err)
		}
	}
	for _, n := range []int{0, 1, 50, priorities.Maximum, priorities.Maximum + 1} {
		accepts := n >= priorities.Minimum && n <= priorities.Maximum
		if err := (Numbers{Table: 300, Priority: n}).Check(); (err == nil) != accepts {
			t.Errorf("rulePriority %d: accepted %v, by Check: %v", n, accepts, err)
		}
	}
}
