package frames

import (
	"encoding/binary"
	"io"
	"time"
)

// Fields of a pcap file with times in nanoseconds, in the byte order that we write (draft-ietf-opsawg-pcap).
const (
	pcapMagic    = 0xa1b23c4d
	pcapMajor    = 2
	pcapMinor    = 4
	pcapEthernet = 1
	pcapHeader   = 24
	pcapRecord   = 16
)

// PcapWriter writes a pcap file, a record a Write, so that what was written is whole as long as the writer below takes
// whole writes.
type PcapWriter struct {
	w      io.Writer
	record []byte
}

// NewPcapWriter writes the file's header. snap is the most bytes that frames are cut to.
func NewPcapWriter(w io.Writer, snap int) (*PcapWriter, error) {
	head := make([]byte, 0, pcapHeader)
	head = binary.LittleEndian.AppendUint32(head, pcapMagic)
	head = binary.LittleEndian.AppendUint16(head, pcapMajor)
	head = binary.LittleEndian.AppendUint16(head, pcapMinor)
	head = append(head, make([]byte, 8)...)
	head = binary.LittleEndian.AppendUint32(head, uint32(snap))
	head = binary.LittleEndian.AppendUint32(head, pcapEthernet)
	_, err := w.Write(head)
	return &PcapWriter{w: w}, err
}

// Write adds a frame; length is how long it was on the wire.
func (p *PcapWriter) Write(at time.Time, length int, frame []byte) error {
	r := p.record[:0]
	r = binary.LittleEndian.AppendUint32(r, uint32(at.Unix()))
	r = binary.LittleEndian.AppendUint32(r, uint32(at.Nanosecond()))
	r = binary.LittleEndian.AppendUint32(r, uint32(len(frame)))
	r = binary.LittleEndian.AppendUint32(r, uint32(max(length, len(frame))))
	p.record = append(r, frame...)
	_, err := p.w.Write(p.record)
	return err
}
