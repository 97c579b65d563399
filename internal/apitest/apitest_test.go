package apitest

import "testing"

func TestReserve_PortIsNotReservedTwice(t *testing.T) {
	var one, other Server
	defer one.Stop()
	defer other.Stop()
	taken := map[int]bool{}
	for range 200 {
		for _, s := range []*Server{&one, &other} {
			port, err := s.reserve()
			if err != nil || port < firstPort || port > lastPort || taken[port] {
				t.Fatalf("port %d (%v), taken before: %v", port, err, taken[port])
			}
			taken[port] = true
		}
	}
}
