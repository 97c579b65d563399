package independent

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/flowkeep/flowkeep/ofctl"
)

// maxStderr is how much of what a process prints about its failure is kept, in bytes.
const maxStderr = 64 << 10

var errNotRead = errors.New("the independent reader failed: it has not read all")

// Reader reads a switch's flows by a process that calls Read. A Reader is for one reading.
type Reader struct {
	// Command is the program and its arguments.
	Command []string
	// Timeout bounds the time of the process; 0: only the context does.
	Timeout time.Duration
	// Tables are the tables that had flows, in order, and Unread what could not be read. Dump sets both.
	Tables []uint8
	Unread []Unread

	groups []ofctl.SelectGroup
	meters []ofctl.Meter
}

// Unread is a flow, a group or a meter that could not be read, or all of a table.
type Unread struct {
	// Kind is empty for flows; else it is "groups" or "meters".
	Kind string
	// ID is the number of a group or a meter.
	ID       uint32
	Table    uint8
	Whole    bool
	Priority uint16
	Cookie   uint64
	Reason   string
}

// Has reports whether a flow may be what could not be read.
func (u *Unread) Has(f *ofctl.Flow) bool {
	return u.Kind == "" && u.Table == f.Table && (u.Whole || u.Priority == f.Priority && u.Cookie == f.Cookie)
}

// HasGroup reports whether a group may be what could not be read.
func (u *Unread) HasGroup(id uint32) bool { return u.Kind == groups && (u.Whole || u.ID == id) }

// HasMeter reports whether a meter may be what could not be read.
func (u *Unread) HasMeter(id uint32) bool { return u.Kind == meters && (u.Whole || u.ID == id) }

// String returns the table, and of a flow its priority and cookie, with the reason.
func (u *Unread) String() string {
	if u.Kind != "" && u.Whole {
		return fmt.Sprintf("%s: %s", u.Kind, u.Reason)
	}
	if u.Kind != "" {
		return fmt.Sprintf("%s %d: %s", u.Kind, u.ID, u.Reason)
	}
	if u.Whole {
		return fmt.Sprintf("table %d: %s", u.Table, u.Reason)
	}
	return fmt.Sprintf("table %d priority %d cookie %#x: %s", u.Table, u.Priority, u.Cookie, u.Reason)
}

// Dump starts the process and visits all flows that it reads; the error that visit gets is always nil. It fails where
// the process fails, or visit does, and then kills the process. The process ends with ctx.
func (r *Reader) Dump(ctx context.Context, visit func(ofctl.Flow, error) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if r.Timeout > 0 {
		ctx, cancel = context.WithTimeoutCause(ctx, r.Timeout, fmt.Errorf("%w within %v", errNotRead, r.Timeout))
		defer cancel()
	}
	cmd := exec.CommandContext(ctx, r.Command[0], r.Command[1:]...)
	failed := &head{}
	cmd.Stderr = failed
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the independent reader: %w", err)
	}
	readErr := r.take(gob.NewDecoder(bufio.NewReader(out)), visit)
	overdue := context.Cause(ctx)
	if readErr != nil {
		cancel()
	}
	waitErr := cmd.Wait()
	if errors.Is(overdue, errNotRead) {
		return overdue
	}
	switch {
	case readErr == nil && waitErr == nil:
		return nil
	case readErr != nil && !errors.Is(readErr, io.EOF) && !errors.Is(readErr, io.ErrUnexpectedEOF):
		return readErr
	case context.Cause(ctx) != nil && waitErr == nil:
		return context.Cause(ctx)
	}
	return fmt.Errorf("the independent reader failed: %w: %s", cmp.Or(waitErr, io.ErrUnexpectedEOF), failed)
}

func (r *Reader) take(in *gob.Decoder, visit func(ofctl.Flow, error) error) error {
	r.Tables, r.Unread, r.groups, r.meters = nil, nil, nil, nil
	for {
		var p part
		if err := in.Decode(&p); err != nil {
			return err
		}
		if p.End {
			return nil
		}
		if p.Unsteady {
			r.Unread = append(r.Unread, Unread{
				Kind:   p.Kind,
				Table:  p.Table,
				Whole:  true,
				Reason: "it changed each time it was read",
			})
		}
		if p.Kind != "" {
			r.takeOthers(&p)
			continue
		}
		if !slices.Contains(r.Tables, p.Table) {
			r.Tables = append(r.Tables, p.Table)
		}
		for i := range p.Flows {
			f := &p.Flows[i]
			if f.Problem != "" {
				r.Unread = append(r.Unread, Unread{
					Table:    f.Table,
					Priority: f.Priority,
					Cookie:   f.Cookie,
					Reason:   f.Problem,
				})
				continue
			}
			if err := visit(f.received(), nil); err != nil {
				return err
			}
		}
	}
}

// takeOthers takes groups and meters.
func (r *Reader) takeOthers(p *part) {
	for i := range p.Groups {
		g := &p.Groups[i]
		if g.Problem != "" {
			r.Unread = append(r.Unread, Unread{Kind: groups, ID: g.ID, Reason: g.Problem})
			continue
		}
		to := ofctl.SelectGroup{ID: g.ID}
		for _, bucket := range g.Buckets {
			to.Buckets = append(to.Buckets, receivedActions(bucket))
		}
		r.groups = append(r.groups, to)
	}
	for i := range p.Meters {
		m := &p.Meters[i]
		if m.Problem != "" {
			r.Unread = append(r.Unread, Unread{Kind: meters, ID: m.ID, Reason: m.Problem})
			continue
		}
		r.meters = append(r.meters, m.Meter)
	}
}

// Groups visits the groups that Dump has read; the error that visit gets is always nil.
func (r *Reader) Groups(_ context.Context, visit func(ofctl.SelectGroup, error) error) error {
	for _, g := range r.groups {
		if err := visit(g, nil); err != nil {
			return err
		}
	}
	return nil
}

// Meters returns the meters that Dump has read.
func (r *Reader) Meters(context.Context) ([]ofctl.Meter, error) { return r.meters, nil }

// Counts returns the numbers of the groups and of the meters that Dump has read.
func (r *Reader) Counts() (groups, meters int) { return len(r.groups), len(r.meters) }

// Close does nothing: Dump ends what it has started.
func (r *Reader) Close() error { return nil }

// head keeps the beginning of what is written, and writes as much as comes.
type head struct{ bytes.Buffer }

func (t *head) Write(b []byte) (int, error) {
	t.Buffer.Write(b[:min(len(b), max(0, maxStderr-t.Len()))])
	return len(b), nil
}

// String returns the line that names the cause: of a panic its first.
func (t *head) String() string {
	for line := range strings.Lines(t.Buffer.String()) {
		if line = strings.TrimSpace(line); line != "" {
			return line
		}
	}
	return "it printed nothing"
}
