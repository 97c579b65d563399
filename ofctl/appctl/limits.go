package appctl

import (
	"fmt"
	"regexp"
	"strconv"
)

// Limit is of a conntrack zone: how many connections it may have, and how many it has.
type Limit struct{ Limit, Count uint32 }

var zoneLimit = regexp.MustCompile(`zone=(\d+),\s*limit=(\d+),\s*count=(\d+)`)

// ParseLimits reads what "dpctl/ct-get-limits DATAPATH" prints (ovs-vswitchd(8)), by zone.
func ParseLimits(text string) (map[uint16]Limit, error) {
	out := map[uint16]Limit{}
	for _, m := range zoneLimit.FindAllStringSubmatch(text, -1) {
		zone, err := strconv.ParseUint(m[1], 10, 16)
		if err != nil {
			return nil, fmt.Errorf("dpctl/ct-get-limits: %w", err)
		}
		limit, err := strconv.ParseUint(m[2], 10, 32)
		if err != nil {
			return nil, fmt.Errorf("dpctl/ct-get-limits: %w", err)
		}
		count, err := strconv.ParseUint(m[3], 10, 32)
		if err != nil {
			return nil, fmt.Errorf("dpctl/ct-get-limits: %w", err)
		}
		out[uint16(zone)] = Limit{uint32(limit), uint32(count)}
	}
	return out, nil
}
