package nodestate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/flowkeep/flowkeep/nodestate/nmstate"
)

// Backend reads and changes a node's network. One goroutine uses it, and at most one change is open at a time.
//
// A change is made in this order: Apply asks order.Journal to keep what undoes it, then makes the change and returns it
// open; the caller looks whether it did what was meant, and ends it by Commit or Rollback. An open Change outlives the
// process: Rollback takes one that another process made and the journal kept.
type Backend interface {
	// Name is what status.backend says: "native", "nmstatectl".
	Name() string
	// Capabilities are the interface types and features that this node can do, sorted.
	Capabilities() []string
	// Show is the whole current state, nothing left out.
	Show(ctx context.Context) (nmstate.State, error)
	// Apply brings the node to the state desired, without committing. It returns once the kernel has taken all steps,
	// or when ctx ends. Without a difference it returns a Change without steps, and does not call order.Journal.
	//
	// A desired state that is not possible as written (an unknown type, a link that is Flowkeep's) is an error that is
	// ErrRefused, before anything is changed. After an error that follows the call of order.Journal the change is open
	// as far as it came: the caller rolls back.
	Apply(ctx context.Context, desired nmstate.State, order Order) (Change, error)
	// Commit ends an open change: it stays.
	Commit(ctx context.Context, c Change) error
	// Rollback ends an open change: what it changed is again as before, and nothing else is touched. Doing it twice is no error,
	// nor is a change of which nothing, or only a part, was made. The error says what could not be restored.
	Rollback(ctx context.Context, c Change) error
}

// Order is how a change is to be made.
type Order struct {
	// Revert is how long the change may stay open. A backend that can have it undone by someone else at that time
	// (NetworkManager) does so.
	Revert time.Duration
	// Journal keeps, on disk, what undoes the change. It is called once, before the first change to the node, with Before and Steps
	// filled in. Its error means that nothing may be changed. Nil: nothing is kept.
	Journal func(Change) error
	// Volatile allows a change of the node's only uplink by a backend that does not keep it across a reboot.
	Volatile bool
	// Addresses returns the Node's addresses: the node reaches the API server by their families. Nil, or none returned:
	// they are not known.
	Addresses func(context.Context) []netip.Addr
	// Since is the open change that this order continues, because the node differs from the desired state again.
	// Journal gets a change that undoes both, and Apply returns it. If the node needs no change, or the backend cannot
	// continue a change, Apply returns Since. Nil: no change is open.
	Since *Change
}

// Change is what Apply does or did. It is written to disk as JSON.
type Change struct {
	Backend string          `json:"backend"`          // Name of who made it
	Before  json.RawMessage `json:"before,omitempty"` // all that Rollback needs; only Rollback reads it
	Steps   []string        `json:"steps,omitempty"`  // for people: "set mtu of eth1 to 1450 (was 1500)"
	// Verified: the backend has compared the node with the desired state itself, and only what it reports decides.
	Verified bool `json:"verified,omitempty"`
	// Persistent: it outlives a reboot of the node, so that it has to be rolled back after one too.
	Persistent bool `json:"persistent,omitempty"`
}

// ErrRefused is of desires that can't be had as they are written: nothing was changed.
var ErrRefused = errors.New("refused")

// Refuse returns an error with this text that wraps ErrRefused.
func Refuse(format string, args ...any) error { return refusal{fmt.Errorf(format, args...)} }

type refusal struct{ error }

func (r refusal) Is(target error) bool { return target == ErrRefused }

func (r refusal) Unwrap() error { return r.error }
