package endpoints

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
)

// Switch is where ports are made.
type Switch interface {
	EnsurePort(ctx context.Context, name string, e *Endpoint) (ofport uint32, err error)
	DeletePort(ctx context.Context, name string) error
}

// Realizer puts an endpoint's rules in force and opens its port, or closes it.
type Realizer interface {
	Realize(ctx context.Context, e Endpoint) error
	Forget(ctx context.Context, e Endpoint) error
}

// Allocator gives addresses.
type Allocator interface {
	Allocate(container, ifName string) ([]netip.Addr, error)
	Release(container, ifName string) error
}

// Network is what pods' interfaces need to know of the node.
type Network struct {
	MTU        int
	GatewayMAC MAC
	Gateways   []netip.Addr
}

func (n *Network) gatewayFor(a netip.Addr) netip.Addr {
	for _, g := range n.Gateways {
		if g.Is4() == a.Is4() {
			return g
		}
	}
	return netip.Addr{}
}

// Config is what a manager needs.
type Config struct {
	StateDir string
	Logger   *slog.Logger
	Switch   Switch
	Realizer Realizer
}

// Manager owns the endpoints of the node. Safe for concurrent use: one request a container at a time, different containers
// side by side.
type Manager struct {
	cfg   Config
	files files

	mu        sync.Mutex
	endpoints map[string]*Endpoint // by container and interface
	busy      map[string]chan struct{}
	network   Network
	allocator Allocator // nil: the node's pod CIDRs are not known yet
}

// Open reads what was wired before. Endpoints that were never realised are left from a crash: they are undone.
func Open(cfg Config) (*Manager, error) {
	m := &Manager{cfg: cfg, files: files{filepath.Join(cfg.StateDir, "endpoints")}, endpoints: map[string]*Endpoint{}, busy: map[string]chan struct{}{}}
	list, bad, err := m.files.load()
	if err != nil {
		return nil, fmt.Errorf("read the endpoints: %w", err)
	}
	for _, path := range bad {
		cfg.Logger.Error("an endpoint's file is unreadable; its pod stays cut off until it is made anew", "file", path+".corrupt")
	}
	for _, e := range list {
		m.endpoints[keyOf(e.ContainerID, e.IfName)] = e
	}
	return m, nil
}

func keyOf(container, ifName string) string { return container + "/" + ifName }

// SetNetwork says how pods are wired from now on.
func (m *Manager) SetNetwork(n Network, a Allocator) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.network, m.allocator = n, a
}

// List is a copy of all endpoints.
func (m *Manager) List() []Endpoint {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]Endpoint, 0, len(m.endpoints))
	for _, e := range m.endpoints {
		out = append(out, *e)
	}
	return out
}

// ErrNotReady is returned while the node's pod CIDRs are not known.
var ErrNotReady = errors.New("netplugin does not know this node's pod CIDRs yet: is netmaster running, and has the Node spec.podCIDRs?")

// lock waits until no other request works on the container's interface.
func (m *Manager) lock(ctx context.Context, key string) (unlock func(), err error) {
	for {
		m.mu.Lock()
		wait, busy := m.busy[key]
		if !busy {
			done := make(chan struct{})
			m.busy[key] = done
			m.mu.Unlock()
			return func() {
				m.mu.Lock()
				delete(m.busy, key)
				m.mu.Unlock()
				close(done)
			}, nil
		}
		m.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, fmt.Errorf("another request works on container %s: %w", key, ctx.Err())
		}
	}
}

func (m *Manager) get(key string) *Endpoint {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.endpoints[key]
}

func (m *Manager) put(key string, e *Endpoint) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e == nil {
		delete(m.endpoints, key)
	} else {
		m.endpoints[key] = e
	}
}

// Request is a pod's interface as the runtime names it.
type Request struct {
	Namespace, Name, UID       string
	ContainerID, IfName, NetNS string
}

// Result is what was wired.
type Result struct {
	Endpoint Endpoint
	Network  Network
}

// Add wires a pod and returns when its rules are in force. Asked again, it answers the same. On failure nothing is left.
func (m *Manager) Add(ctx context.Context, r Request) (*Result, error) {
	key := keyOf(r.ContainerID, r.IfName)
	unlock, err := m.lock(ctx, key)
	if err != nil {
		return nil, err
	}
	defer unlock()
	m.mu.Lock()
	network, allocator := m.network, m.allocator
	m.mu.Unlock()
	if allocator == nil {
		return nil, ErrNotReady
	}
	if have := m.get(key); have != nil && have.Realised && checkLink(have) == nil {
		return &Result{*have, network}, nil
	}
	e, err := m.wire(ctx, r, &network, allocator)
	if err != nil {
		if undoErr := m.undo(context.WithoutCancel(ctx), e); undoErr != nil {
			m.cfg.Logger.Error("could not undo a pod's wiring", "pod", r.Namespace+"/"+r.Name, "error", undoErr)
		}
		return nil, err
	}
	return &Result{*e, network}, nil
}

func (m *Manager) wire(ctx context.Context, r Request, network *Network, allocator Allocator) (*Endpoint, error) {
	e := &Endpoint{Namespace: r.Namespace, Name: r.Name, UID: r.UID, ContainerID: r.ContainerID, IfName: r.IfName, NetNS: r.NetNS,
		HostIfName: hostIfName(r.ContainerID, r.IfName)}
	var err error
	if e.Addresses, err = allocator.Allocate(r.ContainerID, r.IfName); err != nil {
		return e, err
	}
	e.MAC = macFor(e.Addresses)
	if err := m.files.save(e); err != nil { // first, so that a crash from here on is undone at the next start
		return e, err
	}
	m.put(keyOf(e.ContainerID, e.IfName), e)
	if err := makeLink(e, network); err != nil {
		return e, err
	}
	if e.Port, err = m.cfg.Switch.EnsurePort(ctx, e.HostIfName, e); err != nil {
		return e, err
	}
	if err := m.cfg.Realizer.Realize(ctx, *e); err != nil {
		return e, err
	}
	realised := *e
	realised.Realised = true
	m.put(keyOf(e.ContainerID, e.IfName), &realised)
	return &realised, m.files.save(&realised)
}

// undo takes a pod's wiring apart: the port's flows first, the address last, so that it is free only when nothing of the
// old pod can send from it.
func (m *Manager) undo(ctx context.Context, e *Endpoint) error {
	err := m.cfg.Realizer.Forget(ctx, *e)
	err = errors.Join(err, m.cfg.Switch.DeletePort(ctx, e.HostIfName), removeLink(e))
	if err != nil {
		return err
	}
	m.mu.Lock()
	allocator := m.allocator
	m.mu.Unlock()
	if allocator != nil {
		err = allocator.Release(e.ContainerID, e.IfName)
	}
	if err == nil {
		err = m.files.remove(e)
	}
	if err == nil {
		m.put(keyOf(e.ContainerID, e.IfName), nil)
	}
	return err
}

// Del takes a pod's wiring apart; a pod that is not wired is fine.
func (m *Manager) Del(ctx context.Context, container, ifName string) error {
	key := keyOf(container, ifName)
	unlock, err := m.lock(ctx, key)
	if err != nil {
		return err
	}
	defer unlock()
	e := m.get(key)
	if e == nil {
		m.mu.Lock()
		allocator := m.allocator
		m.mu.Unlock()
		if allocator != nil {
			return allocator.Release(container, ifName)
		}
		return nil
	}
	return m.undo(ctx, e)
}

// Check fails if the wiring is not what Add made.
func (m *Manager) Check(ctx context.Context, container, ifName string) error {
	key := keyOf(container, ifName)
	unlock, err := m.lock(ctx, key)
	if err != nil {
		return err
	}
	defer unlock()
	e := m.get(key)
	if e == nil || !e.Realised {
		return fmt.Errorf("container %s has no interface %s here", container, ifName)
	}
	if _, err := m.cfg.Switch.EnsurePort(ctx, e.HostIfName, e); err != nil {
		return err
	}
	return checkLink(e)
}

// GC takes apart what is not among the valid attachments, each "container/ifname".
func (m *Manager) GC(ctx context.Context, valid []string) error {
	var errs []error
	for _, e := range m.List() {
		if !slices.Contains(valid, keyOf(e.ContainerID, e.IfName)) {
			errs = append(errs, m.Del(ctx, e.ContainerID, e.IfName))
		}
	}
	return errors.Join(errs...)
}

// Sweep undoes what a crash left: endpoints that were never realised, and those whose network namespace is gone.
func (m *Manager) Sweep(ctx context.Context) {
	for _, e := range m.List() {
		_, err := os.Stat(e.NetNS)
		if e.Realised && err == nil {
			continue
		}
		m.cfg.Logger.Info("undoing a pod's wiring that a crash left", "pod", e.ID(), "container", e.ContainerID)
		if err := m.Del(ctx, e.ContainerID, e.IfName); err != nil {
			m.cfg.Logger.Error("could not undo a pod's wiring", "pod", e.ID(), "error", err)
		}
	}
}

// Ready tells whether pods can be wired.
func (m *Manager) Ready() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.allocator == nil {
		return ErrNotReady
	}
	return nil
}
