package systemtests

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

// judging is a way to judge the packets of established connections, as flows by hand: clients of 100.64.0.0/10 and
// 192.0.2.1, one address a clause, may reach port 80 of 192.0.2.2.
type judging struct {
	name   string
	flows  []string
	clause string // the flow of a client, with %s for its address
	cut    string // what to delete when 192.0.2.1 loses its permission
}

const deliver, track = "resubmit(,9)", "ip,actions=ct(zone=7,table=1)"

var judgings = []judging{
	{
		name: "original tuple",
		flows: []string{
			"table=1,priority=60000,ct_state=+trk+new,conj_id=1,ip,actions=ct(commit,zone=7)," + deliver,
			"table=1,priority=50000,ct_state=+trk-new,conj_id=1,ip,actions=" + deliver,
			"table=1,priority=100,ct_state=+trk-inv,udp,ct_nw_proto=17,ct_tp_dst=80,actions=conjunction(1,2/2)",
			"table=1,priority=100,ct_state=+trk-inv,tcp,ct_nw_proto=6,ct_tp_dst=80,actions=conjunction(1,2/2)",
			"table=1,priority=100,ct_state=+trk-inv,tcp,ct_nw_proto=6,ct_tp_dst=5299,actions=conjunction(1,2/2)",
		},
		clause: "table=1,priority=100,ct_state=+trk-inv,ip,ct_nw_src=%s,actions=conjunction(1,1/2)",
		cut:    "table=1,priority=100,ct_state=+trk-inv,ip,ct_nw_src=192.0.2.1",
	},
	{
		name: "ct_label of the rule",
		flows: []string{
			"table=1,priority=60000,ct_state=+trk+est,ct_label=7,ip,actions=" + deliver,
			"table=1,priority=50000,ct_state=+trk+new,conj_id=1,ip,actions=ct(commit,zone=7,exec(set_field:7->ct_label))," + deliver,
			"table=1,priority=100,ct_state=+trk+new,udp,tp_dst=80,actions=conjunction(1,2/2)",
			"table=1,priority=100,ct_state=+trk+new,tcp,tp_dst=80,actions=conjunction(1,2/2)",
			"table=1,priority=100,ct_state=+trk+new,tcp,tp_dst=5299,actions=conjunction(1,2/2)",
		},
		clause: "table=1,priority=100,ct_state=+trk+new,ip,nw_src=%s,actions=conjunction(1,1/2)",
		cut:    "table=1,priority=60000,ct_state=+trk+est,ct_label=7,ip",
	},
}

// How many clients of one server.
const clients = 10000

// TestJudgingTable prints what two ways to judge live connections cost (docs/decisions/001). It judges nothing.
func TestJudgingTable(t *testing.T) {
	if !*printTable {
		t.Skip("a table to print: run with -table")
	}
	w := setup(t)
	floor, err := w.MakeFloor(w.ctx)
	w.Cleanup(func() { w.must(floor.Remove(context.Background())) })
	w.must(err)
	stop, err := w.Serve(w.ctx, floor.B.NetNS, 80)
	w.must(err)
	defer stop()
	fmt.Printf("\n%-24s %10s %10s %16s %12s\n", "live connections by", "Gbit/s", "conns/s", "10,000 clients", "cut in ms")
	for _, j := range judgings {
		w.must(floor.Flows(w.ctx, j.all()...))
		c := w.measure(floor.A, floor.B)
		answered, megaflows, err := floor.Clients(w.ctx, clients)
		w.must(err)
		if answered < clients*9/10 {
			w.Errorf("%s: %d of %d clients were answered", j.name, answered, clients)
		}
		fmt.Printf("%-24s %10.2f %10.0f %6d megaflows %12.1f\n", j.name, c.bits/1e9, c.connects, megaflows, w.timeToCut(floor, j))
	}
}

func (j *judging) all() []string {
	flows := append([]string{"arp,in_port=1,actions=output:2", "arp,in_port=2,actions=output:1", "table=9,in_port=1,actions=output:2",
		"table=9,in_port=2,actions=output:1", track, fmt.Sprintf(j.clause, "192.0.2.1")}, j.flows...)
	for i := 1; i <= clients; i++ {
		flows = append(flows, fmt.Sprintf(j.clause, fmt.Sprintf("100.64.%d.%d", i>>8, i&255)))
	}
	return flows
}

// timeToCut is from the deletion of a permission to the first packet that it stops, of a live connection.
func (w *world) timeToCut(floor *cluster.Floor, j judging) float64 {
	w.Helper()
	stop, err := w.WatchEdges(w.ctx, cluster.Expectation{From: floor.A, Proto: "udp", To: floor.B.IPs[0], Port: 80}, edgeRate)
	w.must(err)
	began := time.Now().UnixNano()
	w.must(floor.Change(w.ctx, "--strict del-flows", j.cut))
	time.Sleep(time.Second)
	edges, err := stop()
	w.must(err)
	all := latencies([]int64{began}, edges, false, 100*time.Millisecond)
	if len(all) == 0 {
		w.Errorf("%s: not cut", j.name)
		return 0
	}
	return all[0]
}
