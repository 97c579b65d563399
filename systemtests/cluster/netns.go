package cluster

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/netstat"
)

// RunIn runs one of this machine's programs in a network namespace and returns what it prints.
func (c *Cluster) RunIn(ctx context.Context, netns string, args ...string) (string, error) {
	return output(inNS(ctx, netns, args...))
}

// Serve echoes TCP and UDP on a port of a network namespace until the function that it returns is called. It serves all
// addresses there, but for UDP the kernel selects the address of an answer by its route. With addresses it serves these
// alone, and answers with them.
func (c *Cluster) Serve(ctx context.Context, netns string, port int, addresses ...netip.Addr) (stop func(), err error) {
	first, places := fmt.Sprintf("127.0.0.1:%d", port), []string{strconv.Itoa(port)}
	if len(addresses) > 0 {
		places = nil
		for _, a := range addresses {
			places = append(places, netip.AddrPortFrom(a, uint16(port)).String())
		}
		first = places[0]
	}
	cmd := inNS(ctx, netns, append([]string{c.probe(), "serve"}, places...)...)
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	stop = func() { _ = cmd.Process.Kill(); _ = cmd.Wait() } // it has nothing to say
	err = Until(ctx, 30*time.Second, func() error {
		text, err := c.RunIn(ctx, netns, c.probe(), "check", "tcp", first)
		if err == nil && !strings.HasPrefix(text, "open") {
			err = fmt.Errorf("port %d: %s", port, text)
		}
		return err
	})
	if err != nil {
		stop()
	}
	return stop, err
}

// ControlPlaneIP is the control plane's address of one family; as any host outside of the cluster to pods.
func (c *Cluster) ControlPlaneIP(ctx context.Context, family int) (netip.Addr, error) {
	text, err := c.script(ctx, map[int]string{4: "echo $NET.10", 6: "echo $NET6:10"}[family])
	if err != nil {
		return netip.Addr{}, err
	}
	return netip.ParseAddr(strings.TrimSpace(text))
}

// Datagrams counts the UDP datagrams that a network namespace has taken in, of one family.
func (c *Cluster) Datagrams(ctx context.Context, netns string, family int) (int, error) {
	file, count := "snmp", netstat.UDP4
	if family == 6 {
		file, count = "snmp6", netstat.UDP6
	}
	text, err := c.RunIn(ctx, netns, "cat", "/proc/net/"+file)
	if err != nil {
		return 0, err
	}
	return count(text)
}
