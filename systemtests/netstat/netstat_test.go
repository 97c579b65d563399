package netstat

import "testing"

func TestDatagrams(t *testing.T) {
	const four = "Tcp: InSegs\nTcp: 5\nUdp: InDatagrams NoPorts OutDatagrams InErrors\nUdp: 1 2 100 4\nUdpLite: InDatagrams NoPorts\nUdpLite: 9 9\n"
	const six = "Ip6InReceives 7\nUdp6InDatagrams 10\nUdp6NoPorts 20\nUdp6OutDatagrams 99\nUdp6InErrors 40\nUdpLite6InDatagrams 9\n"
	if n, err := UDP4(four); n != 7 || err != nil {
		t.Errorf("%d, %v, want 7", n, err)
	}
	if n, err := UDP6(six); n != 70 || err != nil {
		t.Errorf("%d, %v, want 70", n, err)
	}
	for _, text := range []string{"", "nothing", "Udp: InDatagrams\n", "Udp: InDatagrams\nUdp: x\n"} {
		if n, err := UDP4(text); err == nil {
			t.Errorf("%d counted in %q", n, text)
		}
	}
	for _, text := range []string{"", "nothing", "Udp6InDatagrams x\n"} {
		if n, err := UDP6(text); err == nil {
			t.Errorf("%d counted in %q", n, text)
		}
	}
}
