package agent

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/flowkeep/flowkeep/internal/mtls"
	"github.com/flowkeep/flowkeep/internal/schema"
	"github.com/flowkeep/flowkeep/netplugin/cni"
	"github.com/flowkeep/flowkeep/netplugin/contest"
	"github.com/flowkeep/flowkeep/netplugin/driftcheck"
	"github.com/flowkeep/flowkeep/netplugin/endpoints"
	"github.com/flowkeep/flowkeep/netplugin/feed"
	"github.com/flowkeep/flowkeep/netplugin/hostnet"
	"github.com/flowkeep/flowkeep/netplugin/hostport"
	"github.com/flowkeep/flowkeep/netplugin/ipam"
	"github.com/flowkeep/flowkeep/netplugin/node/install"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/ofctl/dptype"
	"github.com/flowkeep/flowkeep/ofctl/ovsdb"
)

const (
	retryEvery     = time.Second
	connectTimeout = 10 * time.Second
	starting       = "starting" // why a part is not ready that nothing is known of yet
)

// Run enforces on this node until ctx ends. The flows stay in place then.
func Run(ctx context.Context, cfg Config) error {
	cidrs, err := cfg.cidrs()
	if err != nil {
		return err
	}
	if err := checkTrafficMode(cfg.TrafficMode); err != nil {
		return err
	}
	if err := checkServices(cfg.Services); err != nil {
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
	a.node.services, a.node.clusters = cidrs.services, cidrs.clusters
	links, err := a.node.announcedLinks()
	if err != nil {
		return err
	}
	a.drift.Dial = func(ctx context.Context) (driftcheck.Reader, error) {
		return ofctl.Connect(ctx, cfg.managementSocket())
	}
	a.drift.Independent = cfg.independentReader()
	client := feed.New(feed.Config{Servers: cfg.Servers, TLS: func() (*tls.Config, error) { return mtls.ClientConfig(cfg.TLS, cfg.ServerName) }, Node: cfg.Node, Version: cfg.Version, TrafficMode: cfg.TrafficMode,
		ObeyUnelected: cfg.ObeyUnelected, Logger: a.log, Handler: handler{a, a.inspector}, Services: a.translation.services})
	a.client = client
	client.SetLinks(links)
	r := newRunner(a, cidrs, client)
	if err := r.openSwitch(ctx); err != nil {
		return err
	}
	defer r.db.Close()
	r.manager, err = endpoints.Open(endpoints.Config{
		StateDir: cfg.StateDir,
		Logger:   a.log,
		Switch:   r,
		Realizer: &a.pods,
		InHost:   inHost,
		Writing:  a.disk.writes.begin,
		Proc:     filepath.Join("/", cfg.NodeRoot, "proc"),
	})
	if err != nil {
		return err
	}
	r.pods.restorePods(r.manager.Living())
	r.node.setWays(r.node.restoredWays().at(time.Now()))
	r.node.configure(ctx) // from disk: the first comparison expects the flows from before the restart
	r.translation.beginServices(ctx)
	return r.run(ctx)
}

// runner holds what works around the owner: the database, the manager of endpoints, the node's own network.
type runner struct {
	*agent
	db       *ovsdb.DB
	database databaseGate
	manager  *endpoints.Manager
	feed     *feed.Client
	clusters []netip.Prefix
	exempted []netip.Prefix // from the masquerade
	attached chan struct{}  // receives a value when a switch connects again; has room for one
	// lostLinks receives a value when a link of the bridge's own ports is missing or needs another MTU; has room for
	// one.
	lostLinks chan struct{}
	flushed   chan struct{} // receives a value when the switch has deleted flows by itself; has room for one
	linkMTU   atomic.Int64  // of hostnet.Devices; 0: not known
	contests  contest.Tracker
}

func newRunner(a *agent, networks cidrs, client *feed.Client) *runner {
	return &runner{
		agent:     a,
		clusters:  networks.clusters,
		exempted:  networks.exempted,
		feed:      client,
		attached:  make(chan struct{}, 1),
		lostLinks: make(chan struct{}, 1),
		flushed:   make(chan struct{}, 1),
	}
}

// cidrs is the values of flags with CIDRs.
type cidrs struct{ services, clusters, exempted []netip.Prefix }

func (c *Config) cidrs() (out cidrs, err error) {
	for _, f := range []struct {
		name  string
		texts []string
		into  *[]netip.Prefix
	}{
		{"--service-cidrs", c.ServiceCIDRs, &out.services},
		{"--cluster-cidrs", c.ClusterCIDRs, &out.clusters},
		{"--non-masquerade-cidrs", c.NonMasquerade, &out.exempted},
	} {
		if *f.into, err = parsePrefixes(f.name, f.texts); err != nil {
			return out, err
		}
	}
	return out, nil
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

// openSwitch waits for Open vSwitch and makes the bridge and the ports that lead to the node. Meanwhile CNI requests
// get the reason.
func (r *runner) openSwitch(ctx context.Context) error {
	waiting := waitingCNI{runner: r}
	defer waiting.end()
	for {
		err := r.tryOpenSwitch(ctx)
		if err == nil || ctx.Err() != nil {
			return err
		}
		r.log.Warn("Open vSwitch is not there yet", "error", err, "retry", retryEvery)
		r.cfg.Health.SetReady("switch", err.Error())
		waiting.serve(ctx, err)
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
	n, err := r.ensureNodePorts(ctx)
	if err != nil {
		db.Close()
		return err
	}
	r.node.tunnel = n.tunnel
	r.node.gateway = pipeline.Device{Port: n.gateway, MAC: nodeMAC(r.cfg.Node, hostnet.Gateway)}
	r.node.wire = pipeline.Device{Port: n.wire, MAC: nodeMAC(r.cfg.Node, hostnet.Wire)}
	r.node.out = pipeline.Device{Port: n.out, MAC: nodeMAC(r.cfg.Node, hostnet.Out)}
	return nil
}

// nodeMAC returns the MAC address of a device, the same after every restart: pods have it as a permanent neighbour.
func nodeMAC(node, device string) ofctl.MAC {
	sum := sha256.Sum256([]byte(node + "/" + device))
	return ofctl.MAC{0x02, 0xf0, sum[0], sum[1], sum[2], sum[3]}
}

func (r *runner) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	failed := make(chan error, 4)
	loopCtx, endLoop := context.WithCancel(context.WithoutCancel(ctx)) // requests under way are finished first
	loopDone := make(chan struct{})
	go func() { defer close(loopDone); r.loop(loopCtx) }()
	defer func() { cancel(); all.Wait(); endLoop(); <-loopDone }()
	host, ports := r.beginHost(), &portKeeper{runner: r}
	all.Go(func() { r.feed.Run(ctx) })
	all.Go(func() { r.translation.services.Run(ctx) })
	all.Go(func() { r.translation.keepServices(ctx) })
	all.Go(func() { r.translation.keepNoting(ctx) })
	all.Go(func() { r.translation.keepAffinities(ctx) })
	all.Go(func() { r.ended.Run(ctx) })
	all.Go(func() { r.counting.keepCounting(ctx) })
	all.Go(func() { r.counting.keepOpened(ctx) })
	all.Go(func() { host.keepSession(ctx) }) // of host: policy rules are there before flows
	all.Go(func() { r.vswitchd.keepPurged(ctx) })
	all.Go(func() { r.zoneLimits.keepRoom(ctx) })
	all.Go(func() { r.zoneLimits.keepShares(ctx) })
	all.Go(func() { r.dropLog.drops.Run(ctx) })
	all.Go(func() { r.dropLog.dryRuns.Run(ctx) })
	all.Go(func() { r.dropLog.keepDrops(ctx) })
	all.Go(func() { r.keepAnswering(ctx) })
	all.Go(func() { host.keepNetwork(ctx) })
	all.Go(func() { host.watchHost(ctx, hostnet.Watch) })
	all.Go(func() { host.serveDeletions(ctx) })
	all.Go(func() { ports.keepPorts(ctx) })
	all.Go(func() { ports.keepFlushed(ctx) })
	all.Go(func() { databaseKeeper{r, minQuiet, minQuietOthers}.keepDatabase(ctx, databaseInterval) })
	all.Go(func() { ports.keepSwept(ctx) })
	all.Go(func() { r.watch(ctx) })
	all.Go(func() { r.drift.RunPeriodically(ctx) })
	all.Go(func() { r.drift.RepairReported(ctx) })
	if r.cfg.CNIConfDir != "" {
		all.Go(func() { install.Keep(ctx, r.configuration(ctx)) })
	}
	if r.cfg.Portmap != "" {
		all.Go(func() { r.keepHostPorts(ctx) })
	}
	all.Go(func() { failed <- r.serveCNI(ctx) })
	select {
	case <-ctx.Done():
		r.log.Info("stopping; the flows stay in place")
		return nil
	case err := <-failed:
		return err
	}
}

// serveCNI serves the CNI socket until ctx ends. Where its directory takes no socket, policies are enforced without it,
// and it tries again.
func (r *runner) serveCNI(ctx context.Context) error {
	problem := ""
	r.deleteNoted(ctx)
	for {
		err := os.MkdirAll(filepath.Dir(r.cfg.CNISocket), 0o755)
		if err == nil {
			err = cni.Serve(ctx, cni.Config{
				Socket:    r.cfg.CNISocket,
				Timeout:   r.cfg.AddTimeout,
				Manager:   diskGuard{r.manager, r.agent},
				Logger:    r.log,
				Observe:   r.metrics.observeCNI,
				Contested: r.contestedProblem,
				Listening: func() { problem = ""; r.setReady("cni", "") },
			})
		}
		if err == nil || schema.Refused(err) == nil || ctx.Err() != nil {
			return err
		}
		if problem != err.Error() {
			problem = err.Error()
			r.log.Error("no pod starts: the CNI socket cannot be made; policies are enforced",
				"error", err, "retry", retryEvery)
			r.setReady("cni", problem)
		}
		select {
		case <-time.After(retryEvery):
		case <-ctx.Done():
			return nil
		}
	}
}

// deleteNoted deletes the pods that ended while netplugin was away, before new ones get numbers and addresses. What
// fails is tried again with each sweep.
func (r *runner) deleteNoted(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if err := cni.DeleteNoted(ctx, r.cfg.CNISocket, r.manager.Del); err != nil {
		r.log.Warn("could not delete pods that ended while netplugin was away", "error", err)
	}
}

// configuration returns the configuration of install, which writes the CNI configuration once the node is ready for
// pods.
func (r *runner) configuration(ctx context.Context) *install.Config {
	return &install.Config{
		Dir:      r.cfg.CNIConfDir,
		Socket:   r.cfg.CNISocket,
		Ready:    func() bool { return r.cfg.Health.NotReady() == "" },
		Changes:  r.cfg.Health.Changes,
		Backend:  func() string { return install.Backend(ctx, r.cfg.NodeRoot) },
		Attached: func() bool { return len(r.manager.List()) > 0 },
		CountWrite: func(file string) bool {
			return r.contests.AddRepair(contest.Object{Kind: objectCNI, Name: file}, time.Now()) > 0
		},
		Logger: r.log,
	}
}

// objectHostPort is the name of pods' hostPorts in the metric of repairs, objectCNI that of the CNI configuration in
// the metric of contested objects.
const (
	objectHostPort = "hostport"
	objectCNI      = "cni"
)

// keepHostPorts restores rules of hostPorts that another program removed.
func (r *runner) keepHostPorts(ctx context.Context) {
	hostport.Keep(ctx, hostport.Config{
		Program: r.cfg.Portmap,
		Pods:    r.podsWithHostPorts,
		Repaired: func(n int) {
			r.metrics.hostRepairs.WithLabelValues(objectHostPort).Add(float64(n))
			r.metrics.hostWrites.WithLabelValues(objectHostPort).Add(float64(n))
		},
		WatchFailed: r.metrics.watchFailures.WithLabelValues(objectHostPort).Inc,
		Logger:      r.log,
	})
}

// podsWithHostPorts returns the pods of which netplugin knows hostPorts, and which still have a network namespace.
func (r *runner) podsWithHostPorts() []endpoints.Endpoint {
	return slices.DeleteFunc(r.manager.List(), func(e endpoints.Endpoint) bool {
		if len(e.HostPorts) == 0 {
			return true
		}
		_, err := os.Stat(e.NetNS)
		return errors.Is(err, os.ErrNotExist)
	})
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
	s.OnCommit(func() { r.vswitchd.purgeAlong(ctx) })
	if err := r.monitor.start(connectCtx, s); err != nil {
		return err
	}
	defer r.monitor.end()
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
	began := time.Now()
	if err := r.do(ctx, func() { attachErr = r.attach(ctx, s) }); err != nil {
		return err
	}
	if attachErr != nil {
		return attachErr
	}
	r.monitor.quiet.compared(began)
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
			r.zoneLimits.readLimits(ctx)
		case <-s.Done():
			return s.Err()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// managementSocket returns the path of the bridge's OpenFlow socket.
func (c *Config) managementSocket() string { return filepath.Join(c.OVSRunDir, c.Bridge+".mgmt") }

func (r *runner) openManager(cfg *hostnet.Config) error {
	allocator, err := ipam.New(r.cfg.StateDir, cfg.Self.PodCIDRs)
	if err != nil {
		return err
	}
	r.manager.SetNetwork(endpoints.Network{MTU: podMTU(cfg), ChecksumOffload: r.cfg.DatapathType == dptype.System, GatewayMAC: endpoints.MAC(cfg.GatewayMAC), Gateways: hostnet.GatewayAddrs(cfg.Self)}, watchedAllocator{allocator, r.disk.writes})
	if cfg.MTU != 0 { // else it is a guess, good enough for new pods
		if err := r.manager.FitMTU(cfg.Links); err != nil {
			r.log.Warn("could not give a pod the MTU of the network; larger packets of its are lost", "error", err)
		}
	}
	r.setNeighbours(r.manager.List()...)
	return nil
}

// setNeighbours sets the node's neighbour entries of pods.
func (r *runner) setNeighbours(pods ...endpoints.Endpoint) {
	var list []hostnet.Neighbour
	for i := range pods {
		for _, a := range pods[i].Addresses {
			list = append(list, hostnet.Neighbour{Address: a, MAC: pods[i].MAC})
		}
	}
	if err := hostnet.SetNeighbours(list); err != nil {
		r.log.Warn("could not set neighbour entries of pods; the node will send requests for them", "error", err)
	}
}

// DeletePort removes a pod's port, and the node's neighbour entries of its addresses.
func (r *runner) DeletePort(ctx context.Context, name string, e *endpoints.Endpoint) error {
	for _, a := range e.Addresses {
		if err := hostnet.RemoveNeighbour(a); err != nil {
			r.log.Warn("could not remove a pod's neighbour entry", "pod", e.ID(), "error", err)
		}
	}
	return r.database.do(ctx, func(ctx context.Context) error { return r.db.DeletePort(ctx, r.cfg.Bridge, name) })
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
