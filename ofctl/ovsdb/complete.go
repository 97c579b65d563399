package ovsdb

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// rows is a copy of the database's replica, by UUID.
type rows struct {
	roots      []openVSwitch
	bridges    map[string]bridge
	ports      map[string]port
	interfaces map[string]iface
	mirrors    map[string]mirror
}

// bridge returns the bridge of the name, nil if there is none.
func (r *rows) bridge(name string) *bridge {
	for _, b := range r.bridges {
		if b.Name == name {
			return &b
		}
	}
	return nil
}

// isComplete reports whether the rows are those of one state of the database: each row that another one refers to is
// there. ovsdb-server never lacks one (RFC 7047, 3.2: strong references). The replica does while the library fills it
// after a connection was lost, and between the rows of a transaction.
func (r *rows) isComplete() bool {
	if len(r.roots) != 1 || len(r.roots[0].Bridges) != len(r.bridges) {
		return false
	}
	for _, id := range r.roots[0].Bridges {
		b, ok := r.bridges[id]
		if !ok {
			return false
		}
		if !r.hasAllOf(&b) {
			return false
		}
	}
	return true
}

// hasAllOf reports whether the rows that a bridge refers to are there.
func (r *rows) hasAllOf(b *bridge) bool {
	for _, id := range b.Ports {
		p, ok := r.ports[id]
		if !ok {
			return false
		}
		for _, id := range p.Interfaces {
			if _, ok := r.interfaces[id]; !ok {
				return false
			}
		}
	}
	for _, id := range b.Mirrors {
		if _, ok := r.mirrors[id]; !ok {
			return false
		}
	}
	return true
}

// replica is what the library keeps of the database.
type replica interface {
	List(ctx context.Context, result any) error
}

// read copies the replica, table by table.
func read(ctx context.Context, of replica) (*rows, error) {
	var roots []openVSwitch
	var bridges []bridge
	var ports []port
	var interfaces []iface
	var mirrors []mirror
	err := errors.Join(of.List(ctx, &roots), of.List(ctx, &bridges), of.List(ctx, &ports), of.List(ctx, &interfaces),
		of.List(ctx, &mirrors))
	r := &rows{
		roots:      roots,
		bridges:    map[string]bridge{},
		ports:      map[string]port{},
		interfaces: map[string]iface{},
		mirrors:    map[string]mirror{},
	}
	for _, b := range bridges {
		r.bridges[b.UUID] = b
	}
	for _, p := range ports {
		r.ports[p.UUID] = p
	}
	for _, i := range interfaces {
		r.interfaces[i.UUID] = i
	}
	for _, m := range mirrors {
		r.mirrors[m.UUID] = m
	}
	return r, err
}

// completeTimeout bounds the wait for a complete replica.
const completeTimeout = 2 * time.Second

// ErrIncomplete is returned while the replica of the database is not complete: what is missing in it may exist.
var ErrIncomplete = errors.New("the Open vSwitch database was not read completely yet")

// complete waits for a complete replica, and returns a copy.
func (db *DB) complete(ctx context.Context) (*rows, error) { return complete(ctx, db.client) }

func complete(ctx context.Context, of replica) (*rows, error) {
	ctx, cancel := context.WithTimeout(ctx, completeTimeout)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		r, err := read(ctx, of)
		switch {
		case ctx.Err() != nil: // List returns what it has then
			return nil, fmt.Errorf("%w: %w", ErrIncomplete, ctx.Err())
		case err != nil:
			return nil, err
		case r.isComplete():
			return r, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}
