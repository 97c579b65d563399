package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func waiting(done bool, nodes ...inspect.PolicyNode) inspect.Wait {
	return inspect.Wait{Namespace: "shop", Name: "db", Done: done, Wanted: 4, Generation: 4, UID: "u", Revision: 9, Nodes: nodes, State: "s"}
}

func TestWaitPrints(t *testing.T) {
	b := newBench(t, map[string]any{inspect.AskWait: waiting(true, inspect.PolicyNode{Name: "node1", State: "realised"})})
	b.prints(0, "policy wait shop/db", "shop/db, generation 4 is in force on 1 node (")
	if w := b.asked.Wait; w == nil || w.Progress || w.Deleted || w.Generation != 0 || w.Most < 25*time.Second || w.Most > 30*time.Second || b.asked.ID != "shop/db" {
		t.Errorf("asked %+v", b.asked.Wait)
	}
	b.prints(0, "policy wait shop/db --generation 3 --timeout 1h", "in force on 1 node")
	if w := b.asked.Wait; w.Generation != 3 || w.Most < 50*time.Minute {
		t.Errorf("asked %+v", w)
	}
	b.prints(0, "policy wait shop/db --for=delete", "shop/db is gone from every node (")
	if !b.asked.Wait.Deleted {
		t.Error("netmaster was not asked for the end")
	}
	out, _, code := b.run("policy", "wait", "shop/db", "-o", "json")
	var got inspect.Wait
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != 0 || !got.Done || got.Nodes[0].State != "realised" || got.State != "" {
		t.Errorf("%s: %v, exit code %d", out, err, code)
	}
	b.answers[inspect.AskWait] = waiting(true)
	b.prints(0, "policy wait shop/db", "shop/db, generation 4: it applies to no pod")
}

// When the time is over the exit code is 3, and each node that lacks it is told with the reason.
func TestWaitTimesOut(t *testing.T) {
	b := newBench(t, map[string]any{inspect.AskWait: waiting(false, inspect.PolicyNode{Name: "node1", State: "realised"},
		inspect.PolicyNode{Name: "node2", State: "failed", Errors: []string{"table is\nfull"}}, inspect.PolicyNode{Name: "node3", State: "away", Reason: "not connected", Leaving: true},
		inspect.PolicyNode{Name: "node4", State: "pending", Reason: "has acknowledged revision 7 of 9"})})
	b.prints(exitUnreachable, "policy wait shop/db --timeout 1ms", "NODE", "node2", "failed", "table is full", "node3", "away", "has to drop its rules; not connected", "node4", "pending", "7 of 9",
		"netctl: not in force in time: shop/db after 1ms: node2 failed; node4 pending; node3 away")
	short := waiting(false)
	short.Reason = "netmaster has generation 3, not yet of 4"
	b.answers[inspect.AskWait] = short
	b.prints(exitUnreachable, "policy wait shop/db --timeout 1ms", "after 1ms: netmaster has generation 3, not yet of 4")
	for _, wrong := range []string{"", "db", "shop/db --timeout 0s", "shop/db --generation -1", "shop/db --for=ever", "shop/db --for=delete --generation 2"} {
		if _, errOut, code := b.run(strings.Fields("policy wait " + wrong)...); code != exitUsage || errOut == "" {
			t.Errorf("policy wait %s: exit code %d, %q", wrong, code, errOut)
		}
	}
	b.fail(status.Error(codes.NotFound, "there is no NetworkPolicy shop/db"))
	b.prints(exitFailed, "policy wait shop/db", "netctl: there is no NetworkPolicy shop/db")
	b.fail(status.Error(codes.Unimplemented, "this netmaster (v1) does not know the question"))
	b.prints(exitFailed, "policy wait shop/db", "does not know the question")
}

// script answers one after another.
type script struct {
	mu    sync.Mutex
	list  []any
	asked []inspect.WaitFor
}

func (s *script) answer(q *inspect.Question) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, *q.Wait)
	next := s.list[0]
	if len(s.list) > 1 {
		s.list = s.list[1:]
	}
	if err, ok := next.(error); ok {
		return nil, err
	}
	return next, nil
}

// While waiting each change is a line; a netmaster that is restarted meanwhile is asked again, for the same.
func TestWaitTellsChanges(t *testing.T) {
	early := waiting(false)
	early.Reason, early.Generation, early.State, early.Revision = "netmaster has generation 3, not yet of 4", 3, "a", 0
	pending := waiting(false, inspect.PolicyNode{Name: "node1", State: "pending", Reason: "has acknowledged revision 7 of 9"}, inspect.PolicyNode{Name: "node2", State: "away", Reason: "not connected"})
	still := waiting(false, inspect.PolicyNode{Name: "node1", State: "pending", Reason: "has acknowledged revision 8 of 9"}, inspect.PolicyNode{Name: "node2", State: "failed", Errors: []string{"table is full"}})
	s := &script{list: []any{early, pending, status.Error(codes.Unavailable, "netmaster is stopping"), still, waiting(true, inspect.PolicyNode{Name: "node1", State: "realised"})}}
	b := newBench(t, nil)
	b.script = s
	var out, errOut bytes.Buffer
	cmd := rootCommand()
	cmd.SetContext(context.Background())
	cmd.SetOut(&out)
	o := &waitOptions{options: &options{server: b.flags[1], output: "table", timeout: time.Second}, timeout: time.Minute, condition: "in-force"}
	o.tls.CA, o.tls.Cert, o.tls.Key = b.flags[3], b.flags[5], b.flags[7]
	got, err := o.ask(cmd, "shop/db", &errOut)
	if err != nil || !got.Done {
		t.Fatalf("%+v, %v", got, err)
	}
	want := `shop/db: netmaster has generation 3, not yet of 4
shop/db: generation 4 is resolved; 2 nodes need it
node1: pending
node2: away: not connected
node2: failed: table is full
node1: realised
node2: no longer needs it
`
	if errOut.String() != want {
		t.Errorf("told\n%s\nwant\n%s", errOut.String(), want)
	}
	last := s.asked[len(s.asked)-1]
	if !last.Progress || last.Generation != 4 || last.UID != "u" || last.Revision != 9 || last.Seen != "s" {
		t.Errorf("asked at last for %+v", last)
	}
	s.list = []any{errors.New("no")}
	if _, err := o.ask(cmd, "shop/db", nil); err == nil {
		t.Error("the first answer's error is lost")
	}
}

func TestIsTerminal(t *testing.T) {
	file, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if isTerminal(&plain{file}) || isTerminal(new(bytes.Buffer)) {
		t.Error("nobody reads along there")
	}
	device, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip(err)
	}
	defer device.Close()
	if !isTerminal(&plain{device}) {
		t.Error("a terminal is not known as one")
	}
}
