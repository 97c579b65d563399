// Program simulate runs the feed clients of many nodes in one process, to measure netmaster. Each client is netplugin's and
// has a certificate of its own. It holds the updates that it receives, acknowledges them and installs nothing. Requests by
// HTTP control the nodes (Handler).
package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/internal/mtls"
	"github.com/flowkeep/flowkeep/internal/process"
	"github.com/flowkeep/flowkeep/netplugin/feed"
)

// Config says which nodes there are.
type Config struct {
	Servers []string
	// PKI is the directory of an authority with its key. The nodes' certificates are made there.
	PKI string
	// Count nodes are called Prefix and a number, from First on.
	Count, First int
	Prefix       string
	// Slow of them take Delay for every update.
	Slow   int
	Delay  time.Duration
	Logger *slog.Logger
}

func (c *Config) check() error {
	if c.Count < 1 || c.First < 0 || c.Slow < 0 || c.Slow > c.Count || c.Delay < 0 {
		return errors.New("there must be at least one node, none before the number 0, and no more slow ones than there are")
	}
	if len(c.Servers) == 0 {
		return errors.New("no netmaster is named")
	}
	return nil
}

// Nodes are simulated nodes. Safe for concurrent use.
type Nodes struct {
	cfg  Config
	all  []*node
	by   map[string]*node
	seen *seen

	mu      sync.Mutex
	end     context.CancelFunc // nil: they are not connected
	clients *sync.WaitGroup
}

// newNodes creates nodes and their certificates. A request connects them (Handler).
func newNodes(cfg Config) (*Nodes, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	n := &Nodes{cfg: cfg, by: map[string]*node{}, seen: newSeen()}
	for i := range cfg.Count {
		one := newNode(fmt.Sprintf("%s%d", cfg.Prefix, cfg.First+i), n.seen)
		if i < cfg.Slow {
			one.delay = cfg.Delay
		}
		files, err := certificate(cfg.PKI, one.name)
		if err != nil {
			return nil, err
		}
		one.client = feed.New(feed.Config{Servers: cfg.Servers, TLS: files.ClientConfig, Node: one.name, Version: process.BuildVersion(), Logger: cfg.Logger, Handler: one})
		n.all, n.by[one.name] = append(n.all, one), one
	}
	return n, nil
}

// certificate is a node's, made if it is not there.
func certificate(pki, node string) (mtls.Files, error) {
	files := mtls.Files{CA: filepath.Join(pki, "ca.crt"), Cert: filepath.Join(pki, node+".crt"), Key: filepath.Join(pki, node+".key")}
	_, err := os.Stat(files.Cert)
	if errors.Is(err, fs.ErrNotExist) {
		err = mtls.IssueNode(pki, node)
	}
	return files, err
}

// Connect has all nodes connect at once, and stay so.
func (n *Nodes) Connect() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.end != nil {
		return
	}
	var ctx context.Context
	ctx, n.end = context.WithCancel(context.Background())
	n.clients = new(sync.WaitGroup)
	for _, one := range n.all {
		n.clients.Go(func() { one.client.Run(ctx) })
	}
}

// Disconnect ends all connections. The nodes keep what they hold.
func (n *Nodes) Disconnect() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.end != nil {
		n.end()
		n.clients.Wait()
		n.end = nil
	}
}

// State is what all nodes hold together.
type State struct {
	Nodes, Connected int
	// Current have taken over an update in their present connection; the last of them did so at Since, in Unix nanoseconds.
	Current int
	Since   int64
	// Wired are pods; Members are the addresses in the sets of all Groups.
	Wired, Rules, Groups, Members int
	// What came, ever.
	Updates, TakenRules, TakenGroups, TakenMembers, TakenNodes uint64
}

// State adds up.
func (n *Nodes) State() State {
	s := State{Nodes: len(n.all)}
	for _, one := range n.all {
		one.addTo(&s)
	}
	return s
}

// Pod is one that a node wires, or with Gone unwires.
type Pod struct {
	Node, Namespace, Name, UID string
	Addresses                  []string
	Gone                       bool
}

// Wire has nodes announce pods or withdraw them, as their CNI plugins would.
func (n *Nodes) Wire(pods []Pod) error {
	for i := range pods {
		one := n.by[pods[i].Node]
		if one == nil {
			return fmt.Errorf("there is no node %q", pods[i].Node)
		}
		if err := one.wire(&pods[i]); err != nil {
			return err
		}
	}
	return nil
}
