package deviceplugin

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/macvtap"
	"github.com/flowkeep/flowkeep/macvtap/dirwatch"
)

// Config is what a Manager works with. All is needed but Changed.
type Config struct {
	Dir       string // the kubelet's, of device plugins
	Allocator Allocator
	Changed   func() // a State may be another; it must not wait
	Log       *slog.Logger
	Metrics   *Metrics

	finishing time.Duration // how long the last list may take to reach the kubelet; 0: finishLimit
	following time.Duration // from the registration until the kubelet follows the devices; 0: followLimit
}

func (c Config) changed() {
	if c.Changed != nil {
		c.Changed()
	}
}

// Manager offers a node's resources to its kubelet. Safe for concurrent use.
type Manager struct {
	cfg    Config
	wanted chan struct{}

	mu        sync.Mutex
	resources []macvtap.Resource
	plugins   map[string]*plugin
	ending    map[string]<-chan struct{} // what is left of resources that are exposed no more
}

// New makes a manager that offers nothing yet; Run runs it, once.
func New(cfg Config) *Manager {
	return &Manager{cfg: cfg, wanted: make(chan struct{}, 1), plugins: map[string]*plugin{}, ending: map[string]<-chan struct{}{}}
}

// Set takes all that the node exposes from now on.
func (m *Manager) Set(resources []macvtap.Resource) {
	m.mu.Lock()
	m.resources = resources
	m.mu.Unlock()
	select {
	case m.wanted <- struct{}{}:
	default:
	}
}

// States returns the state of the registrations by resource.
func (m *Manager) States() map[string]State {
	m.mu.Lock()
	defer m.mu.Unlock()
	states := map[string]State{}
	for name, p := range m.plugins {
		states[name] = p.stands()
	}
	return states
}

// Run offers what Set says until ctx ends; then all servers are stopped. Pods keep what they have.
func (m *Manager) Run(ctx context.Context) error {
	var all sync.WaitGroup
	defer all.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	failed := make(chan error, 1)
	all.Go(func() { failed <- dirwatch.Follow(ctx, m.cfg.Dir, m.kick) })
	for {
		select {
		case <-m.wanted:
			m.arrange(ctx, &all)
		case err := <-failed: // or ctx has ended
			return err
		}
	}
}

// arrange has a plugin for each resource, and no others.
func (m *Manager) arrange(ctx context.Context, all *sync.WaitGroup) {
	m.mu.Lock()
	defer m.mu.Unlock()
	news := false
	keep := map[string]bool{}
	for _, r := range m.resources {
		keep[r.Name] = true
		p := m.plugins[r.Name]
		if p == nil {
			p = newPlugin(r.Name, m.cfg)
			before := m.ending[r.Name]
			delete(m.ending, r.Name)
			m.plugins[r.Name], news = p, true
			all.Go(func() { p.run(ctx, before) })
		}
		p.offer.set(devicesOf(r))
	}
	for name, p := range m.plugins {
		if !keep[name] {
			close(p.finished)
			m.cfg.Metrics.gone(name)
			delete(m.plugins, name)
			m.ending[name], news = p.done, true
		}
	}
	for name, done := range m.ending {
		select {
		case <-done:
			delete(m.ending, name)
		default:
		}
	}
	if news {
		m.cfg.changed()
	}
}

// kick has all plugins look at the directory.
func (m *Manager) kick() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range m.plugins {
		p.kick()
	}
}
