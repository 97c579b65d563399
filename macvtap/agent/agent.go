package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/internal/process"
	"github.com/flowkeep/flowkeep/macvtap"
	"github.com/flowkeep/flowkeep/macvtap/deviceplugin"
	"github.com/flowkeep/flowkeep/macvtap/dirwatch"
	"github.com/flowkeep/flowkeep/macvtap/links"
	"github.com/flowkeep/flowkeep/macvtap/podresources"
	"github.com/flowkeep/flowkeep/macvtap/report"
)

// Cluster is the API server, as far as the agent needs it. Safe for concurrent use.
type Cluster interface {
	// Follow calls handle with policies and labels at the start and at each change, and with errors of the API
	// server, until ctx ends.
	Follow(ctx context.Context, handle func(*Intent, error))
	// Report brings statuses to what the report says, and writes none that says so already.
	Report(ctx context.Context, r Report) error
}

// Plugins offer resources to the kubelet. Safe for concurrent use.
type Plugins interface {
	Set([]macvtap.Resource)
	States() map[string]deviceplugin.State
}

// Report is the state of a node. Nothing in it may be changed.
type Report struct {
	Facts         report.Facts                  // without links that are never exposed
	Registrations map[string]deviceplugin.State // by resource
	HoldersWhy    string                        // why they aren't known; "" if they are
	Trouble       []Trouble                     // of the node as a whole
}

// Trouble is what keeps the agent from its work, in whole or in part.
type Trouble struct{ Reason, Message string }

// Reasons of troubles.
const (
	ReasonConfig   = "BrokenConfiguration"
	ReasonUnknown  = "PoliciesUnknown"
	ReasonLinks    = "LinksUnknown"
	ReasonStateDir = "StateNotKept"
)

// Config is what an Agent works with. All is needed but Cluster, Records, File and Also.
type Config struct {
	Cluster      Cluster // nil: there are no policies
	Records      Records // nil: they are never removed
	File         string  // of the explicit configuration
	Environment  string  // the explicit configuration where the file is empty or there is none
	StateDir     string
	PodResources string // the kubelet's socket
	Also         []string
	Plugins      Plugins
	Log          *slog.Logger
	Metrics      *Metrics
	Health       *process.Health

	// Links follows the node's links until ctx ends; nil: those of this network namespace.
	Links func(ctx context.Context, tell func([]macvtap.Link)) error
}

// Agent decides what a node exposes. Run runs it, once.
type Agent struct {
	cfg     Config
	dirty   chan struct{}
	asked   chan struct{} // who holds what may be another
	reports chan Report   // the newest alone

	mu      sync.Mutex
	in      inputs
	exposed []macvtap.Resource // as was last decided
	decided bool
}

// inputs are the last values of all that the agent decides by.
type inputs struct {
	links      []macvtap.Link
	linksKnown bool
	config     *macvtap.Config
	configText string // the good one that config is
	configErr  error
	configRead bool
	intent     *Intent
	intentErr  error
	holders    []macvtap.Holder
	list       list // of which holders are
	holdersErr error
}

// New makes an agent.
func New(cfg Config) *Agent {
	if cfg.Links == nil {
		cfg.Links = func(ctx context.Context, tell func([]macvtap.Link)) error { return links.Follow(ctx, cfg.Log, tell) }
	}
	a := &Agent{cfg: cfg, dirty: make(chan struct{}, 1), asked: make(chan struct{}, 1), reports: make(chan Report, 1)}
	a.in.holdersErr = errors.New("the pods with devices were not queried from the kubelet yet")
	return a
}

// Changed signals that a registration has another state.
func (a *Agent) Changed() { signal(a.dirty) }

// Given signals that the kubelet was given devices.
func (a *Agent) Given() { signal(a.asked) }

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// told changes the inputs.
func (a *Agent) told(change func(in *inputs)) {
	a.mu.Lock()
	change(&a.in)
	a.mu.Unlock()
	signal(a.dirty)
}

// Run decides until ctx ends, or what it depends on can't be followed at all.
func (a *Agent) Run(ctx context.Context) error {
	release, err := claim(a.cfg.StateDir)
	if err != nil {
		return err
	}
	defer release()
	a.cfg.Health.SetReady("macvtap", "the node's links, its configuration or its policies are not known yet")
	m, err := load(a.cfg.StateDir)
	if err != nil {
		a.cfg.Log.Error("what was last known can't be read", "err", err)
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var all sync.WaitGroup
	for _, part := range []func() error{
		func() error {
			return a.cfg.Links(ctx, func(l []macvtap.Link) { a.told(func(in *inputs) { in.links, in.linksKnown = l, true }) })
		},
		func() error { return a.followConfig(ctx, m.Config) },
		func() error { a.followHolders(ctx); return nil },
		func() error { a.followCluster(ctx); return nil },
		func() error { a.reportAll(ctx); return nil },
		func() error { a.releaseAll(ctx); return nil },
		func() error { a.decideAll(ctx, m); return nil },
	} {
		all.Go(func() {
			if err := part(); err != nil {
				stop(err)
			}
		})
	}
	all.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

func (a *Agent) followCluster(ctx context.Context) {
	if a.cfg.Cluster == nil {
		a.told(func(in *inputs) { in.intent = new(Intent) })
		return
	}
	a.cfg.Cluster.Follow(ctx, func(i *Intent, err error) {
		a.told(func(in *inputs) {
			if in.intentErr = err; i != nil {
				in.intent = i
			}
		})
	})
}

// emptyFor is how long a file is empty, or away, before it counts as none: it may be just being written, and none may
// expose more.
const emptyFor = 2 * time.Second

// followConfig reads the file whenever its directory changes, as a ConfigMap's does by a symbolic link, and at every beat. good is the last
// one that could be read.
func (a *Agent) followConfig(ctx context.Context, good string) error {
	if a.cfg.File == "" {
		a.readConfig("", nil, good, true)
		return nil
	}
	var last string
	var emptied time.Time
	first := true
	return dirwatch.Follow(ctx, filepath.Dir(a.cfg.File), func() {
		text, err := os.ReadFile(a.cfg.File)
		if errors.Is(err, os.ErrNotExist) {
			text, err = nil, nil // as a ConfigMap that is optional
		}
		switch empty := err == nil && len(bytes.TrimSpace(text)) == 0; {
		case !empty || first:
			emptied = time.Time{}
		case emptied.IsZero():
			emptied = time.Now()
		}
		if !emptied.IsZero() && time.Since(emptied) < emptyFor {
			return
		}
		if now := fmt.Sprint(err) + string(text); first || now != last {
			last = now
			a.readConfig(string(text), err, good, first)
		}
		first = false
	})
}

// readConfig takes a configuration, or says that it is broken and goes on with the one before.
func (a *Agent) readConfig(text string, err error, good string, first bool) {
	if err == nil && strings.TrimSpace(text) == "" {
		text = a.cfg.Environment
	}
	config, perr := macvtap.ParseConfig([]byte(text))
	if err = errors.Join(err, perr); err == nil {
		if config != nil {
			for _, p := range config.Problems {
				a.cfg.Log.Warn("an entry of the configuration has a mistake", "entry", p.Origin, "problem", p.Message)
			}
		}
		a.told(func(in *inputs) { in.config, in.configText, in.configErr, in.configRead = config, text, nil, true })
		return
	}
	a.cfg.Log.Error("invalid configuration; the former one stays in use", "file", a.cfg.File, "err", err)
	before, _ := macvtap.ParseConfig([]byte(good)) // it was good when it was kept
	a.told(func(in *inputs) {
		if in.configErr, in.configRead = err, true; first {
			in.config, in.configText = before, good
		}
	})
}

const (
	holdersEvery = 15 * time.Second
	holdersSoon  = time.Second // after the kubelet was given devices: it lists them a moment later
)

// followHolders asks the kubelet which pods hold what, gently, and keeps the devices on the node that pods hold.
func (a *Agent) followHolders(ctx context.Context) {
	var known listings
	for {
		a.listHolders(ctx)
		if ctx.Err() != nil {
			return
		}
		known = a.sweep(known, time.Now())
		due := time.NewTimer(holdersEvery)
		select {
		case <-ctx.Done():
		case <-due.C:
		case <-a.asked:
			due.Reset(holdersSoon)
			select {
			case <-ctx.Done():
			case <-due.C:
			}
		}
		due.Stop()
	}
}

// listHolders takes up who holds devices. A list during which another kubelet took over has no kubelet.
func (a *Agent) listHolders(ctx context.Context) {
	kubelet := kubeletOf(a.cfg.PodResources)
	holders, pods, err := podresources.List(ctx, a.cfg.PodResources)
	if ctx.Err() != nil {
		return
	}
	if kubelet != kubeletOf(a.cfg.PodResources) {
		kubelet = ""
	}
	a.told(func(in *inputs) {
		if in.holdersErr = err; err == nil {
			in.holders, in.list = holders, list{kubelet, pods}
		}
	})
}

// decideAll decides whenever something is another. m is what an earlier process knew.
func (a *Agent) decideAll(ctx context.Context, m memory) {
	var kept memory
	fresh := true
	for {
		a.mu.Lock()
		in := a.in
		a.mu.Unlock()
		r, next, ok := decide(in, m, a.cfg.Also, time.Now())
		if ok {
			m = next
			if fresh || !sameMemory(kept, m) {
				if err := save(a.cfg.StateDir, m); err != nil {
					a.cfg.Log.Error("could not save the policies; a restart without the API server would not have them", "err", err)
					r.Trouble = append(r.Trouble, Trouble{ReasonStateDir, err.Error()})
				} else {
					kept, fresh = m, false
				}
			}
			a.mu.Lock()
			a.exposed, a.decided = r.Facts.Exposure.Resources, true
			a.mu.Unlock()
			a.cfg.Plugins.Set(r.Facts.Exposure.Resources)
		}
		a.tell(r, ok)
		at := m.forgetAt()
		if soon := time.Now().Add(missedFor / 10); !at.IsZero() && at.Before(soon) {
			at = soon // its devices may be held for long
		}
		if !wait(ctx, a.dirty, at) {
			return
		}
	}
}

// wait until something is another, or the time has come. False: ctx has ended.
func wait(ctx context.Context, dirty <-chan struct{}, at time.Time) bool {
	var due <-chan time.Time
	if !at.IsZero() {
		timer := time.NewTimer(max(time.Until(at), 0))
		defer timer.Stop()
		due = timer.C
	}
	select {
	case <-ctx.Done():
		return false
	case <-dirty:
	case <-due:
	}
	return ctx.Err() == nil
}

// decide is all that the agent does, as a function of its inputs, its memory and the time. Not ok: nothing can be
// decided yet, and what is offered stays as it is.
func decide(in inputs, m memory, also []string, now time.Time) (r Report, next memory, ok bool) {
	r.Trouble = troubles(in, m)
	r.Facts.Holders = in.holders
	if in.holdersErr != nil {
		r.HoldersWhy = in.holdersErr.Error()
	}
	if in.configErr != nil {
		r.Facts.Broken = in.configErr.Error()
	}
	if !in.linksKnown || !in.configRead {
		return r, m, false
	}
	intent := in.intended(m)
	m.Intent, m.Config = intent, in.configText
	if intent == nil && in.config == nil {
		return r, m, in.intentErr != nil // nothing is exposed, once it is known that it isn't known
	}
	if intent == nil {
		intent = new(Intent)
	}
	input := macvtap.Input{Config: in.config, Policies: intent.Policies, Labels: intent.Labels, Links: in.links, Known: m.Known, Also: also}
	r.Facts.Exposure = macvtap.Select(input)
	input.Links = notable(in.links, r.Facts.Exposure)
	r.Facts.In = input
	return r, m.remember(r.Facts.Exposure, in.links, in.held, now), true
}

// intended is what the API server says, or what it last said: also where it says that it knows no policies at all, although there were some.
func (in *inputs) intended(m memory) *Intent {
	if in.intent == nil || in.doubtful(m) {
		return m.Intent
	}
	return in.intent
}

func (in *inputs) doubtful(m memory) bool {
	return in.intent != nil && in.intent.Absent && m.Intent != nil && len(m.Intent.Policies) > 0
}

// notable leaves out links that come and go with pods and are not exposed.
func notable(list []macvtap.Link, e macvtap.Exposure) (kept []macvtap.Link) {
	exposed := map[string]bool{}
	for _, r := range e.Resources {
		for _, p := range r.Parents {
			exposed[p.Link] = true
		}
	}
	for _, l := range list {
		switch l.Kind {
		case "veth", "macvtap", "macvlan", "ipvlan", "ipvtap", "tun", "ifb":
			if !exposed[l.Name] {
				continue
			}
		}
		kept = append(kept, l)
	}
	return kept
}

// held reports whether a pod may hold a device on a resource's parent.
func (in *inputs) held(resource, parent string) bool {
	first := macvtap.DeviceID(resource, parent, 0)
	return in.holdersErr != nil || slices.ContainsFunc(in.holders, func(h macvtap.Holder) bool {
		return strings.HasPrefix(h.Device, strings.TrimSuffix(first, "0"))
	})
}

// troubles are in order of weight.
func troubles(in inputs, m memory) (list []Trouble) {
	if !in.linksKnown {
		list = append(list, Trouble{ReasonLinks, "the node's links are not known yet"})
	}
	if in.configErr != nil {
		list = append(list, Trouble{ReasonConfig, "the configuration can't be used, and the one before stays: " + in.configErr.Error()})
	}
	if in.doubtful(m) {
		list = append(list, Trouble{ReasonUnknown, "the API server lists no policies any more, like a new one: the former policies stay (kubectl apply -f deploy/crds)"})
	}
	if in.intentErr != nil {
		text := "the API server does not deliver policies and labels"
		switch {
		case in.intent != nil:
			text += "; those it last delivered stay"
		case m.Intent != nil:
			text += "; those that were known before this process started stay"
		case in.config == nil:
			text += ", and never did: nothing is exposed"
		}
		list = append(list, Trouble{ReasonUnknown, text + ": " + in.intentErr.Error()})
	}
	return list
}

func sameMemory(a, b memory) bool {
	return a.Config == b.Config && sameKnown(a, b) && reflect.DeepEqual(a.Intent, b.Intent)
}
