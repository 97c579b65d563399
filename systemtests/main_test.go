// Package systemtests tests Flowkeep where it lives: real Kubernetes, real Open vSwitch, packets between real pods. One
// sandbox is booted a run; `go test -reuse` takes the one that is up and leaves it up.
package systemtests

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"testing"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

var (
	reuse  = flag.Bool("reuse", false, "use the sandbox that is up, and leave it up")
	keep   = flag.Bool("keep", false, "leave the sandbox up")
	hook   = flag.String("hook", "", "CNI hook to boot with; scripts/node-up if empty")
	family = flag.String("family", "dual", "ipv4, ipv6 or dual")
	mode   = flag.String("traffic-mode", cmp.Or(os.Getenv("FLOWKEEP_TRAFFIC_MODE"), "route"), "how nodes reach each other's pods: route, geneve or auto")
	// servicesBy is what translates what pods send to Services.
	servicesBy = flag.String("services", cmp.Or(os.Getenv("FLOWKEEP_SERVICES"), "kube-proxy"),
		"what translates Services for pods: kube-proxy or ovs")
	small = flag.Bool("small", false, "boot a sandbox without what tests of packets do not need (up --small)")
	shape = flag.String("shape", os.Getenv("FLOWKEEP_SHAPE"), "of the network and the nodes: see README.md")
)

// theCluster is the one sandbox of a run; tests get it through setup.
var theCluster *cluster.Cluster

// translatesInSwitch reports whether Open vSwitch of all nodes translates Services, before policies.
func translatesInSwitch() bool { return *servicesBy == "ovs" }

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	flag.Parse()
	if err := selectSet(*set); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if *set == staticSet {
		return m.Run()
	}
	if os.Getuid() != 0 {
		fmt.Fprintln(os.Stderr, "system tests need root: they make network namespaces and run containers")
		return 1
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	name := cmp.Or(os.Getenv("FLOWKEEP_SANDBOX"), "test")
	unlock, err := cluster.Lock(name, *reuse)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer unlock()
	c, err := cluster.Boot(ctx, cluster.Options{
		Name:     name,
		Nodes:    nodesOf(*shape, *mode),
		Family:   *family,
		Hook:     *hook,
		Traffic:  *mode,
		Services: *servicesBy,
		Shape:    *shape,
		Small:    *small,
		Reuse:    *reuse,
	})
	if c != nil && !*reuse && !*keep {
		defer func() {
			if err := c.Down(context.Background()); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if *reuse || *keep {
		if err := c.MarkKept(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	theCluster = c
	return m.Run()
}
