package pipeline

import (
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/ofctl"
)

// Bounds of OpeningRate.
const (
	MaxOpeningRate = 1000
	minOpeningRate = 50
)

// OpeningRate returns the number of connections to Services that a pod may open a second, where conntrack has room for
// limit of them, 0 for any number. With a burst of twice as many, a pod takes a twentieth of the room in a second at
// most. The rate does not bound how many entries a pod has: packets of a connection without a reply renew its entry
// (Config.Capped).
func OpeningRate(limit uint32) uint32 {
	if limit == 0 {
		return MaxOpeningRate
	}
	return max(minOpeningRate, min(limit/64, MaxOpeningRate))
}

// The meters that bound new connections to Services. A pod has one, with those pods whose port has the same
// remainder: pods of one node have ports that follow one another.
const (
	openingBase   = 1000
	openingMeters = 128
)

// OpeningMeter returns the meter of a port's new connections to Services.
func OpeningMeter(port uint32) uint32 { return openingBase + port%openingMeters }

// BoundsOpening reports whether a meter bounds new connections.
func BoundsOpening(id uint32) bool { return id >= openingBase && id < openingBase+openingMeters }

// limited bounds the connections to Services that a pod opens. They are committed before a verdict, here and in the
// node's stack, because only the translated packet can be evaluated: a pod that may send nothing could fill both.
//
// Where the switch translates Services, connections are committed behind policies. But those that open with fragments
// are committed before them, on the userspace datapath.
func (l *flowList) limited(cfg *Config, e *LocalEndpoint, a netip.Addr) {
	if cfg.Meters == 0 {
		return
	}
	table, m := cfg.opening(a)
	then := commitToService()
	if cfg.Services.Translated {
		if !cfg.Services.Held {
			return
		}
		m.IPFrag, then = ofctl.Fragments, gotoTable(TableServiceFrontend)
	}
	bound := []ofctl.Action{{Kind: ofctl.Metered, Value: OpeningMeter(e.Port)}}
	l.add(KindEndpoint, e.Port, table, 110, m, append(bound, then...)...)
}

// CappedPriority is the priority of the flows that drop new connections of Config.Capped and Config.Refused.
const CappedPriority = 115

// capped drops packets of new connections to Services from the endpoints of Config.Capped, and of any new connections
// from those of Config.Refused, also of those that are not committed here but are in the node's stack. Connections that
// had a reply pass.
func (l *flowList) capped(cfg *Config, e *LocalEndpoint, a netip.Addr) {
	isRefused := slices.Contains(cfg.Refused, e.ID)
	if isRefused {
		m := unanswered(etherTypeOf(a))
		m.InPort = e.Port
		l.add(KindEndpoint, e.Port, TableCommit, CappedPriority, m)
	}
	if isRefused || slices.Contains(cfg.Capped, e.ID) {
		table, m := cfg.opening(a)
		l.add(KindEndpoint, e.Port, table, CappedPriority, m)
	}
}

// opening returns a match of the packets of new connections to Services from an address, before they are committed, and
// the table that they are in.
func (cfg *Config) opening(a netip.Addr) (table uint8, m ofctl.Match) {
	table, m = TableServiceNew, newToService(etherTypeOf(a))
	if cfg.Services.Translated {
		table = TableServiceState
		m = inZone(etherTypeOf(a), ZoneTranslation, ofctl.CtNew|ofctl.CtRpl|ofctl.CtDNAT, ofctl.CtNew)
	}
	m.NwSrc = single(a)
	return table, m
}
