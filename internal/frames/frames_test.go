package frames

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"strings"
	"testing"
	"time"
)

const ether = "020000000002 020000000001"

func raw(t testing.TB, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(text, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Frames by the RFCs' tables, and the line that each is.
var examples = []struct{ hex, text string }{
	{ether + "0800 4500003c 00014000 40060000 0a000001 0a000002 9c400050 00000064 00000000 a002faf0 00000000 0000000000000000000000000000000000000000",
		"IP 10.0.0.1:40000 > 10.0.0.2:80: TCP [S] seq 100 win 64240, length 0"},
	{ether + "0800 4500002a 00024000 40060000 0a000002 0a000001 00509c40 00000001 00000065 5018faf0 00000000 6869 00000000",
		"IP 10.0.0.2:80 > 10.0.0.1:40000: TCP [P.] seq 1 ack 101 win 64240, length 2"},
	{ether + "0800 4500001e 00034000 40110000 0a000001 0a000002 c3500035 000a0000 6869", "IP 10.0.0.1:50000 > 10.0.0.2:53: UDP, length 2"},
	{ether + "0800 4500001c 00034000 40010000 0a000001 0a000002 08000000 00070003", "IP 10.0.0.1 > 10.0.0.2: ICMP echo request, id 7, seq 3, length 0"},
	{ether + "0800 45000024 0004 2000 40110000 0a000001 0a000002 c3500035 00640000 0000000000000000", "IP 10.0.0.1:50000 > 10.0.0.2:53: UDP, length 8, first fragment of 4"},
	{ether + "0800 4500001c 0004 0002 40110000 0a000001 0a000002 0000000000000000", "IP 10.0.0.1 > 10.0.0.2: UDP, fragment 4 at 16, length 8"},
	{ether + "0806 00010800 0604 0001 020000000001 0a000001 000000000000 0a000002", "ARP, who has 10.0.0.2, tell 10.0.0.1"},
	{ether + "86dd 60000000 0008 1140 fd000000000000000000000000000001 fd000000000000000000000000000002 c3500035 00080000", "IP6 [fd00::1]:50000 > [fd00::2]:53: UDP, length 0"},
	{ether + "86dd 60000000 0010 0040 fd000000000000000000000000000001 fd000000000000000000000000000002 1100000000000000 c3500035 00080000", "IP6 [fd00::1]:50000 > [fd00::2]:53: UDP, length 0"},
	{ether + "86dd 60000000 0008 3aff fe800000000000000000000000000001 ff020000000000000000000000000001 87000000 00000000", "IP6 fe80::1 > ff02::1: ICMP6 neighbour solicitation, length 0"},
	{ether + "8100 0005 0800 4500001c 00034000 40010000 0a000001 0a000002 03010000 00000000", "vlan 5 IP 10.0.0.1 > 10.0.0.2: ICMP unreachable, code 1, length 0"},
	{ether + "0800 4500003c 00014000 40060000 0a000001 0a000002 9c40", "IP 10.0.0.1 > 10.0.0.2: TCP [none] seq 0 win 0, length 40 [cut]"},
	{ether + "88cc 0000", "02:00:00:00:00:01 > 02:00:00:00:00:02, type 0x88cc, length 2"},
	{"00", "no Ethernet frame [cut]"},
}

func TestDecode(t *testing.T) {
	for _, e := range examples {
		p := Decode(raw(t, e.hex))
		if got := p.String(); got != e.text {
			t.Errorf("%s\n got %q\nwant %q", e.hex, got, e.text)
		}
	}
}

// Frames are cut at every place, by a snap length or by who sent them.
func TestDecodeCutFrames(t *testing.T) {
	for _, e := range examples {
		b := raw(t, e.hex)
		for n := range b {
			p := Decode(b[:n:n])
			_ = p.String()
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, e := range examples {
		f.Add(raw(f, e.hex))
	}
	f.Add(raw(f, ether+"0800 45000038 00030000 40010000 0a000002 0a000001 03030000 00000000 45000020 00034000 40110000 0a000001 0a000002 c3500035 000c0000"))
	f.Add(raw(f, ether+"0800 4500004e 00000000 40110000 c0000201 c0000202 c00017c1 003a0000 00006558 0000f100"+ether+"0800 4500001c 00034000 40010000 0a000001 0a000002 08000000 00070003"))
	f.Fuzz(func(t *testing.T, b []byte) {
		p := Decode(b)
		if strings.ContainsAny(p.String(), "\n\x1b") {
			t.Errorf("%q", p.String())
		}
		if len(p.Payload) > len(b) {
			t.Errorf("%d bytes behind the headers of %d", len(p.Payload), len(b))
		}
		_, _ = p.Identity()
		if about, ok := p.Quoted(); ok && len(about.Payload) > len(b) {
			t.Errorf("%d bytes behind the quoted headers of %d", len(about.Payload), len(b))
		}
		if inside, ok := p.Geneve(); ok && len(inside.Payload) > len(b) {
			t.Errorf("%d bytes in the tunnel's packet of %d", len(inside.Payload), len(b))
		}
	})
}

// readPcap is a reader by the draft, of either byte order it was written in here.
func readPcap(t *testing.T, b []byte) (times []time.Time, lengths []int, list [][]byte) {
	t.Helper()
	if len(b) < 24 || binary.LittleEndian.Uint32(b) != 0xa1b23c4d || binary.LittleEndian.Uint16(b[4:]) != 2 || binary.LittleEndian.Uint16(b[6:]) != 4 || binary.LittleEndian.Uint32(b[20:]) != 1 {
		t.Fatalf("no pcap header: %x", b[:min(len(b), 24)])
	}
	for b = b[24:]; len(b) > 0; {
		if len(b) < 16 {
			t.Fatalf("half a record: %x", b)
		}
		field := func(i int) int { return int(binary.LittleEndian.Uint32(b[i*4:])) }
		n := field(2)
		if len(b) < 16+n {
			t.Fatalf("a record of %d bytes, of which %d are there", n, len(b)-16)
		}
		times, lengths, list = append(times, time.Unix(int64(field(0)), int64(field(1)))), append(lengths, field(3)), append(list, b[16:16+n])
		b = b[16+n:]
	}
	return times, lengths, list
}

func TestPcap(t *testing.T) {
	var file bytes.Buffer
	w, err := NewPcapWriter(&file, 100)
	if err != nil {
		t.Fatal(err)
	}
	at := time.Unix(1_795_274_596, 123_456_789)
	for i, e := range examples {
		if err := w.Write(at.Add(time.Duration(i)), 1000+i, raw(t, e.hex)); err != nil {
			t.Fatal(err)
		}
	}
	times, lengths, list := readPcap(t, file.Bytes())
	if len(list) != len(examples) {
		t.Fatalf("%d records of %d", len(list), len(examples))
	}
	for i, e := range examples {
		if !times[i].Equal(at.Add(time.Duration(i))) || lengths[i] != 1000+i || !bytes.Equal(list[i], raw(t, e.hex)) {
			t.Errorf("record %d: %v, %d bytes, %x", i, times[i], lengths[i], list[i])
		}
	}
}
