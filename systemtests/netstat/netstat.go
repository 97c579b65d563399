// Package netstat counts what a network namespace has taken in, from the kernel's own counters (proc(5)).
package netstat

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// arrived are the names of datagrams that came in: taken by somebody, for a port where nobody listens, or broken.
var arrived = []string{"InDatagrams", "NoPorts", "InErrors"}

// UDP4 counts the datagrams in a text of /proc/net/snmp: a line of names, a line of values.
func UDP4(snmp string) (total int, err error) {
	var names []string
	for line := range strings.Lines(snmp) {
		fields := strings.Fields(line)
		switch {
		case len(fields) == 0 || fields[0] != "Udp:":
		case names == nil:
			names = fields
		default:
			for i, name := range names[:min(len(names), len(fields))] {
				if slices.Contains(arrived, name) {
					n, e := strconv.Atoi(fields[i])
					total, err = total+n, errors.Join(err, e)
				}
			}
			return total, err
		}
	}
	return 0, fmt.Errorf("no count of datagrams in %q", snmp)
}

// UDP6 counts the datagrams in a text of /proc/net/snmp6: a name and a value a line.
func UDP6(snmp6 string) (total int, err error) {
	found := false
	for line := range strings.Lines(snmp6) {
		fields := strings.Fields(line)
		if len(fields) != 2 {
			continue
		}
		if name, ok := strings.CutPrefix(fields[0], "Udp6"); ok && slices.Contains(arrived, name) {
			n, e := strconv.Atoi(fields[1])
			total, err, found = total+n, errors.Join(err, e), true
		}
	}
	if !found {
		return 0, fmt.Errorf("no count of datagrams in %q", snmp6)
	}
	return total, err
}
