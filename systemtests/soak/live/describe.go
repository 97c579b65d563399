package live

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
	"github.com/flowkeep/flowkeep/systemtests/soak"
)

// wrongProbe is a packet that passed and should not have, or the other way round.
type wrongProbe struct{ *attempt }

// Error begins with the kind of failure: cluster.Leak where a denied packet passed, cluster.Lost where an allowed one
// did not.
func (w *wrongProbe) Error() string {
	kind := cluster.Leak
	if w.verdict.Allowed {
		kind = cluster.Lost
	}
	return kind + " " + w.String()
}

// wrongStream is a live connection that lost something, or lived too long. Its kind is cluster.Lost, Late or Leak.
type wrongStream struct {
	*stream
	kind string
	err  error
}

func (w *wrongStream) Error() string {
	return fmt.Sprintf("%s live connection %s (%v) → %s %s %v, allowed now: %v (%s): %v", w.kind,
		w.from, w.packet.From, w.target, w.packet.Protocol, w.to, w.verdict.Allowed, w.verdict.Why, w.err)
}

// describe adds to an error all that helps to understand it.
func (p *player) describe(change soak.Change, err error) error {
	ways := wrongWays(err)
	text := fmt.Sprintf("seed %d, round %d: %v\n%v\n", p.Seed, p.round, change, err)
	if len(ways) == 0 {
		return errors.New(text)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var b strings.Builder
	b.WriteString(text)
	p.describeObjects(&b)
	for i, a := range ways {
		if i < 3 {
			p.describeWay(ctx, &b, a)
		}
	}
	return &Difference{b.String()}
}

func wrongWays(err error) (list []*attempt) {
	switch e := err.(type) { //nolint:errorlint // the tree is walked
	case *wrongProbe:
		return []*attempt{e.attempt}
	case *wrongStream:
		return []*attempt{&e.attempt}
	case interface{ Unwrap() []error }:
		for _, inner := range e.Unwrap() {
			list = append(list, wrongWays(inner)...)
		}
	case interface{ Unwrap() error }:
		return wrongWays(e.Unwrap())
	}
	return list
}

// describeObjects writes one object a line, as JSON, which kubectl reads as YAML too.
func (p *player) describeObjects(b *strings.Builder) {
	write := func(v any) {
		if text, err := json.Marshal(v); err == nil {
			b.Write(append(text, '\n'))
		}
	}
	for _, ns := range p.state.Namespaces {
		write(object{"apiVersion": "v1", "kind": "Namespace", "metadata": object{"name": ns.Name, "labels": ns.Labels}})
	}
	for id, pod := range p.state.Pods {
		fmt.Fprintf(b, "# %s has %v\n", id, p.pods[id].ips)
		m := manifest(pod)
		m["apiVersion"], m["kind"] = "v1", "Pod"
		m["metadata"].(object)["namespace"] = pod.Namespace
		write(m)
	}
	for _, pol := range p.state.Policies {
		write(object{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
			"metadata": object{"namespace": pol.Namespace, "name": pol.Name, "annotations": pol.Annotations()}, "spec": pol.Spec})
	}
}

// describeWay tries it once more, asks netctl about both ends, and has the switches trace it.
func (p *player) describeWay(ctx context.Context, b *strings.Builder, a *attempt) {
	passed, seen := a.try(longPatience)
	fmt.Fprintf(b, "\n%v\nonce more: passed %v, %v\n", a, passed, seen)
	for _, id := range []string{a.from, a.target} {
		if pod, ok := p.state.Pods[id]; ok {
			text, err := p.Cluster.Netctl(ctx, "endpoint", "show", id)
			fmt.Fprintf(b, "$ netctl endpoint show %s (%v)\n%s", id, err, text)
			fmt.Fprintf(b, "trace on %s:\n%s\n", pod.Node, p.trace(ctx, pod, a))
		}
	}
	text, err := p.Cluster.Netctl(ctx, "status")
	fmt.Fprintf(b, "$ netctl status (%v)\n%s", err, text)
}

// trace follows the packet through the switch of one of its ends, as what conntrack would call new; and shows what the datapath and its
// conntrack hold of both addresses.
func (p *player) trace(ctx context.Context, pod soak.Pod, a *attempt) string {
	ovs := filepath.Join(p.Cluster.Dir, pod.Node, "flowkeep", "ovs")
	port := "fk-gw"
	if pod.ID() == a.from {
		port = p.portOf(ctx, ovs, a.packet.From.String())
	}
	appctl := func(args ...string) string {
		out, err := exec.CommandContext(ctx, "ovs-appctl", append([]string{"-t", filepath.Join(ovs, "vswitchd.ctl")}, args...)...).CombinedOutput()
		if err != nil {
			return fmt.Sprintf("%v: %s", err, out)
		}
		return string(out)
	}
	text := appctl("ofproto/trace", "fk0", traceFlow(port, a.packet), "--ct-next", "trk,new")
	for _, dump := range []string{"dpctl/dump-flows", "dpctl/dump-conntrack"} {
		text += "$ " + dump + "\n"
		for line := range strings.Lines(appctl(dump)) {
			if strings.Contains(line, a.packet.From.String()) && strings.Contains(line, a.packet.To.String()) {
				text += line
			}
		}
	}
	return text
}

func traceFlow(port string, k soak.Packet) string {
	proto, flags := strings.ToLower(k.Protocol), ""
	if proto == "tcp" {
		flags = ",tcp_flags=syn"
	}
	if k.From.Is6() {
		return fmt.Sprintf("in_port=%s,%s6,ipv6_src=%v,ipv6_dst=%v,%s_dst=%d,nw_ttl=64%s", port, proto, k.From, k.To, proto, k.Port, flags)
	}
	return fmt.Sprintf("in_port=%s,%s,nw_src=%v,nw_dst=%v,%s_dst=%d,nw_ttl=64%s", port, proto, k.From, k.To, proto, k.Port, flags)
}

// portOf finds the port of the pod with this address in table 0, where its own addresses are listed.
func (p *player) portOf(ctx context.Context, ovs, ip string) string {
	out, err := exec.CommandContext(ctx, "ovs-ofctl", "-O", "OpenFlow13", "--names", "dump-flows", "unix:"+filepath.Join(ovs, "fk0.mgmt"), "table=0").Output()
	if err != nil {
		return err.Error()
	}
	for line := range strings.Lines(string(out)) {
		if _, rest, ok := strings.Cut(line, "in_port="); ok && strings.Contains(line, ip+",") || strings.Contains(line, ip+" ") {
			return rest[:strings.IndexAny(rest, ", ")]
		}
	}
	return "unknown"
}
