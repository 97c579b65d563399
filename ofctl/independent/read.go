package independent

import (
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"runtime/debug"
	"unique"

	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
)

const (
	// memoryLimit bounds the memory of the process that reads, in bytes; goLimit is what Go's runtime keeps to.
	memoryLimit = 512 << 20
	goLimit     = memoryLimit * 3 / 4
	// batch is how many flows are sent at a time.
	batch = 256
)

// part is what the process that reads sends about a table. Kind and order of the fields are its format.
type part struct {
	Table uint8
	// Kind is empty for flows; else it is groups or meters.
	Kind string
	// Unsteady is set where the table changed each time it was read.
	Unsteady bool
	Flows    []sentFlow
	Groups   []sentGroup
	Meters   []sentMeter
	// End is set in the last part of all.
	End bool
}

// Kinds of part, and of Unread.
const (
	groups = "groups"
	meters = "meters"
)

// sentGroup is a group in a form that encoding/gob can carry.
type sentGroup struct {
	ID      uint32
	Buckets [][]sentAction
	Problem string
}

// sentMeter is a meter with the reason why it could not be read.
type sentMeter struct {
	ofctl.Meter
	Problem string
}

// sentFlow is a flow in a form that encoding/gob can carry: actions have their addresses as they are.
type sentFlow struct {
	Table          uint8
	Priority       uint16
	Cookie         uint64
	Match          ofctl.Match
	Actions        []sentAction
	Packets, Bytes uint64
	Problem        string
}

// sentAction has the fields of ofctl.Action.
type sentAction struct {
	Kind                        ofctl.ActionKind
	Table, Reg, Clause, Clauses uint8
	Commit, Force               bool
	Zone                        uint16
	Port, Value, Mask           uint32
	MAC                         ofctl.MAC
	Addr                        netip.Addr
	Nat                         ofctl.Nat
}

// LimitProcess bounds the memory of this process. Read belongs into a process of its own.
func LimitProcess() error {
	debug.SetMemoryLimit(goLimit)
	logrus.SetLevel(logrus.ErrorLevel)
	return unix.Setrlimit(unix.RLIMIT_DATA, &unix.Rlimit{Cur: memoryLimit, Max: memoryLimit})
}

// Read reads all tables of the bridge with this management socket through ofnet, with its groups and meters, and writes
// them to w for a Reader.
func Read(ctx context.Context, socket string, w io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := connect(ctx, socket)
	if err != nil {
		return err
	}
	out := gob.NewEncoder(w)
	if err := errors.Join(s.sendGroups(ctx, out), s.sendMeters(ctx, out)); err != nil {
		return err
	}
	for table := 0; table <= maxTable; table++ {
		flows, ok, err := s.read(ctx, uint8(table))
		if err != nil {
			return err
		}
		if !ok {
			err = out.Encode(part{Table: uint8(table), Unsteady: true})
		}
		for ; err == nil && len(flows) > 0; flows = flows[min(batch, len(flows)):] {
			err = out.Encode(part{Table: uint8(table), Flows: sent(flows[:min(batch, len(flows))])})
		}
		if err != nil {
			return err
		}
	}
	return out.Encode(part{End: true})
}

func (s *session) sendGroups(ctx context.Context, out *gob.Encoder) error {
	list, ok, err := s.groups(ctx)
	if err != nil {
		return fmt.Errorf("read the groups: %w", err)
	}
	p := part{Kind: groups, Unsteady: !ok}
	for _, g := range list {
		to := sentGroup{ID: g.ID, Problem: g.problem}
		for _, bucket := range g.Buckets {
			to.Buckets = append(to.Buckets, sentActions(bucket))
		}
		p.Groups = append(p.Groups, to)
	}
	return out.Encode(p)
}

func (s *session) sendMeters(ctx context.Context, out *gob.Encoder) error {
	list, ok, err := s.meters(ctx)
	if err != nil {
		return fmt.Errorf("read the meters: %w", err)
	}
	p := part{Kind: meters, Unsteady: !ok}
	for _, m := range list {
		p.Meters = append(p.Meters, sentMeter{m.Meter, m.problem})
	}
	return out.Encode(p)
}

func sent(flows []*entry) []sentFlow {
	out := make([]sentFlow, len(flows))
	for i, e := range flows {
		f := &e.flow
		out[i] = sentFlow{f.Table, f.Priority, f.Cookie, f.Match, sentActions(f.Actions), f.Packets, f.Bytes, e.problem}
	}
	return out
}

func sentActions(actions []ofctl.Action) (list []sentAction) {
	for i := range actions {
		a := &actions[i]
		s := sentAction{
			Kind:    a.Kind,
			Table:   a.Table,
			Reg:     a.Reg,
			Clause:  a.Clause,
			Clauses: a.Clauses,
			Commit:  a.Commit,
			Force:   a.Force,
			Zone:    a.Zone,
			Port:    a.Port,
			Value:   a.Value,
			Mask:    a.Mask,
			MAC:     a.MAC,
			Nat:     a.Nat,
		}
		if a.Addr != (unique.Handle[netip.Addr]{}) {
			s.Addr = a.Addr.Value()
		}
		list = append(list, s)
	}
	return list
}

// received undoes sent.
func (s *sentFlow) received() ofctl.Flow {
	return ofctl.Flow{
		Table:    s.Table,
		Priority: s.Priority,
		Cookie:   s.Cookie,
		Match:    s.Match,
		Packets:  s.Packets,
		Bytes:    s.Bytes,
		Actions:  receivedActions(s.Actions),
	}
}

// receivedActions undoes sentActions.
func receivedActions(actions []sentAction) (list []ofctl.Action) {
	for i := range actions {
		a := &actions[i]
		to := ofctl.Action{
			Kind:    a.Kind,
			Table:   a.Table,
			Reg:     a.Reg,
			Clause:  a.Clause,
			Clauses: a.Clauses,
			Commit:  a.Commit,
			Force:   a.Force,
			Zone:    a.Zone,
			Port:    a.Port,
			Value:   a.Value,
			Mask:    a.Mask,
			MAC:     a.MAC,
			Nat:     a.Nat,
		}
		if a.Addr.IsValid() {
			to.Addr = unique.Make(a.Addr)
		}
		list = append(list, to)
	}
	return list
}
