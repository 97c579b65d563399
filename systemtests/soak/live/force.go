package live

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

// awaitForce waits until netmaster holds exactly the policies, pods and labels that there are, and every node says that it has
// them in force. No sleep: what netctl says is the criterion.
func (p *player) awaitForce(ctx context.Context) error {
	const limit = 60 * time.Second
	return cluster.Until(ctx, limit, func() error {
		for _, check := range []func(context.Context) error{p.policiesSeen, p.podsSeen, p.namespacesSeen, p.nodesDone} {
			if err := check(ctx); err != nil {
				return err
			}
		}
		return nil
	})
}

func (p *player) netctl(ctx context.Context, answer any, args ...string) error {
	text, err := p.Cluster.Netctl(ctx, append(args, "-o", "json")...)
	if err != nil && text == "" {
		return err
	}
	return json.Unmarshal([]byte(text), answer)
}

func (p *player) policiesSeen(ctx context.Context) error {
	var list []struct {
		Namespace, Name, Mode string
		Generation            int64
		Problems              []string
	}
	if err := p.netctl(ctx, &list, "policy", "ls"); err != nil {
		return err
	}
	seen := map[string]version{}
	for _, pol := range list {
		if pol.Namespace != canaryNamespace {
			seen[pol.Namespace+"/"+pol.Name] = version{pol.Generation, pol.Mode == "dry-run"}
		}
		if len(pol.Problems) > 0 {
			return fmt.Errorf("policy %s/%s: %s", pol.Namespace, pol.Name, strings.Join(pol.Problems, "; "))
		}
	}
	if !maps.Equal(seen, p.versions) {
		return fmt.Errorf("netmaster has the policies %v, the API server %v", seen, p.versions)
	}
	return nil
}

func (p *player) podsSeen(ctx context.Context) error {
	var list []struct {
		Namespace, Name, State string
		Addresses              []netip.Addr
		Labels                 map[string]string
	}
	if err := p.netctl(ctx, &list, "endpoint", "ls"); err != nil {
		return err
	}
	for _, e := range list {
		id := e.Namespace + "/" + e.Name
		pod, ok := p.state.Pods[id]
		switch {
		case !ok:
			return fmt.Errorf("netmaster has %s, which is gone", id)
		case !maps.Equal(pod.Labels, e.Labels):
			return fmt.Errorf("netmaster has %s with %v, not %v", id, e.Labels, pod.Labels)
		case pod.HostNetwork:
		case e.State != "wired" || !sameAddresses(e.Addresses, p.pods[id].ips):
			return fmt.Errorf("netmaster has %s as %q with %v, not %v", id, e.State, e.Addresses, p.pods[id].ips)
		}
	}
	if len(list) != len(p.state.Pods) {
		return fmt.Errorf("netmaster has %d pods, the API server %d", len(list), len(p.state.Pods))
	}
	return nil
}

func sameAddresses(a, b []netip.Addr) bool {
	return slices.Equal(slices.SortedFunc(slices.Values(a), netip.Addr.Compare), slices.SortedFunc(slices.Values(b), netip.Addr.Compare))
}

// namespacesSeen compares the canary's peers with the pods of the namespaces with parity=1. A namespace without pods may be
// missed, and changes nothing.
func (p *player) namespacesSeen(ctx context.Context) error {
	var canary struct {
		Rules []struct {
			Peers []struct{ Endpoints []string }
		}
	}
	if err := p.netctl(ctx, &canary, "policy", "show", canaryNamespace+"/canary"); err != nil {
		return err
	}
	var seen, want []string
	for _, rule := range canary.Rules {
		for _, peer := range rule.Peers {
			seen = append(seen, peer.Endpoints...)
		}
	}
	for id, pod := range p.state.Pods {
		if p.parity[pod.Namespace] == "1" && !pod.HostNetwork {
			want = append(want, id)
		}
	}
	slices.Sort(seen)
	slices.Sort(want)
	if !slices.Equal(seen, want) {
		return fmt.Errorf("netmaster has %v in namespaces with parity=1, the API server %v", seen, want)
	}
	return nil
}

func (p *player) nodesDone(ctx context.Context) error {
	var status struct {
		Nodes []struct {
			Name           string
			Connected      bool
			Sent, Realised uint64
			Pending        int
			Errors         []string
			Own            *struct{ SwitchConnected bool }
		}
	}
	if err := p.netctl(ctx, &status, "status"); err != nil {
		return err
	}
	if len(status.Nodes) != len(p.nodes) {
		return fmt.Errorf("netmaster knows %d nodes of %d", len(status.Nodes), len(p.nodes))
	}
	for _, n := range status.Nodes {
		switch {
		case len(n.Errors) > 0:
			return errors.New(n.Name + ": " + strings.Join(n.Errors, "; "))
		case !n.Connected || n.Own == nil || !n.Own.SwitchConnected:
			return fmt.Errorf("%s is not connected", n.Name)
		case n.Pending > 0 || n.Realised < n.Sent:
			return fmt.Errorf("%s has revision %d of %d", n.Name, n.Realised, n.Sent)
		}
	}
	return nil
}
