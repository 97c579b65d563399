package systemtests

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

// TestNodeReboots powers a node with twenty pods off and on: Open vSwitch's database names ports that no longer exist, and
// netplugin's files name pods whose links are gone. All pods come back with their own ports and rights.
func TestNodeReboots(t *testing.T) {
	if !*everyDisturbance {
		t.Skip("the gate leaves it out: make test-full PART=disturbances")
	}
	s := newScene(t)
	var names []string
	for i := range 18 { // with a and b twenty on node1
		names = append(names, fmt.Sprintf("extra%d@node1", i))
	}
	s.run(s.ns, names...)
	for _, name := range []string{"containerd", "kubelet", "proxy", "vswitchd", "netplugin"} {
		s.again("node1-" + name)
	}
	s.must(s.PowerOff(s.ctx, "node1"))
	s.must(s.PowerOn(s.ctx, "node1"))
	s.must(s.AwaitReady(s.ctx, "node1-netplugin", 60*time.Second))
	s.comeBack()
	s.allowed, s.refused = nil, nil
	for _, proto := range []string{"tcp", "udp"} {
		s.allowed = append(s.allowed, s.open("a", "b", proto, 80, "allowed, same node")...)
		s.allowed = append(s.allowed, s.open("c", "a", proto, 80, "allowed, across")...)
		s.refused = append(s.refused, s.shut("c", "b", proto, 80, "denied, across")...)
		s.refused = append(s.refused, s.shut("extra7", "b", proto, 80, "denied, same node")...)
		s.allowed = append(s.allowed, s.open("extra7", "extra3", proto, 80, "no policy")...)
	}
	s.settles(s.allowed, s.refused)
	s.stillEnforces()
	s.must(cluster.Until(s.ctx, time.Minute, func() error {
		if text, err := s.Netctl(s.ctx, "verify", "--samples", "100"); err != nil {
			return fmt.Errorf("%w: %s", err, text)
		}
		return nil
	}))
	s.noPortErrors()
}

// comeBack waits until all pods of node1 are ready in new sandboxes.
func (s *scene) comeBack() {
	s.Helper()
	s.must(cluster.Until(s.ctx, 3*time.Minute, func() error {
		for name, pod := range s.pods {
			if pod.Node != "node1" {
				continue
			}
			now, err := s.Pod(s.ctx, pod.Namespace, name)
			if err != nil {
				return err
			}
			s.pods[name] = now
		}
		unmet, err := s.Check(s.ctx, cluster.Patience{Open: time.Second, Shut: time.Second}, s.open("extra0", "extra17", "tcp", 80, "back"))
		if err == nil && len(unmet) > 0 {
			err = fmt.Errorf("%s", strings.Join(unmet, "; "))
		}
		return err
	}))
}

// noPortErrors fails the test where Open vSwitch's database has a port of a pod with an error or without a number, or two
// with one number.
func (s *scene) noPortErrors() {
	s.Helper()
	var failed error
	s.must(cluster.Until(s.ctx, time.Minute, func() error {
		text, err := s.RunIn(s.ctx, s.NodeNS("node1"), "ovs-vsctl", "--format=json", "--columns=name,ofport,error",
			"--db=unix:"+s.Dir+"/node1/flowkeep/ovs/db.sock", "list", "Interface")
		if err != nil {
			return err
		}
		var table struct{ Data [][]json.RawMessage }
		if err := json.Unmarshal([]byte(text), &table); err != nil {
			return err
		}
		failed = nil
		numbers := map[string]bool{}
		for _, row := range table.Data {
			name, number, problem := string(row[0]), string(row[1]), string(row[2])
			if numbers[number] || number == "-1" || problem != `["set",[]]` {
				failed = fmt.Errorf("interface %s has number %s and error %s", name, number, problem)
			}
			numbers[number] = true
		}
		return failed
	}))
}
