package nmstatectl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/nodestate"
	"github.com/flowkeep/flowkeep/nodestate/nmstate"
)

// The test binary is the stand-in too: a program that keeps a state, and at most one checkpoint, in a directory.
const standInEnv = "FLOWKEEP_TEST_NMSTATECTL"

func TestMain(m *testing.M) {
	if dir := os.Getenv(standInEnv); dir != "" {
		if err := standIn(dir, os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Setenv("GORACE", os.Getenv("GORACE")+" atexit_sleep_ms=0") // under the race detector each stand-in would sleep for a second as it ends
	os.Exit(m.Run())
}

const checkpointName = "/org/freedesktop/NetworkManager/Checkpoint/7"

// standIn does what the real one does with these arguments, and refuses all others.
func standIn(dir string, args []string) error {
	log, err := os.OpenFile(filepath.Join(dir, "calls"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	fmt.Fprintln(log, strings.Join(args, " "))
	log.Close()
	state, kept := filepath.Join(dir, "state"), filepath.Join(dir, "checkpoint")
	if said, err := os.ReadFile(filepath.Join(dir, "fail-"+args[0])); err == nil {
		fmt.Println("{}")
		return errors.New(string(said))
	}
	if _, err := os.Stat(filepath.Join(dir, "hang-"+args[0])); err == nil {
		fmt.Fprintln(os.Stderr, "waiting for NetworkManager")
		if err := os.WriteFile(filepath.Join(dir, "hanging"), nil, 0o600); err != nil {
			return err
		}
		select {}
	}
	switch strings.Join(args, " ") {
	case "show --json":
		fmt.Fprintln(os.Stderr, "a warning, which is no part of the state")
		text, err := os.ReadFile(state)
		fmt.Println(string(text))
		return err
	case "set -":
		return setState(state)
	case "set --no-commit --timeout 60 -", "set --no-commit --timeout 5 -":
		if err := os.Link(state, kept); err != nil {
			return fmt.Errorf("NmstateConflictError: %w", err)
		}
		printed, err := os.ReadFile(filepath.Join(dir, "prints-set"))
		if err != nil {
			printed = []byte("Desired state applied:\nCheckpoint: " + checkpointName)
		}
		fmt.Println(string(printed))
		if shown, err := os.ReadFile(filepath.Join(dir, "shows-after-set")); err == nil {
			return errors.Join(os.Remove(state), os.WriteFile(state, shown, 0o600))
		}
		return setState(state)
	case "commit", "commit " + checkpointName:
		return os.Remove(kept)
	case "rollback", "rollback " + checkpointName:
		return os.Rename(kept, state)
	}
	return fmt.Errorf("unexpected arguments %q", args)
}

func setState(path string) error {
	document, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	desired, err := nmstate.Parse(document)
	if err != nil {
		return fmt.Errorf("NmstateValueError: %w", err)
	}
	current, err := nmstate.Parse(text)
	if err != nil {
		return err
	}
	next, err := json.Marshal(nmstate.Overlay(current, desired))
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", next, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// node is a stand-in and the backend over it.
type node struct {
	*testing.T
	*Backend
	dir string
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{T: t, dir: t.TempDir()}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(standInEnv, n.dir)
	n.put("state", `{"interfaces": [{"name": "dummy0", "type": "dummy", "state": "up", "mtu": 1500, "mac-address": "AA:BB:CC:00:11:22"}]}`)
	n.Backend = New(self, "fk0", func(desired nmstate.State) error {
		if _, named := desired.Interface("fk0"); named {
			return nodestate.Refuse("fk0 is not yours")
		}
		return nil
	})
	return n
}

func (n *node) put(name, text string) {
	n.Helper()
	if err := os.WriteFile(filepath.Join(n.dir, name), []byte(text), 0o600); err != nil {
		n.Fatal(err)
	}
}

func (n *node) calls() []string {
	text, _ := os.ReadFile(filepath.Join(n.dir, "calls"))
	_ = os.Remove(filepath.Join(n.dir, "calls"))
	return strings.Split(strings.TrimSpace(string(text)), "\n")
}

func (n *node) mtu() any {
	n.Helper()
	s, err := n.Show(n.Context())
	if err != nil {
		n.Fatal(err)
	}
	i, _ := s.Interface("dummy0")
	return i["mtu"]
}

func (n *node) apply(text string) (c, journalled nodestate.Change, err error) {
	n.Helper()
	desired, err := nmstate.Parse([]byte(text))
	if err != nil {
		n.Fatal(err)
	}
	c, err = n.Apply(n.Context(), desired, nodestate.Order{Revert: time.Minute, Journal: func(c nodestate.Change) error {
		if n.mtu() != int64(1500) {
			n.Error("the journal is written after the change")
		}
		journalled = c
		return nil
	}})
	return c, journalled, err
}

const mtu1450 = `{interfaces: [{name: dummy0, mtu: 1450}]}`

func TestChangeIsCommitted(t *testing.T) {
	n := newNode(t)
	c, journalled, err := n.apply(mtu1450)
	if err != nil || len(journalled.Steps) != 1 || !journalled.Persistent || n.mtu() != int64(1450) {
		t.Fatalf("%v: %+v", err, journalled)
	}
	if !c.Verified {
		t.Error("set has compared the node itself")
	}
	n.calls()
	if err := n.Commit(t.Context(), c); err != nil || !slices.Equal(n.calls(), []string{"commit " + checkpointName}) {
		t.Error(err)
	}
	c, journalled, err = n.apply(mtu1450)
	if err != nil || len(c.Steps) != 0 || journalled.Backend != "" {
		t.Errorf("what is so already is changed: %v: %+v", err, c)
	}
	if calls := n.calls(); !slices.Equal(calls, []string{"show --json"}) {
		t.Error(calls)
	}
}

// TestApply_ContinuesNoChange: NetworkManager refuses a second checkpoint of a device.
func TestApply_ContinuesNoChange(t *testing.T) {
	n := newNode(t)
	c, _, err := n.apply(mtu1450)
	if err != nil {
		t.Fatal(err)
	}
	n.calls()
	again, err := n.Apply(t.Context(), nmstate.State{}, nodestate.Order{Since: &c})
	if calls := n.calls(); err != nil || string(again.Before) != string(c.Before) || calls[0] != "" {
		t.Errorf("%v: %+v, calls %q", err, again, calls)
	}
}

// By what Apply returned; by what the journal kept, which knows no checkpoint; twice; and after the checkpoint is gone.
func TestChangeIsRolledBack(t *testing.T) {
	for name, gone := range map[string]bool{"checkpoint": false, "checkpoint gone": true} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			c, journalled, err := n.apply(`{interfaces: [{name: dummy0, mtu: 1450}, {name: dummy9, type: dummy, state: up}]}`)
			if err != nil {
				t.Fatal(err)
			}
			if gone {
				if err := os.Remove(filepath.Join(n.dir, "checkpoint")); err != nil {
					t.Fatal(err)
				}
			}
			for _, change := range []nodestate.Change{journalled, c, c} {
				if err := n.Rollback(t.Context(), change); err != nil {
					t.Error(err)
				}
				s, err := n.Show(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if i, there := s.Interface("dummy9"); there && i.State() != nmstate.Absent || n.mtu() != int64(1500) {
					t.Errorf("%v", s)
				}
			}
		})
	}
}

// What comes by itself is no change to make, and nothing to undo: link-local addresses and routes, which routes.config has no say in.
func TestWhatComesByItselfIsNoDifference(t *testing.T) {
	n := newNode(t)
	n.put("state", `{"interfaces": [{"name": "eth0", "type": "ethernet", "state": "up",
		"ipv6": {"enabled": true, "address": [{"ip": "fe80::1", "prefix-length": 64}, {"ip": "2001:db8::1", "prefix-length": 64}]}}, {"name": "dummy0", "type": "dummy", "mtu": 1500}],
		"routes": {"running": [{"destination": "fe80::/64", "next-hop-interface": "eth0"}, {"destination": "ff00::/8", "next-hop-interface": "eth0"}]}}`)
	c, _, err := n.apply(`{interfaces: [{name: eth0, ipv6: {enabled: true, address: [{ip: "2001:db8::1", prefix-length: 64}]}}], routes: {config: [{state: absent, next-hop-interface: eth0}]}}`)
	if err != nil || len(c.Steps) > 0 {
		t.Errorf("%v: %v", err, c.Steps)
	}
}

// The journal of an agent that died knows no checkpoint. Where NetworkManager has undone the change by itself, the last one is another's.
func TestOthersCheckpointIsLeftAlone(t *testing.T) {
	n := newNode(t)
	_, journalled, err := n.apply(mtu1450)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(n.dir, "checkpoint"), filepath.Join(n.dir, "state")); err != nil { // its time was over
		t.Fatal(err)
	}
	n.calls()
	if err := n.Rollback(t.Context(), journalled); err != nil || !slices.Equal(n.calls(), []string{"show --json"}) {
		t.Error(err)
	}
}

func TestRefusalChangesNothing(t *testing.T) {
	n := newNode(t)
	if _, journalled, err := n.apply(`{interfaces: [{name: fk0, state: absent}]}`); !errors.Is(err, nodestate.ErrRefused) || journalled.Backend != "" {
		t.Error(err)
	}
	_, journalled, err := n.apply(`{dns-resolver: {running: {server: [192.0.2.54]}, config: {server: [192.0.2.53]}}}`)
	if !errors.Is(err, nodestate.ErrRefused) || !strings.Contains(err.Error(), "differs from dns-resolver.config.server") || journalled.Backend != "" {
		t.Error(err)
	}
	n.put("fail-set", "a long trace\nmore of it\nNotSupportedError: infiniband is not supported")
	_, _, err = n.apply(`{interfaces: [{name: x, type: infiniband, state: up}]}`)
	if !errors.Is(err, nodestate.ErrRefused) || !strings.Contains(err.Error(), "infiniband is not supported") {
		t.Error(err)
	}
	n.put("fail-set", "NmstateVerificationError: mtu is 1500")
	if _, _, err = n.apply(mtu1450); errors.Is(err, nodestate.ErrRefused) || err == nil {
		t.Error(err)
	}
}

func TestShowTellsErrors(t *testing.T) {
	n := newNode(t)
	n.put("fail-show", "NetworkManager is not running")
	if _, err := n.Show(t.Context()); err == nil || !strings.Contains(err.Error(), "nmstatectl show: exit status 1: NetworkManager is not running") || strings.Contains(err.Error(), "{}") {
		t.Error(err)
	}
	_ = os.Remove(filepath.Join(n.dir, "fail-show"))
	for _, garbage := range []string{"", "null", "[]", "no JSON"} {
		n.put("state", garbage)
		if s, err := n.Show(t.Context()); err == nil {
			t.Errorf("%q is %v", garbage, s)
		}
	}
}

func TestProgramThatHangsIsEnded(t *testing.T) {
	n := newNode(t)
	n.put("hang-show", "")
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	go func() { // has enough of it once it hangs
		for ctx.Err() == nil {
			if _, err := os.Stat(filepath.Join(n.dir, "hanging")); err == nil {
				cancel(errors.New("enough"))
			}
			time.Sleep(time.Millisecond)
		}
	}()
	if _, err := n.Show(ctx); err == nil || !strings.Contains(err.Error(), "enough: waiting for NetworkManager") {
		t.Error(err)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"interfaces": [{"name": "eth0", "mtu": 1500}], "routes": {"running": []}}`))
	f.Add([]byte(`{"interfaces": null}`))
	f.Add([]byte(`{"interfaces": [1, {"name": 7}], "routes": 5}`))
	f.Fuzz(func(t *testing.T, out []byte) {
		s, err := decode(out)
		if err != nil {
			return
		}
		if d := nmstate.Diff(s, s); len(d) > 0 && nmstate.Check(s, true) == nil {
			t.Errorf("%v differs from itself: %v", s, d)
		}
	})
}
