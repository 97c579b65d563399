package systemtests

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

// server is the pod of this test that a way leads to, itself or by a Service, and the way there; false: it leads elsewhere, or from nowhere that is known.
func (w *world) server(e cluster.Expectation) (netns string, way cluster.Way, known bool) {
	to := netip.AddrPortFrom(e.To, uint16(e.Port))
	if pod, is := w.backends[to]; is {
		to = pod
	}
	from := slices.IndexFunc(e.From.IPs, func(a netip.Addr) bool { return a.Is4() == e.To.Is4() })
	if from < 0 {
		return "", way, false
	}
	for _, pod := range w.pods {
		if slices.Contains(pod.IPs, to.Addr()) {
			return pod.NetNS, cluster.Way{Proto: e.Proto, From: e.From.IPs[from], To: to.Addr(), Port: int(to.Port())}, true
		}
	}
	return "", way, false
}

// listen counts what comes to the servers of the ways from their clients until stop is called: what passes for an instant and whose answer is denied
// already is heard nowhere else. stop gives a count for each way, by its place, whose server is known.
func (w *world) listen(ways []cluster.Expectation) (stop func() map[int]cluster.Arrival) {
	w.Helper()
	places, byServer := map[string][]int{}, map[string][]cluster.Way{}
	for i, e := range ways {
		if netns, way, known := w.server(e); known {
			places[netns], byServer[netns] = append(places[netns], i), append(byServer[netns], way)
		}
	}
	stops := map[string]func() ([]cluster.Arrival, error){}
	for netns, list := range byServer {
		var err error
		stops[netns], err = w.Arrivals(w.ctx, netns, list)
		w.must(err)
	}
	return func() map[int]cluster.Arrival {
		w.Helper()
		came := map[int]cluster.Arrival{}
		for netns, stop := range stops {
			counts, err := stop()
			if err != nil {
				w.Error(err) // the other servers' counts are read all the same
				continue
			}
			for n, i := range places[netns] {
				came[i] = counts[n]
			}
		}
		return came
	}
}

// unheard fails the test for each of the ways along which anything comes to the server before the function that it returns is called.
func (w *world) unheard(ways []cluster.Expectation, why string) (stop func()) {
	w.Helper()
	heard := w.listen(ways)
	return func() {
		w.Helper()
		for i, a := range heard() {
			if a.Packets > 0 {
				const clock = "15:04:05.000"
				w.leak("%v: %d packets came to the server, the first at %s, the last at %s; %s",
					ways[i], a.Packets, a.First.Format(clock), a.Last.Format(clock), why)
			}
		}
	}
}

// allHeard waits until something has come to the server along every way, or that nothing comes later would show nothing.
func (w *world) allHeard(ways []cluster.Expectation) {
	w.Helper()
	w.must(cluster.Until(w.ctx, settling, func() error {
		listening := w.listen(ways)
		cluster.Undisturbed(w.ctx, time.Second)
		came := listening()
		var failed error
		for i, e := range ways {
			if came[i].Packets == 0 {
				failed = errors.Join(failed, fmt.Errorf("%v: nothing comes to the server", e))
			}
		}
		return failed
	}))
}
