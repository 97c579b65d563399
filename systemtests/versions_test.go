package systemtests

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

// earlierCommit is the last of main whose netmaster and netplugin speak version 3 of the feed: they know of no epochs.
const earlierCommit = "47c815e8b5b76a89668c36e80c3b524abf833801"

// versions is a scene in which the programs of two versions are put in each other's place.
type versions struct {
	*scene
	now, earlier string // directories of programs
	watched      time.Time
	aside        []string // files that an earlier test had set aside
}

func newVersions(t *testing.T) *versions {
	if testing.Short() || *hook != "" {
		t.Skip("builds another version")
	}
	earlier, err := theCluster.Earlier(t.Context(), earlierCommit)
	if errors.Is(err, cluster.ErrNoHistory) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	v := &versions{scene: newScene(t), now: t.TempDir(), earlier: earlier}
	v.aside = v.setAside()
	v.must(v.Keep(v.ctx, v.now))
	v.Cleanup(func() { // the next test has today's programs, whatever became of this one
		ctx := context.Background()
		if err := errors.Join(v.ReplaceMaster(ctx, v.now), v.ReplaceNode(ctx, "node1", v.now), v.ReplaceNode(ctx, "node2", v.now), v.AwaitConnected(ctx, 30*time.Second)); err != nil {
			v.Error(err)
		}
	})
	return v
}

// master and node replace a program and wait until it is ready, and until netmaster has all nodes.
func (v *versions) master(programs string) {
	v.Helper()
	v.must(v.ReplaceMaster(v.ctx, programs))
	v.back("netmaster")
}

func (v *versions) node(name, programs string) {
	v.Helper()
	v.must(v.ReplaceNode(v.ctx, name, programs))
	v.back(name + "-netplugin")
}

func (v *versions) back(process string) {
	v.Helper()
	v.must(v.AwaitReady(v.ctx, process, 30*time.Second))
	v.must(v.AwaitConnected(v.ctx, 30*time.Second))
	v.Logf("%s is back %s after the streams began", process, time.Since(v.watched).Round(100*time.Millisecond))
}

// upgrade and downgrade go in the order of docs/upgrade.md: netmaster is never older than a node.
func (v *versions) upgrade() {
	v.master(v.now)
	v.node("node1", v.now)
	v.node("node2", v.now)
}

func (v *versions) downgrade() {
	v.node("node1", v.earlier)
	v.node("node2", v.earlier)
	v.master(v.earlier)
}

// TestUpgrade: an earlier Flowkeep takes the place of this one, and this one its place again, while packets are sent, a policy changes and pods come and
// go: nothing forbidden passes, nothing allowed is cut or lost, and no file is set aside.
func TestUpgrade(t *testing.T) {
	v := newVersions(t)
	v.underLoad("down by one version", v.downgrade)
	v.turns()
	v.underLoad("up by one version", v.upgrade)
	v.turns()
	v.underLoad("netmaster older than the nodes, and back", func() { // not the order to follow, but it harms nobody
		v.master(v.earlier)
		v.master(v.now)
	})
	v.stillEnforces()
}

// TestNetmasterOfBeforeEpochs: nodes that have obeyed a leader do not obey a netmaster that knows of no election; nothing is opened or cut while it is
// the only one. When they are downgraded too, what changed meanwhile is put in force.
func TestNetmasterOfBeforeEpochs(t *testing.T) {
	v := newVersions(t)
	s := electedIn(v.scene, false)
	v.watch(stall, append(v.allowed, v.refused...), func() {
		for _, name := range cluster.Masters {
			v.must(v.Stop(v.ctx, name))
		}
		v.must(v.ReplaceMaster(v.ctx, v.earlier))
		v.must(v.AwaitReady(v.ctx, "netmaster", 30*time.Second))
		for _, node := range []string{"node1", "node2"} {
			v.must(cluster.Until(v.ctx, settling, func() error { return v.says(node+"-netplugin", "--obey-unelected") }))
		}
		v.policy(v.ns, "b", `{podSelector: {matchLabels: {app: b}}, ingress: [{from: [{podSelector: {matchLabels: {app: c}}}]}]}`)
		time.Sleep(2 * time.Second) // in which it could be heard
	})
	turned := append(v.shut("a", "b", "tcp", 80, "the policy was turned round"), v.open("c", "b", "tcp", 80, "the policy was turned round")...)
	v.nodes(v.earlier)
	v.must(v.AwaitConnected(v.ctx, 30*time.Second))
	v.settles(turned)

	v.must(v.ReplaceMaster(v.ctx, v.now)) // and forth: leaders before nodes, which have what they obeyed on their disks yet
	v.must(v.Stop(v.ctx, "netmaster"))
	for _, name := range cluster.Masters {
		v.must(v.Start(v.ctx, name))
	}
	s.next("nobody")
	v.settles(turned)
	v.nodes(v.now)
	v.must(cluster.Until(v.ctx, settling, func() error { return v.Serves(v.ctx, s.leader, 2) }))
	v.policy(v.ns, "b", `{podSelector: {matchLabels: {app: b}}, ingress: [{from: [{podSelector: {matchLabels: {app: a}}}]}]}`)
	v.settles(v.allowed, v.refused)
	v.nothingSetAside()
}

// nodes replaces all nodes' programs at once.
func (v *versions) nodes(programs string) {
	v.Helper()
	for _, name := range []string{"node1", "node2"} {
		v.must(v.ReplaceNode(v.ctx, name, programs))
		v.must(v.AwaitReady(v.ctx, name+"-netplugin", 30*time.Second))
	}
}

// says fails unless a process has written a text.
func (v *versions) says(process, text string) error {
	log, err := v.LogText(process)
	if err == nil && !strings.Contains(log, text) {
		err = fmt.Errorf("%s says nothing of %q", process, text)
	}
	return err
}

// underLoad watches all ways while during runs, a policy of a bystander changes all the time, and pods come and go.
func (v *versions) underLoad(what string, during func()) {
	v.Helper()
	busy, rest := context.WithCancel(v.ctx)
	var around sync.WaitGroup
	edits, guests := 0, 0
	v.watched = time.Now()
	v.watch(stall, append(v.allowed, v.refused...), func() {
		around.Go(func() { edits = v.churnPolicy(busy) })
		around.Go(func() { guests = v.churnPods(busy) })
		during()
		time.Sleep(500 * time.Millisecond)
		rest()
		around.Wait()
	})
	v.Logf("%s: a policy was changed %d times, %d pods came and went", what, edits, guests)
	if edits == 0 || guests == 0 {
		v.Errorf("%s: a policy was changed %d times, %d pods came: nothing is shown", what, edits, guests)
	}
	v.nothingSetAside()
}

// turns shows that policies change: the other way round, and back.
func (v *versions) turns() {
	v.Helper()
	v.stillEnforces()
	v.policy(v.ns, "b", `{podSelector: {matchLabels: {app: b}}, ingress: [{from: [{podSelector: {matchLabels: {app: a}}}]}]}`)
	v.settles(v.allowed, v.refused)
}

// churnPolicy edits a policy of guests several times a second; whatever it says, they are reached by a alone.
func (v *versions) churnPolicy(ctx context.Context) (edits int) {
	pace := time.NewTicker(cluster.Stretch(150 * time.Millisecond))
	defer pace.Stop()
	for ; ; edits++ {
		err := v.Apply(ctx, v.ns, fmt.Sprintf(`{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: guests}, spec: {podSelector: {matchLabels: {app: guest}},
			ingress: [{from: [{podSelector: {matchLabels: {app: a}}}]}, {from: [{podSelector: {matchLabels: {app: nobody%d}}}], ports: [{port: %d}]}]}}`, edits, 1000+edits))
		if err != nil && ctx.Err() == nil {
			v.Error(err)
			return edits
		}
		select {
		case <-ctx.Done():
			return edits
		case <-pace.C:
		}
	}
}

// churnPods starts pods, one after another and by turns on both nodes, and ends them when they were seen to be reached by a alone.
func (v *versions) churnPods(ctx context.Context) (guests int) {
	for ; ctx.Err() == nil; guests++ {
		name := fmt.Sprintf("guest%d", guests)
		running, err := v.RunPods(v.ctx, v.ns, cluster.PodSpec{Name: name, Node: fmt.Sprintf("node%d", guests%2+1), Labels: map[string]string{"app": "guest"}, Ports: map[int]string{80: "web"}})
		if err != nil {
			v.Error(err)
			return guests
		}
		var want []cluster.Expectation
		for _, ip := range running[0].IPs {
			want = append(want, cluster.Expectation{From: v.pods["a"], Proto: "tcp", To: ip, Port: 80, Open: true, Why: "a guest, which a may reach"},
				cluster.Expectation{From: v.pods["c"], Proto: "tcp", To: ip, Port: 80, Why: "a guest, which c may not reach"})
		}
		if err := errors.Join(v.Settle(v.ctx, settling, want), v.DeletePod(v.ctx, v.ns, name)); err != nil {
			v.Error(err)
			return guests
		}
	}
	return guests
}

// nothingSetAside: whatever one version wrote, the other reads.
func (v *versions) nothingSetAside() {
	v.Helper()
	for _, file := range v.setAside() {
		if !slices.Contains(v.aside, file) {
			v.Errorf("%s was set aside", file)
		}
	}
}

// setAside lists files that a program could not read.
func (v *versions) setAside() (files []string) {
	v.Helper()
	for _, dir := range []string{"flowkeep/netmaster", "node[12]/flowkeep/state", "node[12]/host/var/lib/flowkeep"} {
		aside, err := filepath.Glob(filepath.Join(v.Dir, dir, "*.corrupt-*"))
		v.must(err)
		files = append(files, aside...)
	}
	return files
}
