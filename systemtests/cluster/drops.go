package cluster

import (
	"context"
	"os"
	"strconv"
	"strings"
	"sync"
)

// CountDrops begins to count the packets that the kernel drops because a queue is full: the processors' backlogs,
// through which packets pass between network namespaces, and the UDP sockets of these namespaces. The function that it
// returns gives their number so far. A namespace that cannot be read then, because its pod is gone, counts nothing.
func (c *Cluster) CountDrops(ctx context.Context, namespaces []string) (count func() uint64) {
	backlog, sockets := softnetDrops(), c.udpDropsOf(ctx, namespaces)
	return func() uint64 {
		sum := softnetDrops() - backlog
		for netns, now := range c.udpDropsOf(ctx, namespaces) {
			if before, known := sockets[netns]; known {
				sum += now - min(now, before)
			}
		}
		return sum
	}
}

// udpDropsOf returns the drops of the namespaces that can be read.
func (c *Cluster) udpDropsOf(ctx context.Context, namespaces []string) map[string]uint64 {
	var mu sync.Mutex
	var all sync.WaitGroup
	drops := map[string]uint64{}
	for _, netns := range namespaces {
		all.Go(func() {
			n, err := c.udpDrops(ctx, netns)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				drops[netns] = n
			}
		})
	}
	all.Wait()
	return drops
}

func (c *Cluster) udpDrops(ctx context.Context, netns string) (uint64, error) {
	text, err := output(inNS(ctx, netns, "cat", "/proc/net/snmp", "/proc/net/snmp6"))
	return parseUDPDrops(text), err
}

// parseUDPDrops returns the sum of RcvbufErrors of UDP for IPv4 and IPv6: a column of the lines "Udp:" of /proc/net/snmp,
// and a line of /proc/net/snmp6 (Documentation/networking/snmp_counter.rst of Linux).
func parseUDPDrops(text string) (sum uint64) {
	column := 0
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		switch {
		case len(fields) < 2:
			continue
		case fields[0] == "Udp6RcvbufErrors":
			sum += number(fields[1])
		case fields[0] != "Udp:":
			continue
		case column == 0: // the names
			for i, name := range fields {
				if name == "RcvbufErrors" {
					column = i
				}
			}
		case column < len(fields):
			sum += number(fields[column])
		}
	}
	return sum
}

// number returns a decimal number, and 0 for other text.
func number(text string) uint64 {
	n, _ := strconv.ParseUint(text, 10, 64)
	return n
}

// softnetDrops returns how many packets did not fit a processor's backlog: the second column, in hexadecimal digits, of
// a line for each processor (net/core/net-procfs.c of Linux).
func softnetDrops() (sum uint64) {
	text, _ := os.ReadFile("/proc/net/softnet_stat")
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 1 {
			n, _ := strconv.ParseUint(fields[1], 16, 64)
			sum += n
		}
	}
	return sum
}
