package verdicts

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flowkeep/flowkeep/policydb/policy/policytest"
)

// mixed is a datagram of a burst, as it is sent.
type mixed struct {
	fragmented
	in      uint32 // the port that it is sent to
	allowed bool
	whole   bool // no fragment is missing
	cut     string
	frames  [][]byte
}

// mixedDatagram returns a random datagram to pod 1, in fragments that may be out of order, missing or sent twice. Pod 0
// may send to UDP port 53, directly or through a Service; nothing else is allowed.
func (b *bridge) mixedDatagram(g *rand.Rand, id uint16) mixed {
	m := mixed{whole: true}
	m.from, m.dst, m.port = 2*g.IntN(2), policytest.Address(1, g.IntN(2) == 0), uint16(53+g.IntN(2))
	m.pieces, m.id = 2+g.IntN(4), id
	m.allowed = m.from == 0 && m.port == 53
	m.in = []uint32{b.locals[m.from].Port, b.locals[m.from].Port, gatewayPort}[g.IntN(3)]
	m.frames = b.fragments(m.fragmented)
	n := g.IntN(m.pieces)
	switch g.IntN(6) {
	case 0:
		slices.Reverse(m.frames)
		m.cut = "reversed"
	case 1:
		g.Shuffle(m.pieces, func(i, j int) { m.frames[i], m.frames[j] = m.frames[j], m.frames[i] })
		m.cut = "shuffled"
	case 2:
		m.frames = slices.Delete(m.frames, n, n+1)
		m.whole, m.cut = false, fmt.Sprint("without ", n)
	case 3:
		m.frames = append(m.frames, m.frames[n])
		m.cut = fmt.Sprint("twice ", n)
	}
	return m
}

// burst stops the switch, as a busy machine does, sends all fragments of some datagrams in a random mix with packets of
// other connections, and lets the switch go on: it reads up to 32 packets of a port at once.
func (b *bridge) burst(g *rand.Rand, pid int, first uint16, datagrams int) (list []mixed) {
	b.t.Helper()
	type frame struct {
		in   uint32
		data []byte
	}
	var all []frame
	for i := range datagrams {
		m := b.mixedDatagram(g, first+uint16(i))
		for _, f := range m.frames {
			all = append(all, frame{m.in, f})
		}
		list = append(list, m)
		from := 2 * g.IntN(2)
		all = append(all, frame{b.locals[from].Port, b.datagram(1, from, 1, uint16(53+g.IntN(3)))})
	}
	if g.IntN(2) == 0 {
		g.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	}
	must(b.t, unix.Kill(pid, unix.SIGSTOP))
	defer func() { must(b.t, unix.Kill(pid, unix.SIGCONT)) }()
	for _, f := range all {
		must(b.t, unix.Send(b.real.ends[f.in], f.data, 0))
	}
	return list
}

// TestStalledSwitch_LetsNoDeniedFragmentPass: a switch that a busy machine has kept waiting takes fragments of several
// pods in large batches, where more leave conntrack than fit in one: the rest leave with packets of other connections.
func TestStalledSwitch_LetsNoDeniedFragmentPass(t *testing.T) {
	const bursts, datagrams, firstID = 40, 24, 1000
	sw := startReal(t, "netdev")
	sw.run(t, "", func(t testing.TB) {
		b := three(t, allows("0", "1"))
		sw.settle(t)
		pid, err := strconv.Atoi(strings.Split(filepath.Base(sw.control(t)), ".")[1])
		must(t, err)
		g, got, passed, f := rand.New(rand.NewPCG(1, 2)), map[uint16]int{}, 0, flood{sw, 0}
		collect := func() {
			for before := -1; before != f.lookups(t); {
				before = f.lookups(t)
			}
			for late := time.After(sw.patience / 4); ; {
				select {
				case a := <-sw.arrived:
					got[a.number]++
				case <-late:
					return
				}
			}
		}
		var sent []mixed
		for n := range bursts {
			sent = append(sent, b.burst(g, pid, firstID+uint16(n*datagrams), datagrams)...)
			collect()
		}
		for _, m := range sent {
			switch {
			case !m.allowed && got[m.id] > 0:
				t.Errorf("LEAK %d fragments came out: %+v, by port %d, %s", got[m.id], m.fragmented, m.in, m.cut)
			case m.allowed && m.whole && got[m.id] >= m.pieces:
				passed++
			}
		}
		if passed < bursts {
			t.Errorf("only %d allowed datagrams passed: nothing was shown", passed)
		}
	})
}
