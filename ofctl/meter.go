package ofctl

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// Meters, of OpenFlow 1.3 (TS-006, 7.3.4.4 and 7.3.5.14).
const (
	typeMeterMod = 29

	meterAdd    = 0
	meterModify = 1
	meterDelete = 2

	meterKilobits = 1 // the rate is in kilobits a second
	meterPackets  = 2 // the rate is in packets a second
	meterBurst    = 4
	meterStats    = 8

	bandDrop     = 1
	bandSize     = 16
	allMeters    = 0xffffffff
	statsOfMeter = 40 // bytes before those of bands

	multipartMeter         = 9
	multipartMeterConfig   = 10
	multipartMeterFeatures = 11
)

// Meter lets Rate packets a second through, and Burst at once, and drops the rest; with Kilobits it counts kilobits. ID
// counts from 1. Flows name it by an action Metered.
type Meter struct {
	ID, Rate, Burst uint32
	Kilobits        bool
}

// unit returns the flag for what a meter counts.
func (m *Meter) unit() uint16 {
	if m.Kilobits {
		return meterKilobits
	}
	return meterPackets
}

// MeterCount is what a meter has seen since it was made: Packets came to it, of which it dropped Dropped.
type MeterCount struct {
	ID               uint32
	Packets, Dropped uint64
}

// ErrNoMeters says that the switch's datapath has none, or not enough.
var ErrNoMeters = errors.New("the switch has no meters")

// EnsureMeters sees to it that the bridge has exactly these meters. Flows that name one that goes, go with it: the
// switch removes them.
func (s *Session) EnsureMeters(ctx context.Context, want []Meter) error {
	if len(want) > 0 {
		if err := s.haveRoom(ctx, want); err != nil {
			return err
		}
	}
	have, err := s.Meters(ctx)
	if err != nil {
		return err
	}
	for _, m := range want {
		i := slices.IndexFunc(have, func(h Meter) bool { return h.ID == m.ID })
		switch {
		case i < 0:
			err = s.changeMeter(ctx, meterAdd, m)
		case have[i] != m:
			err = s.changeMeter(ctx, meterModify, m)
		}
		if err != nil {
			return fmt.Errorf("add meter %d: %w", m.ID, err)
		}
	}
	for _, h := range have {
		if !slices.ContainsFunc(want, func(m Meter) bool { return m.ID == h.ID }) {
			if err := s.changeMeter(ctx, meterDelete, h); err != nil {
				return fmt.Errorf("remove meter %d: %w", h.ID, err)
			}
		}
	}
	return nil
}

// haveRoom asks how many meters there can be.
func (s *Session) haveRoom(ctx context.Context, want []Meter) error {
	var most uint32
	err := s.multipart(ctx, multipartMeterFeatures, nil, func(b []byte) error {
		if len(b) < 16 {
			return errShort
		}
		most = be.Uint32(b)
		return nil
	})
	if err != nil {
		return err
	}
	if last := slices.MaxFunc(want, func(a, b Meter) int { return int(a.ID) - int(b.ID) }); most < last.ID {
		return fmt.Errorf("%w: it supports %d, want %d", ErrNoMeters, most, last.ID)
	}
	return nil
}

func everyMeter() []byte { return be.AppendUint64(nil, allMeters<<32) }

// Meters returns the meters of the bridge. A meter that this package would not create is returned with rate 0.
func (s *Session) Meters(ctx context.Context) (list []Meter, err error) {
	err = s.multipart(ctx, multipartMeterConfig, everyMeter(), func(b []byte) error {
		for len(b) > 0 {
			size := 0
			if len(b) >= 8 {
				size = int(be.Uint16(b))
			}
			if size < 8 || size > len(b) {
				return errShort
			}
			m := Meter{ID: be.Uint32(b[4:])}
			if unit, ok := unitOf(be.Uint16(b[2:])); ok && size == 8+bandSize && be.Uint16(b[8:]) == bandDrop {
				m.Rate, m.Burst, m.Kilobits = be.Uint32(b[12:]), be.Uint32(b[16:]), unit == meterKilobits
			}
			list = append(list, m)
			b = b[size:]
		}
		return nil
	})
	return list, err
}

// unitOf returns what a meter with these flags counts; ok is false for flags that this package does not send.
func unitOf(flags uint16) (unit uint16, ok bool) {
	unit = flags &^ (meterStats | meterBurst)
	return unit, flags&meterBurst != 0 && (unit == meterPackets || unit == meterKilobits)
}

// MeterCounts reads the meters' counters.
func (s *Session) MeterCounts(ctx context.Context) (list []MeterCount, err error) {
	err = s.multipart(ctx, multipartMeter, everyMeter(), func(b []byte) error {
		for len(b) > 0 {
			size := 0
			if len(b) >= statsOfMeter {
				size = int(be.Uint16(b[4:]))
			}
			if size < statsOfMeter || size > len(b) {
				return errShort
			}
			c := MeterCount{ID: be.Uint32(b), Packets: be.Uint64(b[16:])}
			for band := b[statsOfMeter:size]; len(band) >= 16; band = band[16:] {
				c.Dropped += be.Uint64(band)
			}
			list = append(list, c)
			b = b[size:]
		}
		return nil
	})
	return list, err
}

// changeMeter sends one mod and a barrier.
func (s *Session) changeMeter(ctx context.Context, command uint16, m Meter) error {
	return s.command(ctx, "change a meter", func(xid uint32) []byte { return appendMeterMod(nil, xid, command, m) })
}

func appendMeterMod(b []byte, xid uint32, command uint16, m Meter) []byte {
	start := len(b)
	b = appendHeader(b, typeMeterMod, xid)
	b = be.AppendUint16(b, command)
	b = be.AppendUint16(b, m.unit()|meterBurst|meterStats)
	b = be.AppendUint32(b, m.ID)
	if command != meterDelete {
		b = be.AppendUint16(b, bandDrop)
		b = be.AppendUint16(b, bandSize)
		b = be.AppendUint32(b, m.Rate)
		b = be.AppendUint32(b, m.Burst)
		b = append(b, 0, 0, 0, 0)
	}
	endMessage(b, start)
	return b
}

// multipart asks one question and hands each part of the answer to visit.
func (s *Session) multipart(ctx context.Context, kind uint16, body []byte, visit func([]byte) error) error {
	end, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	xid := s.nextXID(1)
	b := appendHeader(nil, typeMultipartReq, xid)
	b = be.AppendUint16(b, kind)
	b = append(b, 0, 0, 0, 0, 0, 0)
	b = append(b, body...)
	endMessage(b, 0)
	if err := s.write(b); err != nil {
		return fmt.Errorf("send a multipart request: %w", err)
	}
	var failed error
	for {
		m, err := s.next()
		if err != nil {
			return err
		}
		switch {
		case m.xid != xid:
			continue
		case m.kind == typeError:
			return switchError(m, 0, nil)
		case len(m.body) < 8 || be.Uint16(m.body) != kind:
			return fmt.Errorf("answer to multipart request %d: %w", kind, errShort)
		}
		if failed == nil {
			failed = visit(m.body[8:])
		}
		if be.Uint16(m.body[2:])&multipartMore == 0 {
			return failed
		}
	}
}
