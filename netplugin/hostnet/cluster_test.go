package hostnet

import (
	"fmt"
	"net/netip"
	"reflect"
	"testing"

	"github.com/flowkeep/flowkeep/internal/rtnl"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// TestClusterOf_Last: the last Cluster is returned until something that decides has changed, also in place. What does
// not decide is not compared.
func TestClusterOf_Last(t *testing.T) {
	cfg := tunnelConfig()
	cfg.Ways = map[string]PeerWay{"node2": {}}
	last := ClusterOf(cfg, nil)
	for _, c := range []struct {
		name   string
		isSame bool
		change func()
	}{
		{"nothing", true, func() {}},
		{"links of nodes", true, func() { cfg.Others[0].Links = &policy.Links{} }},
		{"MTU", true, func() { cfg.MTU = 9000 }},
		{"own addresses", false, func() { cfg.Self.Addresses[0] = netip.MustParseAddr("192.0.2.10") }},
		{"own podCIDRs", false, func() { cfg.Self.PodCIDRs[0] = netip.MustParsePrefix("10.244.7.0/24") }},
		{"a node's name", false, func() { cfg.Others[0].Name = "z" }},
		{"a node's address", false, func() { cfg.Others[0].Addresses[0] = netip.MustParseAddr("192.0.2.9") }},
		{"a node's podCIDR", false, func() { cfg.Others[0].PodCIDRs[0] = netip.MustParsePrefix("10.99.2.0/24") }},
		{"fewer nodes", false, func() { cfg.Others = cfg.Others[:1] }},
		{"cluster CIDRs", false, func() { cfg.ClusterCIDRs[0] = netip.MustParsePrefix("10.245.0.0/16") }},
		{"ways", false, func() { cfg.Ways["node2"] = PeerWay{Bare: true} }},
		{"traffic mode", false, func() { cfg.Tunnelled = false }},
	} {
		c.change()
		got, fresh := ClusterOf(cfg, last), ClusterOf(cfg, nil)
		if (got == last) != c.isSame {
			t.Errorf("%s: the last one: %v, want %v", c.name, got == last, c.isSame)
		}
		if !reflect.DeepEqual(got.Peers, fresh.Peers) || !reflect.DeepEqual(got.Pods, fresh.Pods) {
			t.Errorf("%s: %v and %v, want %v and %v", c.name, got.Peers, got.Pods, fresh.Peers, fresh.Pods)
		}
		last = got
	}
}

// TestCluster_Kept: a comparison uses the Cluster of the one before.
func TestCluster_Kept(t *testing.T) {
	cfg := tunnelConfig()
	cfg.Kept = new(Kept)
	first := cfg.cluster()
	if cfg.cluster() != first {
		t.Error("it is computed again though nothing has changed")
	}
	cfg.ClusterCIDRs = nil
	if got := cfg.cluster(); got == first || len(got.Pods) != 5 {
		t.Errorf("after a change of the cluster CIDRs: %v", got.Pods)
	}
}

// manyNodes returns a Config with 5,000 other nodes, of which all pod CIDRs are within the cluster's.
func manyNodes() *Config {
	cfg := nodeConfig()
	cfg.Others = nil
	cfg.ClusterCIDRs = prefixes("10.244.0.0/16", "fd00:244::/32", "11.0.0.0/8", "fd01::/32")
	for i := range 5000 {
		cfg.Others = append(cfg.Others, info(fmt.Sprint("n", i), fmt.Sprintf("172.20.%d.%d", i/256, i%256),
			fmt.Sprintf("11.%d.%d.0/24", i/256, i%256), fmt.Sprintf("fd01:0:%x::/64", i)))
	}
	return cfg
}

func BenchmarkClusterOf(b *testing.B) {
	cfg := manyNodes()
	for b.Loop() {
		ClusterOf(cfg, nil)
	}
}

func BenchmarkClusterOf_Last(b *testing.B) {
	cfg := manyNodes()
	last := ClusterOf(cfg, nil)
	for b.Loop() {
		if ClusterOf(cfg, last) != last {
			b.Fatal("it was computed again")
		}
	}
}

// BenchmarkSetup_ManyNodes is a comparison on a node among 5,000 others, on which nothing differs.
func BenchmarkSetup_ManyNodes(b *testing.B) {
	in(b, host(b), func() error {
		cfg := manyNodes()
		cfg.Kept = new(Kept)
		links, err := rtnl.ReadLinks()
		if err != nil {
			return err
		}
		cfg.Links = links
		if err := Setup(cfg); err != nil {
			return err
		}
		for b.Loop() {
			if n := len(Conflicts(cfg)); n > 0 {
				b.Fatalf("%d conflicts", n)
			}
			if err := Setup(cfg); err != nil {
				b.Fatal(err)
			}
		}
		return nil
	})
}
