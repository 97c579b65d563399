package endpoints

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// Switch is where ports are made.
type Switch interface {
	EnsurePort(ctx context.Context, name string, e *Endpoint) (ofport uint32, err error)
	DeletePort(ctx context.Context, name string, e *Endpoint) error
}

// Realizer puts an endpoint's rules in force and opens its port, or closes it.
type Realizer interface {
	Realize(ctx context.Context, e Endpoint) error
	Forget(ctx context.Context, e Endpoint) error
}

// Allocator gives addresses, all of them or none.
type Allocator interface {
	Allocate(container, ifName string) ([]netip.Addr, error)
	Release(container, ifName string) error
	// Keep gives back the addresses of all that wanted does not know.
	Keep(wanted func(container, ifName string) bool) error
}

// Network is what pods' interfaces need to know of the node.
type Network struct {
	MTU        int
	GatewayMAC MAC
	Gateways   []netip.Addr
	// ChecksumOffload leaves checksums to the device: the kernel's datapath fills them in, the userspace one does not.
	ChecksumOffload bool
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
	// InHost returns why this may not be the node's network namespace; nil: it is. May be nil.
	InHost func() error
	// Writing is called before each operation on the directory, and its result after it; may be nil.
	Writing func(of string) (end func())
	// Proc is a mount of the node's proc(5), by which GC finds the processes of pods. Empty: /proc.
	Proc string
}

// Manager owns the endpoints of the node. Safe for concurrent use: one request a container at a time, different
// containers side by side.
type Manager struct {
	cfg    Config
	files  files
	locks  locks
	unread unreadFiles

	mu        sync.Mutex
	endpoints map[string]*Endpoint // by container and interface
	order     uint64               // the highest that was given
	reported  Kept                 // logged last
	network   Network
	allocator Allocator // nil: the node's pod CIDRs are not known yet
}

// Open reads what was wired before. What a crash left stays until Sweep.
func Open(cfg Config) (*Manager, error) {
	m := &Manager{
		cfg:       cfg,
		files:     files{filepath.Join(cfg.StateDir, "endpoints"), cfg.Writing, os.ReadFile},
		endpoints: map[string]*Endpoint{},
	}
	if err := (reader{m}).load(); err != nil {
		return nil, fmt.Errorf("read the endpoints: %w", err)
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

// List returns copies of all endpoints.
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
var ErrNotReady = errors.New(
	"netplugin does not know this node's pod CIDRs yet: is netmaster running, and has the Node spec.podCIDRs?")

func (m *Manager) get(key string) *Endpoint {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.endpoints[key]
}

// keep makes the endpoint known, on disk first: a crash from here on can be undone at the next start. It keeps a copy.
func (m *Manager) keep(e *Endpoint) error {
	if err := m.files.save(e); err != nil {
		return err
	}
	kept := *e
	m.mu.Lock()
	defer m.mu.Unlock()
	m.endpoints[keyOf(e.ContainerID, e.IfName)] = &kept
	m.unread.remove(m.files.path(e.ContainerID, e.IfName))
	return nil
}

func (m *Manager) drop(e *Endpoint) error {
	if err := m.files.remove(e); err != nil {
		return fmt.Errorf("remove the endpoint's file: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.endpoints, keyOf(e.ContainerID, e.IfName))
	m.unread.remove(m.files.path(e.ContainerID, e.IfName))
	return nil
}

func (m *Manager) nextOrder() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.order++
	return m.order
}

func (m *Manager) current() (Network, Allocator) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.network, m.allocator
}

// Request is a pod's interface as the runtime names it.
type Request struct {
	Namespace, Name, UID       string
	ContainerID, IfName, NetNS string
	Bandwidth                  Bandwidth
	HostPorts                  []PortMapping
}

// Result is what was wired.
type Result struct {
	Endpoint Endpoint
	Network  Network
}

// Errors that callers distinguish.
var (
	ErrUnknown = errors.New("no such interface is attached")
	ErrTaken   = errors.New("the container's interface is another pod's")
	ErrChanged = errors.New("the pod's attachment was changed")
	// ErrSwitch is returned while the switch takes no flows: pods that are attached may have no network either.
	ErrSwitch = errors.New("netplugin is not connected to Open vSwitch")
	// ErrSecondInterface is returned for a second network of Flowkeep's in one pod: policies know a pod by its
	// addresses on one interface.
	ErrSecondInterface = errors.New("Flowkeep gives a pod one interface")
)

// undoTimeout bounds the undoing of an ADD that failed; what is not undone by then, DEL or the next start undoes.
const undoTimeout = 10 * time.Second

// Add wires a pod and returns when its rules are in force. Asked again, it answers the same. On failure nothing is
// left.
func (m *Manager) Add(ctx context.Context, r Request) (*Result, error) {
	key := keyOf(r.ContainerID, r.IfName)
	unlock, err := m.locks.lock(ctx, r.ContainerID)
	if err != nil {
		return nil, err
	}
	defer unlock()
	network, allocator := m.current()
	if allocator == nil {
		return nil, ErrNotReady
	}
	have := m.get(key)
	if have != nil && have.Name != "" && (have.Namespace != r.Namespace || have.Name != r.Name) {
		return nil, fmt.Errorf("%w: %s is %s's, not %s/%s's", ErrTaken, key, have.ID(), r.Namespace, r.Name)
	}
	if other := otherInterface(m.List(), &r); other != "" && have == nil {
		return nil, fmt.Errorf("%w: pod %s/%s has %s of this network; use another plugin for %s",
			ErrSecondInterface, r.Namespace, r.Name, other, r.IfName)
	}
	if have != nil && have.Realised && have.UID == r.UID && have.NetNS == r.NetNS && checkLink(have, &network) == nil {
		e, err := m.refresh(ctx, have)
		if err != nil {
			return nil, err
		}
		return &Result{*e, network}, nil
	}
	e, err := m.wire(ctx, r, &network, allocator)
	if err != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
		defer cancel()
		if undoErr := m.undo(ctx, e); undoErr != nil {
			m.cfg.Logger.Error("could not remove a pod's attachment", "pod", e.ID(), "container", e.ContainerID,
				"error", undoErr)
		}
		return nil, err
	}
	return &Result{*e, network}, nil
}

// otherInterface returns the name of another interface that the same sandbox has, "" if it has none. Versions before
// attached a second one; the ADD of an interface that is known is repeated as before.
func otherInterface(all []Endpoint, r *Request) string {
	for _, e := range all {
		if e.ContainerID == r.ContainerID && e.IfName != r.IfName && e.Name != "" {
			return e.IfName
		}
	}
	return ""
}

// wire returns what it came to, on failure too.
func (m *Manager) wire(ctx context.Context, r Request, network *Network, allocator Allocator) (*Endpoint, error) {
	e := &Endpoint{Namespace: r.Namespace, Name: r.Name, UID: r.UID, ContainerID: r.ContainerID, IfName: r.IfName,
		NetNS:      r.NetNS,
		HostIfName: hostIfName(r.ContainerID, r.IfName), Order: m.nextOrder(), Bandwidth: r.Bandwidth,
		HostPorts: r.HostPorts}
	if err := m.keep(e); err != nil { // before anything is made or taken
		return e, err
	}
	var err error
	if e.Addresses, err = allocator.Allocate(r.ContainerID, r.IfName); err != nil {
		return e, err
	}
	e.MAC = macFor(e.Addresses)
	if err := m.keep(e); err != nil {
		return e, err
	}
	if err := makeLink(e, network); err != nil {
		return e, err
	}
	if e.Port, err = m.cfg.Switch.EnsurePort(ctx, e.HostIfName, e); err != nil {
		return e, err
	}
	if err := m.supersede(e); err != nil { // before the Realizer shuts them
		return e, err
	}
	if err := m.cfg.Realizer.Realize(ctx, *e); err != nil {
		return e, err
	}
	e.Realised = true
	return e, m.keep(e)
}

// refresh sees to the port of a pod that is wired: where it is gone it is made again, under a number of its own.
func (m *Manager) refresh(ctx context.Context, have *Endpoint) (*Endpoint, error) {
	port, err := m.cfg.Switch.EnsurePort(ctx, have.HostIfName, have)
	if err != nil || port == have.Port {
		return have, err
	}
	e := *have
	e.Port = port
	if err := m.cfg.Realizer.Realize(ctx, e); err != nil {
		return nil, err
	}
	return &e, m.keep(&e)
}

// undo takes a pod's wiring apart: the port's flows first, the address last, so that it is free only when nothing of
// the old pod can send from it. While the allocator is not known the endpoint is kept for Sweep, which gives the
// address back.
func (m *Manager) undo(ctx context.Context, e *Endpoint) error {
	err := m.cfg.Realizer.Forget(ctx, *e)
	err = errors.Join(err, m.cfg.Switch.DeletePort(ctx, e.HostIfName, e), removeLink(e))
	if err != nil {
		return err
	}
	_, allocator := m.current()
	if allocator == nil {
		left := *e
		left.Realised = false
		return m.keep(&left)
	}
	if err := allocator.Release(e.ContainerID, e.IfName); err != nil {
		return err
	}
	return m.drop(e)
}

// Del takes a pod's wiring apart; a pod that is not wired is fine.
func (m *Manager) Del(ctx context.Context, container, ifName string) error {
	key := keyOf(container, ifName)
	unlock, err := m.locks.lock(ctx, container)
	if err != nil {
		return err
	}
	defer unlock()
	e := m.get(key)
	if e == nil { // what is known by name alone goes all the same: its file may have been lost
		e = bare(container, ifName)
	}
	return m.undo(ctx, e)
}

// Check returns an error if the pod's end of the attachment differs from what Add created. It recreates a missing
// port.
func (m *Manager) Check(ctx context.Context, container, ifName string) error {
	key := keyOf(container, ifName)
	unlock, err := m.locks.lock(ctx, container)
	if err != nil {
		return err
	}
	defer unlock()
	e := m.get(key)
	if e == nil || !e.Realised {
		return fmt.Errorf("%w: container %s, %s", ErrUnknown, container, ifName)
	}
	network, _ := m.current()
	if err := checkLink(e, &network); err != nil {
		return fmt.Errorf("%w: %w", ErrChanged, err)
	}
	_, err = m.refresh(ctx, e)
	return err
}

// keepAddresses gives back the addresses that no endpoint has. Endpoints are known before they have addresses.
func (m *Manager) keepAddresses() error {
	_, allocator := m.current()
	if allocator == nil || m.unread.hasNameless() {
		return nil
	}
	return allocator.Keep(func(container, ifName string) bool { return m.get(keyOf(container, ifName)) != nil })
}

// Ready reports whether pods can be attached.
func (m *Manager) Ready() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.allocator == nil {
		return ErrNotReady
	}
	return nil
}
