package verdicts

import (
	"context"
	"flag"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/ofctl/ovstest"
	"github.com/flowkeep/flowkeep/ofctl/trace"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/policy/policytest"
)

var worlds = flag.Int("worlds", 12, "how many random worlds to trace through Open vSwitch")

const (
	gatewayPort = 1
	wirePort    = 2
	firstPod    = 3
	pods        = 12
)

var (
	gatewayAddrs = []netip.Addr{netip.MustParseAddr("10.244.0.1"), netip.MustParseAddr("fd00:10:244::1")}
	config       = pipeline.Config{
		Gateway: pipeline.Device{Port: gatewayPort, MAC: ofctl.MAC{2, 0, 0, 0, 0, 1}}, Wire: pipeline.Device{Port: wirePort, MAC: ofctl.MAC{2, 0, 0, 0, 0, 2}},
		Out:          pipeline.Device{Port: wirePort, MAC: ofctl.MAC{2, 0, 0, 0, 0, 2}},
		GatewayAddrs: gatewayAddrs, NodeAddrs: []netip.Addr{netip.MustParseAddr("172.30.0.11")},
		ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}, Meters: 3, Answers: true,
	}
)

// meters are those that the flows name.
var meters = slices.Concat(pipeline.Meters(config.Meters, pipeline.MaxOpeningRate), pipeline.AnswerMeters())

// nodeUpdate is what the node of these changes is sent.
func nodeUpdate(ch policy.Changes, node string) policy.NodeUpdate {
	u := policy.NodeUpdate{Revision: ch.Revision}
	for _, n := range ch.Nodes {
		if n.Node != node {
			continue
		}
		for _, r := range ch.Rules {
			if r.Rule != nil && slices.Contains(n.AddRules, r.Key) {
				u.Rules = append(u.Rules, r)
			}
		}
		for _, g := range ch.Groups {
			if slices.Contains(n.AddGroups, g.Key) {
				u.Groups = append(u.Groups, policy.GroupUpdate{Key: g.Key, Kind: policy.PeerGroup, Replace: true, Added: g.Added})
			}
		}
		for _, a := range n.AppliedTo {
			u.Groups = append(u.Groups, policy.GroupUpdate{Key: a.Key, Kind: policy.AppliedToGroup, Replace: true, Added: a.Added})
		}
	}
	return u
}

// onOneNode puts every pod on node1, so that both directions of policy are judged by one switch.
func onOneNode(w *policy.World) {
	for _, e := range w.Endpoints {
		e.Node, e.Terminating = "node1", false
	}
}

// manyBlocks gives rules with peers as many blocks as makes the compiler treat them as one.
func manyBlocks(g policytest.Gen, w *policy.World) {
	const many = 40
	for _, p := range w.Policies {
		for _, list := range [][]policy.PolicyRule{p.Ingress, p.Egress} {
			for i := range list {
				for n := 0; !list[i].AnyPeer && n < many; n++ {
					if b := g.Block(); b.CIDR.Addr().BitLen()-b.CIDR.Bits() <= 8 { // the wider ones hold everything
						list[i].Peers = append(list[i].Peers, policy.Peer{Block: b})
					}
				}
			}
		}
	}
}

func localEndpoints(w *policy.World) []pipeline.LocalEndpoint {
	var out []pipeline.LocalEndpoint
	for i, e := range w.Endpoints {
		if !e.HostNetwork && !e.Finished && len(e.Addresses) > 0 {
			out = append(out, pipeline.LocalEndpoint{ID: e.ID(), Port: uint32(firstPod + i), MAC: podMAC(i), Addresses: e.Addresses})
		}
	}
	return out
}

func podMAC(i int) ofctl.MAC { return ofctl.MAC{2, 0, 0, 0, 1, byte(i)} }

func TestFlowsJudgeAsTheOracle(t *testing.T) {
	sw := ovstest.Start(t, firstPod+pods)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	s, err := ofctl.Connect(ctx, sw.Management())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	must(t, s.EnsureMeters(ctx, meters))
	for seed := range *worlds {
		traceWorld(ctx, t, sw, s, uint64(seed))
	}
}

func traceWorld(ctx context.Context, t *testing.T, sw *ovstest.Switch, s *ofctl.Session, seed uint64) {
	g := policytest.New(seed)
	w := g.World(pods, 5)
	onOneNode(w)
	if seed%2 == 1 {
		manyBlocks(g, w)
	}
	if seed%3 > 0 {
		dryRuns(policytest.New(seed), w)
	}
	ch, _ := resolve.New(0).Apply(resolve.Batch{Namespaces: w.Namespaces, Endpoints: w.Endpoints, Policies: w.Policies})
	c := pipeline.New(config, nil)
	c.Apply(nodeUpdate(ch, "node1"))
	locals := localEndpoints(w)
	for _, e := range locals {
		c.PutEndpoint(e)
	}
	mods, _ := c.Take()
	if err := s.Commit(ctx, mods); err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	for range 40 {
		checkPacket(t, sw, w, c, locals, g.Packet(pods), seed)
	}
	for i := range mods {
		mods[i].Command = ofctl.Delete
	}
	if err := s.Commit(ctx, mods); err != nil {
		t.Fatal(err)
	}
}

func portOf(locals []pipeline.LocalEndpoint, a netip.Addr) *pipeline.LocalEndpoint {
	for i := range locals {
		if slices.Contains(locals[i].Addresses, a) {
			return &locals[i]
		}
	}
	return nil
}

func checkPacket(t *testing.T, sw *ovstest.Switch, w *policy.World, c *pipeline.Compiler, locals []pipeline.LocalEndpoint, p policy.Packet, seed uint64) {
	t.Helper()
	from, to := portOf(locals, p.From), portOf(locals, p.To)
	if from == to || policytestAddress(p.From) && from == nil || policytestAddress(p.To) && to == nil {
		return // never on the wire, or no such pod
	}
	probe, err := c.Probe(p)
	if (err == nil) != (from != nil || to != nil) {
		t.Fatalf("seed %d: %+v: %v", seed, p, err)
	}
	if err != nil {
		return
	}
	out := uint32(wirePort)
	if to != nil {
		out = to.Port
	}
	want := policy.Allowed(w, p)
	text := sw.AppCtl(t, "ofproto/trace", sw.Bridge, probe.Judged)
	if got := outputs(text, out); got != want.Allowed {
		t.Errorf("%sseed %d: %+v: switch lets it pass: %v, oracle: %+v\n%s", leak(got), seed, p, got, want, text)
	}
	read, err := trace.Parse(text)
	if err != nil || read.Dropped() == want.Allowed {
		t.Errorf("seed %d: read as %+v, %v:\n%s", seed, read, err, text)
	}
	if dry := policy.DryRun(w, p); err == nil && want.Allowed && deniedByDryRuns(read) != [2]bool{!dry.Egress.Allowed, !dry.Ingress.Allowed} {
		t.Errorf("seed %d: %+v: dry runs would deny %v, oracle: %+v\n%s", seed, p, deniedByDryRuns(read), dry, text)
	}
	arriving, err := trace.Parse(sw.AppCtl(t, "ofproto/trace", sw.Bridge, probe.Arriving))
	if err != nil || len(arriving.Passes) < 2 {
		t.Errorf("seed %d: %+v does not arrive at conntrack: %+v, %v", seed, p, arriving, err)
	}
}

// deniedByDryRuns reports on which sides, egress and ingress, a dry run would deny. The judgement behind the commit has no original tuple in a trace.
func deniedByDryRuns(read *trace.Trace) (sides [2]bool) {
	for _, s := range read.Passes[0].Steps {
		kind, _, _ := pipeline.ParseCookie(s.Cookie)
		denies := kind == pipeline.KindDefaultDrop
		sides[0] = sides[0] || denies && s.Table == pipeline.TableEgressDryRunRules
		sides[1] = sides[1] || denies && s.Table == pipeline.TableIngressDryRunRules
	}
	return sides
}

func policytestAddress(a netip.Addr) bool {
	return netip.MustParsePrefix("10.244.0.0/16").Contains(a) || netip.MustParsePrefix("fd00:10:244::/64").Contains(a)
}

// outputs tells whether the datapath actions of a trace send the packet out of the port.
func outputs(text string, port uint32) bool {
	_, actions, _ := strings.Cut(text, "Datapath actions:")
	return slices.Contains(strings.FieldsFunc(actions, func(r rune) bool { return r == ',' || r == ' ' || r == '\n' }), fmt.Sprint(port))
}
