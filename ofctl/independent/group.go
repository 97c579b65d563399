package independent

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/contiv/libOpenflow/openflow13"
	"github.com/flowkeep/flowkeep/ofctl"
)

// group is a select group as libOpenflow reads it. Where problem is not empty it has its number alone.
type group struct {
	readOnly
	ofctl.SelectGroup
	problem string
}

// equal reports whether two readings of a group are the same.
func (g *group) equal(o *group) bool { return g.problem == o.problem && g.Equal(o.SelectGroup) }

// bucketSize is the size of an ofp_bucket up to its actions (OpenFlow 1.3.5, 7.3.4.2), in bytes.
const bucketSize = 16

// UnmarshalBinary decodes an ofp_group_desc (OpenFlow 1.3.5, 7.3.5.8). A group that cannot be decoded costs this group
// alone.
func (g *group) UnmarshalBinary(b []byte) error {
	g.ID = binary.BigEndian.Uint32(b[4:])
	err := g.decode(b)
	if err != nil {
		g.Buckets, g.problem = nil, err.Error()
	}
	return nil
}

// decode decodes the type and the buckets. It returns libOpenflow's panics as errors.
func (g *group) decode(b []byte) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("libOpenflow: %v", p)
		}
	}()
	if b[2] != openflow13.OFPGT_SELECT {
		return fmt.Errorf("group of type %d", b[2])
	}
	for rest := b[8:]; len(rest) > 0; {
		if len(rest) < bucketSize {
			return errShort
		}
		size := int(binary.BigEndian.Uint16(rest))
		if size < bucketSize || size > len(rest) {
			return errShort
		}
		bare := slices.Clone(rest[:bucketSize])
		binary.BigEndian.PutUint16(bare, bucketSize)
		var bucket openflow13.Bucket
		if err := bucket.UnmarshalBinary(bare); err != nil {
			return err
		}
		if bucket.Weight != 1 || bucket.WatchPort != openflow13.P_ANY || bucket.WatchGroup != openflow13.OFPG_ANY {
			return fmt.Errorf("bucket of weight %d that watches port %#x, group %#x", bucket.Weight, bucket.WatchPort,
				bucket.WatchGroup)
		}
		actions, err := decodeActions(nil, rest[bucketSize:size])
		if err != nil {
			return err
		}
		g.Buckets, rest = append(g.Buckets, actions), rest[size:]
	}
	return nil
}

// meter is a meter of one band. libOpenflow does not decode meters; they are decoded from their layout (OpenFlow 1.3.5,
// 7.3.4.4). Where problem is not empty it has its number alone.
type meter struct {
	readOnly
	ofctl.Meter
	problem string
}

// Flags and the type of a band of a meter, and the size of a meter with one band.
const (
	meterKilobits = 1
	meterPackets  = 2
	meterBurst    = 4
	meterStats    = 8
	bandDrop      = 1
	meterSize     = 8 + 16
)

// UnmarshalBinary decodes an ofp_meter_config.
func (m *meter) UnmarshalBinary(b []byte) error {
	m.ID = binary.BigEndian.Uint32(b[4:])
	flags := binary.BigEndian.Uint16(b[2:]) &^ meterStats
	switch {
	case flags != meterBurst|meterKilobits && flags != meterBurst|meterPackets:
		m.problem = fmt.Sprintf("meter with flags %d", flags)
	case len(b) != meterSize || binary.BigEndian.Uint16(b[8:]) != bandDrop:
		m.problem = "meter with another band than one that drops"
	default:
		m.Kilobits = flags&meterKilobits != 0
		m.Rate, m.Burst = binary.BigEndian.Uint32(b[12:]), binary.BigEndian.Uint32(b[16:])
	}
	return nil
}
