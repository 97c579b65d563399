package appctl

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
)

// Lookups count packets that came to a datapath since it was made.
type Lookups struct {
	Hit    uint64 // led by a flow of the datapath
	Missed uint64 // handed to ovs-vswitchd, for there was none
	Lost   uint64 // of these, dropped before ovs-vswitchd had them
}

var lookups = regexp.MustCompile(`(?m)^\s*lookups: hit:(\d+) missed:(\d+) lost:(\d+)\s*$`)

// ParseLookups reads what "dpctl/show DATAPATH" prints (ovs-vswitchd(8), dpctl(8)) of a single datapath.
func ParseLookups(text string) (Lookups, error) {
	found := lookups.FindAllStringSubmatch(text, 2)
	if len(found) != 1 {
		return Lookups{}, fmt.Errorf("dpctl/show has lookups of %d datapaths, want 1", len(found))
	}
	var l Lookups
	var errs []error
	for i, n := range []*uint64{&l.Hit, &l.Missed, &l.Lost} {
		v, err := strconv.ParseUint(found[0][i+1], 10, 64)
		*n = v
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return Lookups{}, fmt.Errorf("dpctl/show: %w", err)
	}
	return l, nil
}

// Since returns the lookups counted after before. A recreated datapath starts at zero, so smaller counters are
// returned unchanged.
func (l Lookups) Since(before Lookups) Lookups {
	if l.Hit < before.Hit || l.Missed < before.Missed || l.Lost < before.Lost {
		return l
	}
	return Lookups{Hit: l.Hit - before.Hit, Missed: l.Missed - before.Missed, Lost: l.Lost - before.Lost}
}
