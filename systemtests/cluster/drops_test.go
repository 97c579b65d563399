package cluster

import "testing"

func TestParseUDPDrops(t *testing.T) {
	const text = `Ip: Forwarding DefaultTTL
Ip: 1 64
Udp: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors InCsumErrors
Udp: 58973 1360 0 60344 7 100 0
UdpLite: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors InCsumErrors
UdpLite: 0 0 0 0 50 0 0
Udp6InDatagrams                 	9
Udp6RcvbufErrors                	4
UdpLite6RcvbufErrors            	60
`
	if got := parseUDPDrops(text); got != 11 {
		t.Errorf("%d dropped, want 11", got)
	}
	if got := parseUDPDrops(""); got != 0 {
		t.Errorf("no text: %d", got)
	}
}
