package live

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
	"github.com/flowkeep/flowkeep/systemtests/soak"
)

// How long an answer may take before a packet counts as not passed, and how often and how long what should have passed is
// asked again: the machine is busy, and kube-proxy takes its time. A packet that passes and should not is never asked again.
var (
	patience     = cluster.Stretch(400 * time.Millisecond)
	longPatience = cluster.Stretch(1500 * time.Millisecond)
)

const (
	mostRepeats = 6
	// kubeProxyRepeats is for Services: after an outage of the API server kube-proxy's watches wait up to 30 s before they ask anew.
	kubeProxyRepeats = 30
	questionEvery    = 100 * time.Millisecond // over UDP, and after a Service's refusal
)

// attempt is one connection to try. packet is what the oracle judges; to is what is dialled.
type attempt struct {
	from, target string
	at           *place
	to           netip.AddrPort
	packet       soak.Packet
	service      bool
	verdict      soak.Verdict
	passed       bool
	seen         error
}

func (a *attempt) String() string {
	want := "denied"
	if a.verdict.Allowed {
		want = "allowed"
	}
	saw := "it passed"
	if !a.passed {
		saw = fmt.Sprintf("it did not pass (%v)", a.seen)
	}
	return fmt.Sprintf("%s (%v) → %s %s %v (for %v port %d): %s by the oracle (%s), %s",
		a.from, a.packet.From, a.target, a.packet.Protocol, a.to, a.packet.To, a.packet.Port, want, a.verdict.Why, saw)
}

// probe tries all ways at once, and again what did not pass and should have.
func (p *player) probe(attempts []*attempt) error {
	tryAll(attempts, patience)
	for i := range kubeProxyRepeats {
		var again []*attempt
		for _, a := range attempts {
			if a.verdict.Allowed && !a.passed && (a.service || i < mostRepeats) {
				again = append(again, a)
			}
		}
		if len(again) == 0 {
			break
		}
		p.Again += len(again)
		tryAll(again, longPatience)
		if i > 0 {
			fmt.Fprintf(p.Log, "round %d: asked again: %v\n", p.round, again[0])
		}
	}
	return p.compare(attempts)
}

func (p *player) compare(attempts []*attempt) error {
	var all []error
	for _, a := range attempts {
		if a.verdict.Allowed {
			p.Allowed++
		} else {
			p.Denied++
		}
		if a.passed != a.verdict.Allowed {
			p.Differences++
			all = append(all, &wrongProbe{a})
		}
	}
	return errors.Join(all...)
}

func tryAll(attempts []*attempt, timeout time.Duration) {
	var all sync.WaitGroup
	for _, a := range attempts {
		all.Go(func() { a.passed, a.seen = a.try(timeout) })
	}
	all.Wait()
}

// try tells whether a packet arrived and was answered. A refusal is an answer too: of the one who was asked, but before a Service
// it is kube-proxy's, who has not heard of the pod yet, and is asked again while there is time.
func (a *attempt) try(timeout time.Duration) (bool, error) {
	end := time.Now().Add(timeout)
	for {
		err := a.ask(end)
		switch refused := errors.Is(err, syscall.ECONNREFUSED); {
		case err == nil, refused && !a.service:
			return true, err
		case !refused || time.Until(end) < questionEvery:
			return false, err
		}
		time.Sleep(questionEvery)
	}
}

func (a *attempt) ask(end time.Time) error {
	proto := map[string]string{"TCP": "tcp", "UDP": "udp"}[a.packet.Protocol]
	conn, err := a.at.Dial(proto, a.to, time.Until(end))
	if err != nil {
		return err
	}
	defer conn.Close()
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // no port shall wait for a late segment
		return nil
	}
	return askUDP(conn, end)
}

func askUDP(conn net.Conn, end time.Time) error {
	buf := make([]byte, 16)
	for time.Now().Before(end) {
		if _, err := conn.Write(buf[:8]); err != nil {
			return err
		}
		if err := conn.SetReadDeadline(time.Now().Add(min(questionEvery, time.Until(end)))); err != nil {
			return err
		}
		_, err := conn.Read(buf)
		if late, ok := errors.AsType[net.Error](err); ok && late.Timeout() {
			continue
		}
		return err
	}
	return errors.New("no answer")
}

// sample draws n ways between all places; none where no pod has an address of its own.
func (p *player) sample(rng *rand.Rand, n int) (list []*attempt) {
	places, view, edges := p.places(), p.view(), portEdges(p.state)
	if !slices.ContainsFunc(places, p.hasPod) {
		return nil
	}
	for len(list) < n {
		from, to := places[rng.IntN(len(places))], places[rng.IntN(len(places))]
		if from.NetNS == nil || from.name == to.name && from.node != "" || from == p.outside && to == p.outside {
			continue
		}
		a := p.way(rng, from, to, edges)
		if a == nil {
			continue
		}
		a.verdict = view.Judge(a.packet)
		list = append(list, a)
	}
	return list
}

// places are the pods, twice, so that most ways have one, the nodes and the host outside, in an order that the seed can rely on.
func (p *player) places() (list []*place) {
	for _, id := range slices.Sorted(maps.Keys(p.pods)) {
		if !p.state.Pods[id].HostNetwork {
			list = append(list, p.pods[id], p.pods[id])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.nodes)) {
		list = append(list, p.nodes[name])
	}
	return append(list, p.outside)
}

// way draws family, protocol and port; nil where there is no such way.
func (p *player) way(rng *rand.Rand, from, to *place, edges []int) *attempt {
	family := 4 + 2*rng.IntN(2)
	source, ok := from.ip(family)
	target, ok2 := to.ip(family)
	if !ok || !ok2 || !p.hasPod(from) && !p.hasPod(to) {
		return nil
	}
	a := &attempt{from: from.name, target: to.name, at: from, packet: soak.Packet{From: source, To: target, FromNode: from.node}}
	a.packet.Protocol = []string{"TCP", "TCP", "UDP"}[rng.IntN(3)]
	a.packet.Port = soak.Ports[rng.IntN(len(soak.Ports))]
	if a.packet.Protocol == "TCP" && len(edges) > 0 && rng.IntN(4) == 0 {
		a.packet.Port = edges[rng.IntN(len(edges))] // nobody need answer: a refusal is an answer
	}
	a.to = netip.AddrPortFrom(target, uint16(a.packet.Port))
	if p.hasPod(from) && p.hasPod(to) && rng.IntN(6) == 0 {
		return p.throughService(a, family)
	}
	return a
}

func (p *player) hasPod(at *place) bool { _, ok := p.pods[at.name]; return ok }

func (p *player) throughService(a *attempt, family int) *attempt {
	for _, ip := range p.services[a.target] {
		if ip.Is4() == (family == 4) {
			a.to, a.packet.Port, a.service = netip.AddrPortFrom(ip, soak.ServicePort), soak.ServiceTarget, true
			return a
		}
	}
	return nil
}

// portEdges are the first and last ports of the policies' ranges, and their neighbours outside.
func portEdges(s *soak.State) (list []int) {
	for _, id := range slices.Sorted(maps.Keys(s.Policies)) {
		spec := s.Policies[id].Spec
		for _, r := range slices.Concat(spec.Ingress, spec.Egress) {
			if r.Ports == nil {
				continue
			}
			for _, port := range *r.Ports {
				if first, ok := port.Port.(int); ok {
					last := max(first, port.EndPort)
					list = append(list, first-1, first, last, last+1)
				}
			}
		}
	}
	return slices.DeleteFunc(list, func(n int) bool { return n < 1 || n > 65535 })
}
