package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/internal/process"
	"github.com/flowkeep/flowkeep/macvtap"
	"github.com/flowkeep/flowkeep/macvtap/deviceplugin"
	"github.com/flowkeep/flowkeep/macvtap/tap"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func device(name string) macvtap.Link {
	return macvtap.Link{Name: name, Index: 1 + len(name), Physical: true, Up: true, MTU: 1500}
}

// labelled selects nodes that have the label.
func labelled(name, label, parent string) macvtap.Policy {
	return macvtap.Policy{
		Namespace: "ns", Name: name, Nodes: policy.Selector{Requirements: []policy.Requirement{{Key: label, Operator: policy.Exists}}},
		Entries: []macvtap.Entry{{Parent: parent, Resource: "data"}},
	}
}

// says is what is exposed: "data:eth0 other:eth1!", ! is unhealthy.
func says(resources []macvtap.Resource) string {
	var list []string
	for _, r := range resources {
		for _, p := range r.Parents {
			text := r.Name + ":" + p.Link
			if !p.Healthy {
				text += "!"
			}
			list = append(list, text)
		}
	}
	return strings.Join(list, " ")
}

func TestDecide(t *testing.T) {
	now := time.Now()
	white := &Intent{Policies: []macvtap.Policy{labelled("p", "aware", "eth1")}, Labels: map[string]string{"aware": "true"}}
	config, err := macvtap.ParseConfig([]byte(`[{"name": "conf", "lowerDevice": "eth0"}]`))
	if err != nil {
		t.Fatal(err)
	}
	known := inputs{links: []macvtap.Link{device("eth0"), device("eth1")}, linksKnown: true, configRead: true}
	with := func(change func(in *inputs)) inputs {
		in := known
		change(&in)
		return in
	}
	away := errors.New("the API server is away")
	for what, c := range map[string]struct {
		in      inputs
		m       memory
		ok      bool
		want    string
		trouble string
	}{
		"nothing is known":                         {inputs{}, memory{}, false, "", ReasonLinks},
		"the links aren't":                         {with(func(in *inputs) { in.linksKnown, in.intent = false, white }), memory{}, false, "", ReasonLinks},
		"the configuration isn't":                  {with(func(in *inputs) { in.configRead, in.intent = false, white }), memory{}, false, "", ""},
		"the policies aren't yet":                  {known, memory{}, false, "", ""},
		"and won't be":                             {with(func(in *inputs) { in.intentErr = away }), memory{}, true, "", ReasonUnknown},
		"but there is a configuration":             {with(func(in *inputs) { in.intentErr, in.config = away, config }), memory{}, true, "conf:eth0", ReasonUnknown},
		"or they were known":                       {with(func(in *inputs) { in.intentErr = away }), memory{Intent: white}, true, "data:eth1", ReasonUnknown},
		"they were known, and none is asked for":   {known, memory{Intent: white}, true, "data:eth1", ""},
		"there are none":                           {with(func(in *inputs) { in.intent = new(Intent) }), memory{Intent: white}, true, "eth0:eth0 eth1:eth1", ""},
		"they are":                                 {with(func(in *inputs) { in.intent = white }), memory{}, true, "data:eth1", ""},
		"the API server has just started":          {with(func(in *inputs) { in.intent = &Intent{Absent: true} }), memory{Intent: white}, true, "data:eth1", ReasonUnknown},
		"it never knew any":                        {with(func(in *inputs) { in.intent = &Intent{Absent: true} }), memory{}, true, "eth0:eth0 eth1:eth1", ""},
		"the configuration is above them":          {with(func(in *inputs) { in.intent, in.config = white, config }), memory{}, true, "conf:eth0", ""},
		"a broken one is told of":                  {with(func(in *inputs) { in.intent, in.configErr = white, away }), memory{}, true, "data:eth1", ReasonConfig},
		"they were known, and then the API server": {with(func(in *inputs) { in.intent, in.intentErr = white, away }), memory{}, true, "data:eth1", ReasonUnknown},
	} {
		r, m, ok := decide(c.in, c.m, nil, now)
		reason := ""
		if len(r.Trouble) > 0 {
			reason = r.Trouble[0].Reason
		}
		if ok != c.ok || says(r.Facts.Exposure.Resources) != c.want || reason != c.trouble {
			t.Errorf("%s: %v, %q, %v", what, ok, says(r.Facts.Exposure.Resources), r.Trouble)
		}
		if i := c.in.intent; i != nil && ok && m.Intent != i && !i.Absent {
			t.Errorf("%s: not remembered", what)
		}
	}
}

// A parent that vanished stays, unhealthy, until nobody has missed it for long and no pod holds a device on it.
func TestVanishedParents(t *testing.T) {
	now := time.Now()
	in := inputs{links: []macvtap.Link{device("eth0"), device("eth1")}, linksKnown: true, configRead: true, intent: new(Intent)}
	m := memory{}
	at := func(what string, later time.Duration, want string) {
		t.Helper()
		var r Report
		r, m, _ = decide(in, m, nil, now.Add(later))
		if got := says(r.Facts.Exposure.Resources); got != want {
			t.Errorf("%s: %s", what, got)
		}
	}
	at("both", 0, "eth0:eth0 eth1:eth1")
	in.links = in.links[:1]
	at("gone", time.Minute, "eth0:eth0 eth1:eth1!")
	at("still", 10*time.Minute, "eth0:eth0 eth1:eth1!")
	in.holders = []macvtap.Holder{{Resource: "eth1", Device: macvtap.DeviceID("eth1", "eth1", 7)}}
	at("held", time.Hour, "eth0:eth0 eth1:eth1!")
	in.holders[0].Device = macvtap.DeviceID("eth1", "eth11", 7)
	in.holdersErr = errors.New("not known")
	at("perhaps held", 2*time.Hour, "eth0:eth0 eth1:eth1!")
	if m.forgetAt().Sub(now) != 11*time.Minute {
		t.Errorf("%v", m.Missed)
	}
	in.holdersErr = nil
	at("to be forgotten", 3*time.Hour, "eth0:eth0 eth1:eth1!")
	at("forgotten", 3*time.Hour, "eth0:eth0")
	in.links = append(in.links, device("eth1"))
	at("back", 4*time.Hour, "eth0:eth0 eth1:eth1")
	in.links = in.links[:1]
	at("gone again", 5*time.Hour, "eth0:eth0 eth1:eth1!")
	if !m.forgetAt().Equal(now.Add(5*time.Hour + missedFor)) {
		t.Errorf("%v", m.Missed)
	}
}

func TestMemory(t *testing.T) {
	dir := t.TempDir()
	if m, err := load(dir); err != nil || m.Intent != nil {
		t.Error(m, err)
	}
	quantity := 3
	p := labelled("p", "aware", "eth*")
	p.Created, p.Entries[0].Quantity = time.Now().Truncate(time.Second).UTC(), &quantity
	want := memory{
		Intent: &Intent{Policies: []macvtap.Policy{p}, Labels: map[string]string{"a": "b"}}, Config: "[]",
		Known: map[string][]string{"data": {"eth0"}}, Missed: map[string]missedSince{"data": {"eth0": p.Created}},
	}
	if err := save(dir, want); err != nil {
		t.Fatal(err)
	}
	got, err := load(dir)
	if err != nil || !sameMemory(got, want) {
		t.Errorf("%v: %+v, want %+v", err, got, want)
	}
	if files, _ := os.ReadDir(dir); len(files) != 1 {
		t.Errorf("%v", files)
	}
	if err := os.WriteFile(filepath.Join(dir, memoryFile), []byte(`{"intent": [`), 0o644); err != nil {
		t.Fatal(err)
	}
	if m, err := load(dir); err == nil || m.Intent != nil {
		t.Error(m, err)
	}
	if err := save(filepath.Join(dir, "none"), want); err == nil {
		t.Error("saved nowhere")
	}
}

// Of two agents on a node the second one ends, and says why; what a write that was cut short left is written over.
func TestOneAgent(t *testing.T) {
	n := newNode(t)
	second := New(Config{StateDir: n.dir, Plugins: n, Log: slog.New(slog.DiscardHandler), Metrics: NewMetrics(prometheus.NewRegistry()), Health: new(process.Health)})
	if err := second.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "another netplugin macvtap uses "+n.dir) {
		t.Error(err)
	}
	n.end()
	n.begin()
	dir := t.TempDir()
	for range 3 {
		if err := os.WriteFile(filepath.Join(dir, memoryFile+".new"), []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := save(dir, memory{Config: "[]"}); err != nil {
			t.Fatal(err)
		}
	}
	if m, err := load(dir); err != nil || m.Config != "[]" {
		t.Error(m, err)
	}
	if files, _ := os.ReadDir(dir); len(files) != 1 {
		t.Error(files)
	}
}

// A file that is written in place is empty for a moment: that is not a configuration of none, which would expose everything.
func TestEmptiedConfiguration(t *testing.T) {
	n := newNode(t)
	file := filepath.Join(n.dir, "config", "config.json")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(`[{"name": "a", "lowerDevice": "eth0"}]`)
	n.links([]macvtap.Link{device("eth0"), device("eth1")})
	n.intent(new(Intent), nil)
	n.offers("a:eth0")
	began := time.Now()
	write("")
	n.await("it counts as none", func() bool { return says(n.offered) == "eth0:eth0 eth1:eth1" })
	if took := time.Since(began); took < emptyFor {
		t.Errorf("an empty file counted after %v", took)
	}
	write(`[{"name": "b", "lowerDevice": "eth0"}]`)
	n.offers("b:eth0")
}

// The variable of macvtap-cni counts where the file is empty or away, and only there.
func TestEnvironment(t *testing.T) {
	for _, c := range []struct{ file, environment, want string }{
		{"", `[{"name": "a", "lowerDevice": "eth0"}]`, "a:eth0"},
		{`[{"name": "b", "lowerDevice": "eth0"}]`, `[{"name": "a", "lowerDevice": "eth0"}]`, "b:eth0"},
		{"[]", `[{"name": "a", "lowerDevice": "eth0"}]`, "eth0:eth0"},
		{"", "", "eth0:eth0"},
	} {
		for _, file := range []string{"", filepath.Join(t.TempDir(), "config.json")} {
			if file == "" && c.file != "" {
				continue
			}
			if c.file != "" {
				if err := os.WriteFile(file, []byte(c.file), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			a := New(Config{File: file, Environment: c.environment, Log: slog.New(slog.DiscardHandler)})
			ctx, stop := context.WithCancel(t.Context())
			done := make(chan error)
			go func() { done <- a.followConfig(ctx, "") }()
			<-a.dirty
			stop()
			<-done
			a.in.links, a.in.linksKnown, a.in.intent = []macvtap.Link{device("eth0")}, true, new(Intent)
			r, _, _ := decide(a.in, memory{}, nil, time.Now())
			if got := says(r.Facts.Exposure.Resources); got != c.want {
				t.Errorf("file %q, variable %q: %s, not %s", c.file, c.environment, got, c.want)
			}
		}
	}
}

// node is all that an agent works with, by hand.
type node struct {
	*testing.T
	dir  string
	news chan struct{}

	mu       sync.Mutex
	links    func([]macvtap.Link)
	intent   func(*Intent, error)
	offered  []macvtap.Resource
	sets     int
	reports  []Report
	refuse   error
	health   process.Health
	end      func()
	hasBegun chan struct{}
}

func (n *node) Set(r []macvtap.Resource) {
	n.seen(func() { n.offered, n.sets = r, n.sets+1 })
}

func (n *node) States() map[string]deviceplugin.State {
	return map[string]deviceplugin.State{"data": {Registered: true}}
}

func (n *node) Report(_ context.Context, r Report) (err error) {
	n.seen(func() {
		if err = n.refuse; err == nil {
			n.reports = append(n.reports, r)
		}
	})
	return err
}

func (n *node) Follow(ctx context.Context, tell func(*Intent, error)) {
	n.seen(func() { n.intent = tell })
	n.hasBegun <- struct{}{}
	<-ctx.Done()
}

func (n *node) seen(change func()) {
	n.mu.Lock()
	change()
	n.mu.Unlock()
	signal(n.news)
}

// last is the last report; to be called in await.
func (n *node) last() Report {
	if len(n.reports) == 0 {
		return Report{}
	}
	return n.reports[len(n.reports)-1]
}

func (n *node) await(what string, is func() bool) {
	n.Helper()
	end := time.After(time.Minute)
	for {
		n.mu.Lock()
		so := is()
		n.mu.Unlock()
		if so {
			return
		}
		select {
		case <-n.news:
		case <-end:
			n.mu.Lock()
			defer n.mu.Unlock()
			n.Fatalf("never: %s (%s, %d reports)", what, says(n.offered), len(n.reports))
		}
	}
}

func (n *node) offers(want string) {
	n.Helper()
	n.await("offers "+want, func() bool { return n.sets > 0 && says(n.offered) == want })
}

// begin starts an agent; the directory is that of the one before.
func (n *node) begin() {
	n.Helper()
	n.sets, n.offered = 0, nil
	n.hasBegun = make(chan struct{}, 2)
	a := New(Config{
		Cluster: n, File: filepath.Join(n.dir, "config", "config.json"), StateDir: n.dir, PodResources: filepath.Join(n.dir, "none.sock"), Plugins: n,
		Log: slog.New(slog.DiscardHandler), Metrics: NewMetrics(prometheus.NewRegistry()), Health: &n.health,
		Links: func(ctx context.Context, tell func([]macvtap.Link)) error {
			n.seen(func() { n.links = tell })
			n.hasBegun <- struct{}{}
			<-ctx.Done()
			return nil
		},
	})
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	n.end = sync.OnceFunc(func() {
		stop()
		if err := <-ended; err != nil {
			n.Error(err)
		}
	})
	n.Cleanup(n.end)
	<-n.hasBegun
	<-n.hasBegun
}

func newNode(t *testing.T) *node {
	n := &node{T: t, dir: t.TempDir(), news: make(chan struct{}, 1)}
	if err := os.Mkdir(filepath.Join(n.dir, "config"), 0o755); err != nil {
		t.Fatal(err)
	}
	n.begin()
	return n
}

// configure swaps the configuration as a ConfigMap's volume does: by a symbolic link to a directory.
func (n *node) configure(text string) {
	n.Helper()
	dir := filepath.Join(n.dir, "config")
	data, err := os.MkdirTemp(dir, "..data-")
	if err != nil {
		n.Fatal(err)
	}
	next := filepath.Join(dir, "..data_tmp")
	err = errors.Join(os.WriteFile(filepath.Join(data, "config.json"), []byte(text), 0o644), os.Symlink(filepath.Base(data), next), os.Rename(next, filepath.Join(dir, "..data")))
	if _, lerr := os.Lstat(filepath.Join(dir, "config.json")); lerr != nil {
		err = errors.Join(err, os.Symlink("..data/config.json", filepath.Join(dir, "config.json")))
	}
	if err != nil {
		n.Fatal(err)
	}
}

func TestDayTwo(t *testing.T) {
	n := newNode(t)
	n.links([]macvtap.Link{device("eth0")})
	if n.health.NotReady() == "" {
		t.Error("ready although the policies are not known")
	}
	n.intent(new(Intent), nil)
	n.offers("eth0:eth0")
	n.await("a report", func() bool {
		return strings.Contains(n.last().HoldersWhy, "--pod-resources")
	})
	n.links([]macvtap.Link{device("eth0"), device("eth1")})
	n.offers("eth0:eth0 eth1:eth1")
	i := &Intent{Policies: []macvtap.Policy{labelled("p", "aware", "eth1")}}
	n.intent(i, nil)
	n.offers("eth0:eth0 eth1:eth1")
	n.intent(&Intent{Policies: i.Policies, Labels: map[string]string{"aware": ""}}, nil)
	n.offers("data:eth1")
	n.configure(`[{"name": "conf", "lowerDevice": "eth0", "capacity": 3}]`)
	n.offers("conf:eth0")
	n.configure(`[{"name": "conf", "lowerDevice": "eth1"}]`)
	n.offers("conf:eth1")
	n.configure(`[{"name": `)
	n.await("a broken configuration is told of", func() bool {
		r := n.last()
		return len(r.Trouble) == 1 && r.Trouble[0].Reason == ReasonConfig && says(r.Facts.Exposure.Resources) == "conf:eth1"
	})
	n.configure(`[]`)
	n.offers("data:eth1")
	n.intent(i, nil) // the label is taken away
	n.offers("eth0:eth0 eth1:eth1")
	if n.health.NotReady() != "" {
		t.Error(n.health.NotReady())
	}
}

// A restart without the API server, and with a configuration that is broken, goes by what was known.
func TestRestartWithoutTheAPIServer(t *testing.T) {
	n := newNode(t)
	both := []macvtap.Link{device("eth0"), device("eth1")}
	n.links(both)
	n.intent(&Intent{Policies: []macvtap.Policy{labelled("p", "aware", "eth*")}, Labels: map[string]string{"aware": ""}}, nil)
	n.offers("data:eth0 data:eth1")
	n.end()
	n.begin()
	n.links(both[:1])
	n.offers("data:eth0 data:eth1!")
	n.intent(nil, errors.New("no route to host"))
	n.await("it says so", func() bool {
		r := n.last()
		return len(r.Trouble) == 1 && strings.Contains(r.Trouble[0].Message, "before this process started") && says(r.Facts.Exposure.Resources) == "data:eth0 data:eth1!"
	})
	n.configure(`[{"name": "conf", "lowerDevice": "eth0"}]`)
	n.offers("conf:eth0")
	n.end()
	n.configure(`{"name": "conf"}`)
	n.begin()
	n.links(both)
	n.offers("conf:eth0")
	n.intent(new(Intent), nil)
	n.configure(``)
	n.offers("eth0:eth0 eth1:eth1")
}

// What the API server does not take is brought again; the newest only.
func TestReportsAreBroughtAgain(t *testing.T) {
	n := newNode(t)
	n.seen(func() { n.refuse = errors.New("conflict") })
	n.links([]macvtap.Link{device("eth0")})
	n.intent(new(Intent), nil)
	n.offers("eth0:eth0")
	for i := range 50 {
		n.links([]macvtap.Link{device(fmt.Sprintf("eth%d", i))})
	}
	n.await("the last", func() bool {
		return slices.ContainsFunc(n.offered, func(r macvtap.Resource) bool { return r.Name == "eth49" })
	})
	n.seen(func() { n.refuse = nil })
	n.await("one report of the last", func() bool {
		return slices.ContainsFunc(n.last().Facts.Exposure.Resources, func(r macvtap.Resource) bool { return r.Name == "eth49" })
	})
	if len(n.reports) > 3 {
		t.Errorf("%d reports", len(n.reports))
	}
}

type store struct{ err error }

func (s store) Allocate(resource, parent string, mode macvtap.Mode, id string) (tap.Device, error) {
	return tap.Device{HostPath: "/dev-of/" + resource + parent + string(mode) + id, ContainerPath: "/dev/tap5"}, s.err
}

func TestAllocator(t *testing.T) {
	given := 0
	a := Allocator{Store: store{}, Given: func() { given++ }, Log: slog.New(slog.DiscardHandler)}
	g, err := a.Allocate(t.Context(), []deviceplugin.Device{{Resource: "r", ID: "i", Parent: "p", Mode: macvtap.VEPA}})
	if err != nil || len(g.Nodes) != 1 || g.Nodes[0] != (deviceplugin.Node{Host: "/dev-of/rpvepai", Container: "/dev/tap5", Permissions: "rw"}) || given != 1 {
		t.Error(g, err, given)
	}
	a.Store = store{errors.New("full")}
	if _, err := a.Allocate(t.Context(), []deviceplugin.Device{{ID: "i"}}); err == nil || !strings.Contains(err.Error(), "allocate i: full") {
		t.Error(err)
	}
}
