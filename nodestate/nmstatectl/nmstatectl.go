// Package nmstatectl is the node-state backend over the program nmstatectl, which changes what NetworkManager keeps. A change is a
// checkpoint of NetworkManager's, which undoes it by itself when the revert time is over, whatever becomes of the agent.
package nmstatectl

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/flowkeep/flowkeep/nodestate"
	"github.com/flowkeep/flowkeep/nodestate/nmstate"
)

// Name of the program, and of the backend.
const Name = "nmstatectl"

// How long the program may take for what it does at once.
const (
	quickLimit = 20 * time.Second
	endLimit   = 2 * time.Second // from the signal to end until its output is given up
)

// Backend runs the program. It is nodestate.Backend.
type Backend struct {
	program string
	bridge  string
	guard   func(desired nmstate.State) error
}

// New takes the program's path, the name of Flowkeep's bridge, and a guard that refuses desires of what is not to be touched; nil refuses
// none.
func New(program, bridge string, guard func(desired nmstate.State) error) *Backend {
	if guard == nil {
		guard = func(nmstate.State) error { return nil }
	}
	return &Backend{program, bridge, guard}
}

// Name is "nmstatectl".
func (b *Backend) Name() string { return Name }

// Capabilities returns what all versions since 1.0 have. An older program reports a missing one when it is used.
func (b *Backend) Capabilities() []string {
	return []string{
		"bond", "dns-resolver", "dummy", "ethernet", "linux-bridge", "mac-vlan", "mac-vtap", "ovs-bridge", "ovs-interface", "route-rules",
		"routes", "veth", "vlan", "vrf", "vxlan",
	}
}

// Show runs `nmstatectl show`.
func (b *Backend) Show(ctx context.Context) (nmstate.State, error) {
	out, err := b.run(ctx, quickLimit, nil, "show", "--json")
	if err != nil {
		return nil, err
	}
	return decode(out)
}

// decode parses the program's output. The output is not held to the rules of a desired state.
func decode(out []byte) (nmstate.State, error) {
	var state nmstate.State
	if err := json.Unmarshal(out, &state); err != nil {
		return nil, fmt.Errorf("parse the output of nmstatectl show: %w: %.100q", err, out)
	}
	if state == nil {
		return nil, errors.New("nmstatectl show printed nothing")
	}
	return nmstate.Canonical(state), nil
}

// before is the record to undo a change: the checkpoint, and the former state if the checkpoint no longer exists.
type before struct {
	Checkpoint string        `json:"checkpoint,omitempty"`
	State      nmstate.State `json:"state"`
}

// Apply runs `nmstatectl set --no-commit`. It does not continue a change: NetworkManager has one checkpoint of a
// device.
func (b *Backend) Apply(ctx context.Context, desired nmstate.State, order nodestate.Order) (nodestate.Change, error) {
	if order.Since != nil {
		return *order.Since, nil
	}
	change := nodestate.Change{Backend: Name, Persistent: true}
	if err := b.guard(desired); err != nil {
		return change, err
	}
	if reasons := nmstate.RefusedReported(desired); len(reasons) > 0 { // the program ignores these fields
		return change, nodestate.Refuse("%s", strings.Join(reasons, "\n"))
	}
	current, err := b.Show(ctx)
	if err != nil {
		return change, err
	}
	for _, d := range b.differences(desired, current) {
		change.Steps = append(change.Steps, d.Path+" was "+text(d.Have)+", is to be "+text(d.Want))
	}
	if len(change.Steps) == 0 {
		return change, nil
	}
	old := before{State: former(desired, current)}
	if change.Before, err = json.Marshal(old); err != nil {
		return change, fmt.Errorf("keep what was there before: %w", err)
	}
	if order.Journal != nil {
		if err := order.Journal(change); err != nil {
			return change, err
		}
	}
	old.Checkpoint, err = b.set(ctx, desired, order.Revert)
	if err != nil {
		return change, err
	}
	change.Verified = true // set compares the node with the document, and fails where they differ
	change.Before, err = json.Marshal(old)
	return change, err
}

// differences returns the node's own differences from the desired state: changes by pods and by the kernel are left
// out.
func (b *Backend) differences(desired, current nmstate.State) []nmstate.Difference {
	return nmstate.Diff(desired, nmstate.Own(current, desired, b.bridge))
}

func text(v any) string {
	if v == nil {
		return "absent"
	}
	out, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(out)
}

// former is a document that has the interfaces that desired names as they are, absent where they are not there, and the routes, rules and
// DNS if desired says anything of them.
func former(desired, current nmstate.State) nmstate.State {
	var interfaces []any
	for _, i := range desired.Interfaces() {
		if now, ok := current.Interface(i.Name()); ok {
			interfaces = append(interfaces, map[string]any(now))
		} else {
			interfaces = append(interfaces, map[string]any{"name": i.Name(), "type": i.Type(), "state": nmstate.Absent})
		}
	}
	old := nmstate.State{"interfaces": interfaces}
	for key, now := range map[string]any{"routes": current["routes"], "route-rules": current["route-rules"], "dns-resolver": current["dns-resolver"]} {
		section, _ := now.(map[string]any)
		if desired[key] != nil && section["config"] != nil {
			old[key] = map[string]any{"config": section["config"]}
		}
	}
	return old
}

// checkpoint is how NetworkManager names one.
var checkpoint = regexp.MustCompile(`/org/freedesktop/NetworkManager/Checkpoint/\d+`)

func (b *Backend) set(ctx context.Context, desired nmstate.State, revert time.Duration) (string, error) {
	document, err := json.Marshal(desired)
	if err != nil {
		return "", fmt.Errorf("write the desire: %w", err)
	}
	seconds := max(1, int(revert.Round(time.Second)/time.Second))
	out, err := b.run(ctx, revert, document, "set", "--no-commit", "--timeout", strconv.Itoa(seconds), "-")
	return string(checkpoint.Find(out)), err
}

// Commit runs `nmstatectl commit`.
func (b *Backend) Commit(ctx context.Context, c nodestate.Change) error {
	if len(c.Steps) == 0 {
		return nil
	}
	old, err := beforeOf(c)
	if err != nil {
		return err
	}
	_, err = b.run(ctx, quickLimit, nil, withCheckpoint("commit", old)...)
	return err
}

func withCheckpoint(verb string, old before) []string {
	if old.Checkpoint == "" { // the last one, then
		return []string{verb}
	}
	return []string{verb, old.Checkpoint}
}

func beforeOf(c nodestate.Change) (old before, err error) {
	if err := json.Unmarshal(c.Before, &old); err != nil {
		return old, fmt.Errorf("read what was there before the change: %w", err)
	}
	return old, nil
}

// Rollback is `nmstatectl rollback`. Where the checkpoint is gone, NetworkManager may have undone the change by itself; if the node shows
// that it has not, the former state is set.
func (b *Backend) Rollback(ctx context.Context, c nodestate.Change) error {
	if len(c.Steps) == 0 {
		return nil
	}
	old, err := beforeOf(c)
	if err != nil {
		return err
	}
	if done, err := b.isAgain(ctx, old.State); old.Checkpoint == "" && (done || err != nil) {
		return err // the last checkpoint may be another program's by now
	}
	_, rollErr := b.run(ctx, quickLimit, nil, withCheckpoint("rollback", old)...)
	if done, err := b.isAgain(ctx, old.State); err != nil {
		return errors.Join(rollErr, err)
	} else if done {
		return nil
	}
	document, err := json.Marshal(old.State)
	if err != nil {
		return fmt.Errorf("write the former state: %w", err)
	}
	if _, err := b.run(ctx, quickLimit, document, "set", "-"); err != nil {
		return errors.Join(rollErr, err)
	}
	return nil
}

// isAgain reports whether the node is as it was.
func (b *Backend) isAgain(ctx context.Context, old nmstate.State) (bool, error) {
	current, err := b.Show(ctx)
	if err != nil {
		return false, err
	}
	return len(b.differences(nmstate.Own(old, old, b.bridge), current)) == 0, nil
}

// run has the program's words as an error when it fails: what it writes to standard error, and never what it writes to standard output.
func (b *Backend) run(ctx context.Context, limit time.Duration, stdin []byte, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("no answer within %v", limit))
	defer cancel()
	cmd := exec.CommandContext(ctx, b.program, args...)
	cmd.Stdin = bytes.NewReader(stdin)
	cmd.WaitDelay = endLimit
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if err == nil {
		return stdout.Bytes(), nil
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	said := lastLines(stderr.String())
	if isRefusal(said) {
		return nil, nodestate.Refuse("nmstatectl %s: %w: %s", args[0], err, said)
	}
	return nil, fmt.Errorf("nmstatectl %s: %w: %s", args[0], err, said)
}

// isRefusal: these kinds of its errors are of what was asked, and not of the node.
func isRefusal(said string) bool {
	for _, kind := range []string{
		"InvalidArgument", "NotImplementedError", "NotSupportedError", "NmstateValueError", "NmstateNotImplementedError", "NmstateNotSupportedError",
	} {
		if strings.Contains(said, kind) {
			return true
		}
	}
	return false
}

// lastLines returns the end of the output: a trace before that does not help.
func lastLines(said string) string {
	const most = 5
	lines := strings.Split(strings.TrimSpace(said), "\n")
	return strings.Join(lines[max(0, len(lines)-most):], "\n")
}
