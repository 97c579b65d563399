package agent

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/internal/mtls"
	"github.com/flowkeep/flowkeep/netplugin/cni"
	"github.com/flowkeep/flowkeep/netplugin/endpoints"
	"github.com/flowkeep/flowkeep/netplugin/feed"
	"github.com/flowkeep/flowkeep/netplugin/hostnet"
	"github.com/flowkeep/flowkeep/netplugin/install"
	"github.com/flowkeep/flowkeep/netplugin/ipam"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/ofctl/ovsdb"
)

const (
	retryEvery     = time.Second
	connectTimeout = 10 * time.Second
	starting       = "starting" // why a part is not ready that nothing is known of yet
)

// Run enforces on this node until ctx ends. The flows stay in place then.
func Run(ctx context.Context, cfg Config) error {
	services, err := parsePrefixes("--service-cidrs", cfg.ServiceCIDRs)
	if err != nil {
		return err
	}
	clusters, err := parsePrefixes("--cluster-cidrs", cfg.ClusterCIDRs)
	if err != nil {
		return err
	}
	if err := checkTrafficMode(cfg.TrafficMode); err != nil {
		return err
	}
	for _, part := range []string{"switch", "network", "netmaster"} {
		cfg.Health.SetReady(part, starting)
	}
	a, err := newAgent(cfg)
	if err != nil {
		return err
	}
	defer a.close()
	a.node.services = services
	a.dial = func(ctx context.Context) (reader, error) { return ofctl.Connect(ctx, cfg.managementSocket()) }
	client := feed.New(feed.Config{Servers: cfg.Servers, TLS: func() (*tls.Config, error) { return mtls.ClientConfig(cfg.TLS, cfg.ServerName) }, Node: cfg.Node, Version: cfg.Version, TrafficMode: cfg.TrafficMode,
		ObeyUnelected: cfg.ObeyUnelected, Logger: a.log, Handler: a})
	a.client = client
	r := &runner{
		agent:    a,
		clusters: clusters,
		feed:     client,
		attached: make(chan struct{}, 1),
	}
	if err := r.openSwitch(ctx); err != nil {
		return err
	}
	defer r.db.Close()
	r.manager, err = endpoints.Open(endpoints.Config{
		StateDir: cfg.StateDir,
		Logger:   a.log,
		Switch:   r,
		Realizer: a,
		Writing:  a.disk.writes.begin,
	})
	if err != nil {
		return err
	}
	r.restorePods(slices.DeleteFunc(r.manager.List(), func(e endpoints.Endpoint) bool { return endpoints.LinkGone(&e) }))
	r.configure(ctx) // from disk: the first comparison must find the flows of before the restart
	return r.run(ctx)
}

// runner holds what works around the owner: the database, the manager of endpoints, the node's own network.
type runner struct {
	*agent
	db       *ovsdb.DB
	manager  *endpoints.Manager
	feed     *feed.Client
	clusters []netip.Prefix
	attached chan struct{} // told of when a switch was connected anew; has room for one
}

func parsePrefixes(flag string, texts []string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, t := range texts {
		p, err := netip.ParsePrefix(t)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", flag, err)
		}
		out = append(out, p.Masked())
	}
	return out, nil
}

// openSwitch waits for Open vSwitch and makes the bridge and the two ports that lead to the node.
func (r *runner) openSwitch(ctx context.Context) error {
	for {
		err := r.tryOpenSwitch(ctx)
		if err == nil || ctx.Err() != nil {
			return err
		}
		r.log.Warn("Open vSwitch is not there yet", "error", err, "retry", retryEvery)
		r.cfg.Health.SetReady("switch", err.Error())
		select {
		case <-time.After(retryEvery):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (r *runner) tryOpenSwitch(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	db, err := ovsdb.Open(ctx, r.cfg.OVSDB)
	if err != nil {
		return err
	}
	r.db = db
	gw, wire, tunnel, err := r.ensureNodePorts(ctx)
	if err != nil {
		db.Close()
		return err
	}
	r.node.tunnel = tunnel
	r.node.gateway = pipeline.Device{Port: gw, MAC: nodeMAC(r.cfg.Node, hostnet.Gateway)}
	r.node.wire = pipeline.Device{Port: wire, MAC: nodeMAC(r.cfg.Node, hostnet.Wire)}
	return nil
}

// nodeMAC is the same after every restart: pods have it as a permanent neighbour.
func nodeMAC(node, device string) ofctl.MAC {
	sum := sha256.Sum256([]byte(node + "/" + device))
	return ofctl.MAC{0x02, 0xf0, sum[0], sum[1], sum[2], sum[3]}
}

// restorePods opens the ports of pods that were in force before a restart; the rules that they wait for are on disk.
func (a *agent) restorePods(wired []endpoints.Endpoint) {
	for _, e := range endpoints.Latest(wired) {
		if e.Realised {
			a.pods[e.ID()] = &pod{endpoint: e, settled: true}
			a.compiler.PutEndpoint(local(&e))
			a.ended.Had(e.Addresses)
		}
	}
}

func (r *runner) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	failed := make(chan error, 4)
	loopCtx, endLoop := context.WithCancel(context.WithoutCancel(ctx)) // requests under way are finished first
	loopDone := make(chan struct{})
	go func() { defer close(loopDone); r.loop(loopCtx) }()
	defer func() { cancel(); all.Wait(); endLoop(); <-loopDone }()
	if len(r.rules.nodes) > 0 {
		r.infos <- r.rules.nodes
	}
	all.Go(func() { r.feed.Run(ctx) })
	all.Go(func() { r.ended.Run(ctx) })
	all.Go(func() { r.keepCounting(ctx) })
	all.Go(func() { r.keepSession(ctx) })
	all.Go(func() { r.drops.Run(ctx) })
	all.Go(func() { r.dryRuns.Run(ctx) })
	all.Go(func() { r.keepDrops(ctx) })
	host, ports := &hostKeeper{runner: r, changed: make(chan struct{}, 1)}, &portKeeper{r}
	all.Go(func() { host.keepNetwork(ctx) })
	all.Go(func() { host.watchHost(ctx) })
	all.Go(func() { ports.keepPorts(ctx) })
	all.Go(func() { ports.keepSwept(ctx) })
	all.Go(func() { r.watch(ctx) })
	all.Go(func() { r.auditAll(ctx) })
	if r.cfg.CNIConfDir != "" {
		all.Go(func() { install.Keep(ctx, r.configuration()) })
	}
	all.Go(func() {
		failed <- cni.Serve(ctx, cni.Config{Socket: r.cfg.CNISocket, Timeout: r.cfg.AddTimeout, Manager: diskGuard{r.manager, r.agent}, Logger: r.log, Observe: r.metrics.observeCNI})
	})
	select {
	case <-ctx.Done():
		r.log.Info("stopping; the flows stay in place")
		return nil
	case err := <-failed:
		return err
	}
}

// configuration has the container runtime ask here, once the node is ready for pods.
func (r *runner) configuration() *install.Config {
	ready := func() bool { return r.cfg.Health.NotReady() == "" }
	return &install.Config{Dir: r.cfg.CNIConfDir, Socket: r.cfg.CNISocket, Ready: ready, Changes: r.cfg.Health.Changes, Logger: r.log}
}

// keepSession keeps an OpenFlow connection to the bridge.
func (r *runner) keepSession(ctx context.Context) {
	for ctx.Err() == nil {
		err := r.oneSession(ctx)
		_ = r.do(ctx, r.detach)
		r.metrics.switchUp.Set(0)
		if ctx.Err() != nil {
			return
		}
		r.cfg.Health.SetReady("switch", err.Error())
		r.log.Warn("no connection to the switch; it forwards by the flows it has", "error", err, "retry", retryEvery)
		select {
		case <-time.After(retryEvery / 4):
		case <-ctx.Done():
		}
	}
}

func (r *runner) oneSession(ctx context.Context) error {
	connectCtx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	s, err := ofctl.Connect(connectCtx, r.cfg.managementSocket())
	if err != nil {
		return err
	}
	defer s.Close()
	s.OnCommit(func() { r.purgeAlong(ctx) })
	select {
	case <-r.complete:
	case <-s.Done():
		return s.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := r.learnPorts(connectCtx); err != nil {
		return err
	}
	var attachErr error
	if err := r.do(ctx, func() { attachErr = r.attach(ctx, s) }); err != nil {
		return err
	}
	if attachErr != nil {
		return attachErr
	}
	r.metrics.switchUp.Set(1)
	r.cfg.Health.SetReady("switch", "")
	select {
	case r.attached <- struct{}{}:
	default:
	}
	var taken upcalls
	again := time.NewTicker(upcallsEvery)
	defer again.Stop()
	for {
		select {
		case <-again.C:
			r.hearsPackets(ctx, &taken)
		case <-s.Done():
			return s.Err()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// managementSocket is where the bridge speaks OpenFlow.
func (c *Config) managementSocket() string { return filepath.Join(c.OVSRunDir, c.Bridge+".mgmt") }

func (r *runner) openManager(ctx context.Context, cfg *hostnet.Config) error {
	allocator, err := ipam.New(r.cfg.StateDir, cfg.Self.PodCIDRs)
	if err != nil {
		return err
	}
	r.manager.SetNetwork(endpoints.Network{MTU: podMTU(cfg), ChecksumOffload: r.cfg.DatapathType == hostnet.DatapathSystem, GatewayMAC: endpoints.MAC(cfg.GatewayMAC), Gateways: hostnet.GatewayAddrs(cfg.Self)}, watchedAllocator{allocator, r.disk.writes})
	if cfg.MTU != 0 { // else it is a guess, good enough for new pods
		if err := r.manager.FitMTU(ctx); err != nil {
			r.log.Warn("could not give a pod the MTU of the network; larger packets of its are lost", "error", err)
		}
	}
	sealed, err := r.manager.SealLinks()
	for _, name := range sealed {
		cfg.Changed("sysctl", name)
	}
	if err != nil {
		return err
	}
	for _, e := range r.manager.List() {
		r.neighbours(&e)
	}
	return nil
}

func (r *runner) neighbours(e *endpoints.Endpoint) {
	for _, a := range e.Addresses {
		if err := hostnet.SetNeighbour(a, e.MAC); err != nil {
			r.log.Warn("could not set a pod's neighbour entry; the node will ask", "pod", e.ID(), "error", err)
		}
	}
}

// DeletePort removes a pod's port, and the node's neighbour entries of its addresses.
func (r *runner) DeletePort(ctx context.Context, name string, e *endpoints.Endpoint) error {
	for _, a := range e.Addresses {
		if err := hostnet.RemoveNeighbour(a); err != nil {
			r.log.Warn("could not remove a pod's neighbour entry", "pod", e.ID(), "error", err)
		}
	}
	return r.db.DeletePort(ctx, r.cfg.Bridge, name)
}

// watch keeps the gauge of netmaster's connection. The node is ready when netmaster has accepted it once: a version that netmaster does not take, or that does
// not find it, ends its roll-out at this node. That netmaster goes later takes nothing from what is in force here, nor from being ready.
func (r *runner) watch(ctx context.Context) {
	again := time.NewTicker(retryEvery / 4)
	defer again.Stop()
	met, said := false, starting
	for {
		select {
		case <-again.C:
			up := 0.0
			if r.client.Connected() {
				up, met = 1, true
			}
			r.metrics.masterUp.Set(up)
			reason := ""
			if !met {
				reason = r.client.Problem()
			}
			if reason != said {
				said = reason
				r.cfg.Health.SetReady("netmaster", reason)
			}
		case <-ctx.Done():
			return
		}
	}
}

// auditAll audits again and again.
func (r *runner) auditAll(ctx context.Context) {
	if r.cfg.AuditInterval <= 0 {
		return
	}
	again := time.NewTicker(r.cfg.AuditInterval)
	defer again.Stop()
	for {
		select {
		case <-again.C:
			r.audit(ctx)
		case <-ctx.Done():
			return
		}
	}
}
