package lldp

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/flowkeep/flowkeep/nodestate/native/lldp/lldptest"
)

// Frames made by hand, of how various neighbours tell: what they send, and what is shown of it.
var (
	chassis = lldptest.TLV(1, 4, 0x02, 0, 0, 0, 0x0a, 0xff)
	aPort   = lldptest.Text(2, "Ethernet1/1", 5)
	ttl     = lldptest.TTL(120 * time.Second)
	end     = lldptest.TLV(0)

	// A data centre's switch: names in the local style, a description of many lines, the VLAN of the port.
	switchFrame = lldptest.Frame(lldptest.Nearest, chassis, aPort, ttl,
		lldptest.Text(4, "uplink of rack 7"), lldptest.Text(5, "tor-7.example.org\x00"),
		lldptest.Text(6, "Example OS Software,\r\n  Version 15.2(4)\r\nCopyright (c)  2026\x00"),
		lldptest.TLV(7, 0x00, 0x14, 0x00, 0x04), lldptest.TLV(8, 5, 1, 192, 0, 2, 7, 2, 0, 0, 3, 0xe9, 0),
		lldptest.TLV(127, 0x00, 0x80, 0xc2, 1, 0x01, 0xe8), lldptest.TLV(127, 0x00, 0x01, 0x42, 1, 1), end)

	// A Linux machine's daemon: MAC addresses for both ids, two addresses, aggregation, how the port is set; padding behind the end.
	daemonFrame = append(lldptest.Frame([6]byte{0x01, 0x80, 0xc2, 0, 0, 0x03}, chassis, lldptest.TLV(2, 3, 0x02, 0, 0, 0, 0x0a, 0xfe), lldptest.TTL(121*time.Second),
		lldptest.Text(5, "storage-3"), lldptest.Text(6, "Debian GNU/Linux 12 (bookworm) Linux 6.1.0 x86_64"), lldptest.TLV(7, 0x00, 0x9c, 0x00, 0x80),
		lldptest.TLV(8, 5, 1, 192, 0, 2, 9, 2, 0, 0, 0, 2, 0),
		lldptest.TLV(8, 17, 2, 0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 2, 0, 0, 0, 2, 0),
		lldptest.Text(4, "eno1"), lldptest.TLV(127, 0x00, 0x12, 0x0f, 3, 1, 0, 0, 0, 0), lldptest.TLV(127, 0x00, 0x12, 0x0f, 1, 3, 0x6c, 0x01, 0x00, 0x1e),
		lldptest.TLV(127, 0x00, 0x12, 0x0f, 4, 0x05, 0xf2), lldptest.TLV(127, 0x00, 0x80, 0xc2, 2, 1, 0, 7),
		lldptest.TLV(127, 0x00, 0x80, 0xc2, 3, 0x01, 0xe8, 4, 'v', '4', '8', '8'), lldptest.TLV(127, 0x00, 0x80, 0xc2, 3, 0x00, 0x63, 0), end), make([]byte, 20)...)
)

func TestParse(t *testing.T) {
	const ids = `{"type":1,"chassis-id":"02:00:00:00:0a:ff","chassis-id-type":4,"_description":"MAC address"},{"type":2,"port-id":"Ethernet1/1","port-id-type":5,"_description":"Interface name"}`
	long := strings.Repeat("x", 255)
	for name, c := range map[string]struct {
		frame []byte
		shown string
		ttl   time.Duration
	}{
		"a switch": {switchFrame, `[{"type":5,"system-name":"tor-7.example.org"},{"type":6,"system-description":"Example OS Software, Version 15.2(4) Copyright (c) 2026"},` +
			`{"type":7,"system-capabilities":["MAC Bridge component","Router"]},` + ids +
			`,{"type":8,"management-addresses":[{"address":"192.0.2.7","address-subtype":"IPv4","interface-number":1001,"interface-number-subtype":2}]}]`, 120 * time.Second},
		"a machine": {daemonFrame, `[{"type":5,"system-name":"storage-3"},{"type":6,"system-description":"Debian GNU/Linux 12 (bookworm) Linux 6.1.0 x86_64"},` +
			`{"type":7,"system-capabilities":["MAC Bridge component","802.11 Access Point (AP)","Router","Station Only"]},` +
			`{"type":1,"chassis-id":"02:00:00:00:0a:ff","chassis-id-type":4,"_description":"MAC address"},{"type":2,"port-id":"02:00:00:00:0a:fe","port-id-type":3,"_description":"MAC address"},` +
			`{"type":127,"ieee-802-1-vlans":[{"name":"v488","vid":488},{"name":"","vid":99}],"oui":"00:80:c2","subtype":3},` +
			`{"type":127,"ieee-802-3-mac-phy-conf":{"autoneg":true,"operational-mau-type":30,"pmd-autoneg-cap":27649},"oui":"00:12:0f","subtype":1},` +
			`{"type":127,"ieee-802-1-ppvids":[7],"oui":"00:80:c2","subtype":2},` +
			`{"type":8,"management-addresses":[{"address":"192.0.2.9","address-subtype":"IPv4","interface-number":2,"interface-number-subtype":2},` +
			`{"address":"2001:db8::9","address-subtype":"IPv6","interface-number":2,"interface-number-subtype":2}]},` +
			`{"type":127,"ieee-802-3-max-frame-size":1522,"oui":"00:12:0f","subtype":4}]`, 121 * time.Second},
		"the least":                      {lldptest.Frame(lldptest.Nearest, chassis, aPort, ttl), "[" + ids + "]", 120 * time.Second},
		"leaving":                        {lldptest.Frame(lldptest.Nearest, chassis, aPort, lldptest.TTL(0), end), "[" + ids + "]", 0},
		"behind the end":                 {lldptest.Frame(lldptest.Nearest, chassis, aPort, ttl, end, lldptest.Text(5, "hidden")), "[" + ids + "]", 120 * time.Second},
		"the second name is none":        {lldptest.Frame(lldptest.Nearest, chassis, aPort, ttl, lldptest.Text(5, "one"), lldptest.Text(5, "two")), `[{"type":5,"system-name":"one"},` + ids + "]", 120 * time.Second},
		"an optional one that is wrong":  {lldptest.Frame(lldptest.Nearest, chassis, aPort, ttl, lldptest.TLV(7, 1), lldptest.TLV(8, 200, 1), lldptest.TLV(127, 0, 0x80, 0xc2, 3, 0, 1, 9, 'x'), lldptest.TLV(99, 1)), "[" + ids + "]", 120 * time.Second},
		"the longest name":               {lldptest.Frame(lldptest.Nearest, chassis, aPort, ttl, lldptest.Text(5, long), lldptest.Text(6, long+"x")), `[{"type":5,"system-name":"` + long + `"},` + ids + "]", 120 * time.Second},
		"a name that cannot be printed":  {lldptest.Frame(lldptest.Nearest, chassis, aPort, ttl, lldptest.Text(5, "a\x1b[2Jb\xff\u202ec")), "[{\"type\":5,\"system-name\":\"a\ufffd[2Jb\ufffd\ufffdc\"}," + ids + "]", 120 * time.Second},
		"ids by address":                 {lldptest.Frame(lldptest.Nearest, lldptest.TLV(1, 5, 1, 192, 0, 2, 1), lldptest.TLV(2, 4, 2, 1), ttl), `[{"type":1,"chassis-id":"192.0.2.1","chassis-id-type":5,"_description":"Network address"},{"type":2,"port-id":"0201","port-id-type":4,"_description":"Network address"}]`, 120 * time.Second},
		"ids that cannot be printed":     {lldptest.Frame(lldptest.Nearest, lldptest.TLV(1, 7, 1, 2), lldptest.TLV(2, 6, 0xff, 'a'), ttl), `[{"type":1,"chassis-id":"0102","chassis-id-type":7,"_description":"Locally assigned"},{"type":2,"port-id":"ff61","port-id-type":6,"_description":"Agent circuit ID"}]`, 120 * time.Second},
		"a time to live that goes on":    {lldptest.Frame(lldptest.Nearest, chassis, aPort, lldptest.TLV(3, 0, 9, 9, 9)), "[" + ids + "]", 9 * time.Second},
		"the longest unit, of 1500 byte": {append(lldptest.Frame(lldptest.Nearest, chassis, aPort, ttl, end), make([]byte, 1500-9-14-4-2)...), "[" + ids + "]", 120 * time.Second},
	} {
		h, err := Parse(c.frame)
		if err != nil || string(h.Neighbour.JSON()) != c.shown || h.TTL != c.ttl {
			t.Errorf("%s: %v, %v\nis    %s\nnot   %s", name, h.TTL, err, h.Neighbour.JSON(), c.shown)
		}
	}
}

func TestDropped(t *testing.T) {
	frame := func(told ...[]byte) []byte { return lldptest.Frame(lldptest.Nearest, told...) }
	for says, f := range map[string][]byte{
		"no frame of LLDP":                             append([]byte{}, switchFrame[:13]...),
		"it ends before chassis, port and time":        frame(chassis, aPort),
		"it ends before":                               frame(),
		"type 0 comes where chassis":                   frame(chassis, aPort, end),
		"type 2 comes where chassis":                   frame(aPort, chassis, ttl),
		"type 3 comes where chassis":                   frame(chassis, ttl, aPort),
		"type 5 comes where chassis":                   frame(lldptest.Text(5, "x"), chassis, aPort, ttl),
		"type 1 is there twice":                        frame(chassis, aPort, ttl, chassis),
		"type 2 is there twice":                        frame(chassis, aPort, ttl, lldptest.Text(5, "x"), aPort),
		"type 3 is there twice":                        frame(chassis, aPort, ttl, ttl),
		"its time to live is too short":                frame(chassis, aPort, lldptest.TLV(3, 1)),
		"an id has 1 bytes":                            frame(lldptest.TLV(1, 4), aPort, ttl),
		"an id has 257 bytes":                          frame(chassis, lldptest.Text(2, strings.Repeat("p", 256), 5), ttl),
		"a MAC address has 5 bytes":                    frame(lldptest.TLV(1, 4, 1, 2, 3, 4, 5), aPort, ttl),
		"subtype 0, which is reserved":                 frame(chassis, lldptest.Text(2, "x", 0), ttl),
		"subtype 8, which is reserved":                 frame(lldptest.Text(1, "x", 8), aPort, ttl),
		"it ends within a value of type 5":             append(frame(chassis, aPort, ttl), 5<<1, 9, 'x'),
		"it ends within a header":                      append(frame(chassis, aPort, ttl), 5<<1),
		"it has 1501 bytes, more than 1500":            append(frame(chassis, aPort, ttl, end), make([]byte, 1501-9-14-4-2)...),
		"it ends within a value of type 1":             frame(chassis)[:20],
		"no frame of LLDP\x00 but of another protocol": append(append([]byte{}, switchFrame[:12]...), append([]byte{8, 0}, switchFrame[14:]...)...),
	} {
		says, _, _ = strings.Cut(says, "\x00")
		if h, err := Parse(f); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, not %s; heard %s", err, says, h.Neighbour.JSON())
		}
	}
}

// Whatever comes: no crash, nothing that cannot be printed, and nothing large.
func FuzzParse(f *testing.F) {
	for _, seed := range [][]byte{switchFrame, daemonFrame, lldptest.Switch("tor-1", "1/1", 1, time.Minute), lldptest.Frame(lldptest.Nearest, lldptest.TLV(1, 7, 1, 2), lldptest.TLV(2, 6, 0xff, 'a'), ttl)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		h, err := Parse(frame)
		if err != nil {
			return
		}
		raw := h.Neighbour.JSON()
		if len(raw) > 16<<10 || !utf8.Valid(raw) {
			t.Fatalf("%d bytes: %q", len(raw), raw)
		}
		var back Neighbour
		if err := json.Unmarshal(raw, &back); err != nil || !back.equal(h.Neighbour) {
			t.Fatalf("read back, %v: %s", err, raw)
		}
		for _, told := range back {
			for _, text := range []string{told.SystemName, told.Description, told.ChassisID, told.PortID} {
				if len(text) > mostText || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
					t.Fatalf("%q", text)
				}
			}
			for _, v := range told.VLANs {
				if len(v.Name) > mostVLANName || strings.ContainsFunc(v.Name, func(r rune) bool { return !unicode.IsPrint(r) }) {
					t.Fatalf("%q", v.Name)
				}
			}
			if (told.Type == chassisID && told.ChassisID == "") || (told.Type == portID && told.PortID == "") {
				t.Fatal("an id is empty")
			}
		}
	})
}

func TestRecord(t *testing.T) {
	path := t.TempDir() + "/neighbours.json"
	h, err := Parse(daemonFrame)
	if err != nil {
		t.Fatal(err)
	}
	if err := writeRecord(path, map[string][]Heard{"eth0": {h}}); err != nil {
		t.Fatal(err)
	}
	if known := readRecord(path)["eth0"]; len(known) != 1 || !known[0].Neighbour.equal(h.Neighbour) || known[0].TTL != h.TTL {
		t.Errorf("read back: %v", known)
	}
	for _, text := range []string{"", "{", "[]", `{"eth0": 5}`} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if known := readRecord(path); len(known) > 0 {
			t.Errorf("%q is read as %v", text, known)
		}
	}
	if known := readRecord(path + ".none"); known != nil {
		t.Errorf("nothing is read as %v", known)
	}
}
