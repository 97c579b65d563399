package verdicts

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/ofctl/ovstest"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// datagram is one of UDP, without a checksum, as IPv4 allows.
func datagram(payload []byte) []byte {
	const from, to = 40000, 9
	b := binary.BigEndian.AppendUint16(nil, from)
	b = binary.BigEndian.AppendUint16(b, to)
	b = binary.BigEndian.AppendUint16(b, uint16(8+len(payload)))
	return append(append(b, 0, 0), payload...)
}

// ipv4Frame is a frame from a pod with an IPv4 packet, or with the first fragment of one.
func ipv4Frame(from *pipeline.LocalEndpoint, dst netip.Addr, payload []byte, more bool) string {
	ip := make([]byte, 20)
	ip[0], ip[8], ip[9] = 0x45, 64, 17
	binary.BigEndian.PutUint16(ip[2:], uint16(20+len(payload)))
	if more {
		ip[6] = 0x20
	}
	copy(ip[12:], from.Addresses[0].AsSlice())
	copy(ip[16:], dst.AsSlice())
	sum := uint32(0)
	for i := 0; i < len(ip); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum>>16+sum))
	return hex.EncodeToString(slices.Concat(config.Gateway.MAC[:], from.MAC[:], []byte{8, 0}, ip, payload))
}

// TestHeldFragmentsDoNotLeaveForAService: the userspace datapath puts fragments that it has held among the packets of whichever
// visit to conntrack comes next. That of a packet to a Service leads to the node unjudged, for Service addresses alone.
func TestHeldFragmentsDoNotLeaveForAService(t *testing.T) {
	sw := ovstest.Start(t, firstPod+2)
	deny := &policy.Policy{Namespace: "ns", Name: "deny", IsolatesEgress: true}
	b := three(t, deny)
	must(t, connect(t, sw).Commit(t.Context(), mods(ofctl.Add, b.compiler.Flows())))
	capture := filepath.Join(sw.Dir, "gateway.pcap")
	sw.VSCtl(t, "set", "interface", fmt.Sprintf("p%d", gatewayPort), "options:tx_pcap="+capture)
	pod, service, ours := &b.locals[0], netip.MustParseAddr("10.96.0.9"), []byte("for the Service")
	send := func(dst netip.Addr, payload []byte, more bool) {
		sw.AppCtl(t, "netdev-dummy/receive", fmt.Sprintf("p%d", pod.Port), ipv4Frame(pod, dst, datagram(payload), more))
	}
	sw.AppCtl(t, "time/stop")
	held := append(make([]byte, 1420), []byte("held, and not judged")...)
	send(gatewayAddrs[0], held, true)
	sw.AppCtl(t, "time/warp", "20000", "1000")
	var left []byte
	eventually(t, "the Service's packet, and the fragment given up", func() bool {
		send(service, ours, false)
		left, _ = os.ReadFile(capture)
		return bytes.Contains(left, ours) && strings.Contains(sw.AppCtl(t, "dpctl/ipf-get-status"), "v4 frags expired: 1")
	})
	send(service, ours, false)
	before := bytes.Count(left, ours)
	eventually(t, "one more", func() bool { left, _ = os.ReadFile(capture); return bytes.Count(left, ours) > before })
	if bytes.Contains(left, held[1420:]) {
		t.Error(leak(true) + "a fragment of a pod without rights left for the gateway")
	}
}
