package verdicts

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/ofctl/appctl"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/policy/policytest"
)

// TestRevocationTable prints the time from the beginning of a bundle that revokes a permission until the last
// packet that passes by it, with few and with many megaflows, which other ports made up, on the kernel's datapath
// where there is one, else on the userspace datapath. It judges no figure: run it with -table.
func TestRevocationTable(t *testing.T) {
	if !*printTable {
		t.Skip("a table to print: run with -table")
	}
	// the bound that netplugin sets, and as many as one, two and four pods could make without it
	datapath, counts := "netdev", []int{0, 50_000, 65_000, 100_000, 200_000}
	if _, err := os.Stat("/sys/module/openvswitch"); err == nil {
		datapath, counts = "system", []int{0, 5_000, 20_000} // as many as the virtual machine makes in minutes
	}
	sw := startReal(t, datapath)
	sw.VSCtl(t, "set", "Open_vSwitch", ".", "other_config:max-idle=600000", "other_config:flow-limit=400000")
	for _, megaflows := range counts {
		sw.run(t, strconv.Itoa(megaflows), func(t testing.TB) {
			const rounds = 3
			b := three(t)
			sw.settle(t)
			var last, main, revisers []time.Duration
			held := 0
			for range rounds {
				b.put(allows("0", "1"))
				b.real.settle(t)
				held = b.fill(t, megaflows)
				before := sw.cpu(t)
				last = append(last, b.revocation(t))
				after := sw.cpu(t)
				main = append(main, after.main-before.main)
				revisers = append(revisers, after.revalidators-before.revalidators)
			}
			slices.Sort(last)
			slices.Sort(main)
			slices.Sort(revisers)
			fmt.Printf("%8d megaflows: last packet after %v (median of %d; least %v, most %v); ",
				held, last[rounds/2], rounds, last[0], last[rounds-1])
			fmt.Printf("CPU time of the main thread %v, of revalidators %v\n", main[rounds/2], revisers[rounds/2])
		})
	}
}

// cpuTime is how long threads of ovs-vswitchd have run. It depends less on other work of the machine than elapsed time.
type cpuTime struct{ main, revalidators time.Duration }

func (s *realSwitch) cpu(t testing.TB) (c cpuTime) {
	t.Helper()
	pid := strings.Split(filepath.Base(s.control(t)), ".")[1]
	tasks, err := filepath.Glob("/proc/" + pid + "/task/*")
	must(t, err)
	for _, task := range tasks {
		name, _ := os.ReadFile(filepath.Join(task, "comm"))
		text, err := os.ReadFile(filepath.Join(task, "schedstat"))
		must(t, err)
		ran, _, _ := strings.Cut(string(text), " ")
		ns, err := strconv.ParseInt(ran, 10, 64)
		must(t, err)
		switch {
		case filepath.Base(task) == pid:
			c.main += time.Duration(ns)
		case strings.HasPrefix(string(name), "revalidator"):
			c.revalidators += time.Duration(ns)
		}
	}
	return c
}

// allows isolates pod to and lets pod from in on UDP 53.
func allows(from, to string) *policy.Policy {
	p := lets(from, to)
	p.Ingress[0].Ports[0] = policy.PolicyPort{Protocol: policy.UDP, First: 53, Last: 53}
	return p
}

// fill has other ports send all Ethernet types, and returns how many megaflows there are: of what a port can vary only
// these are many.
func (b *bridge) fill(t testing.TB, megaflows int) int {
	t.Helper()
	f := flood{b.real, 0}
	have, sent := f.count(t), 0
	for deadline := time.Now().Add(3 * comes); have < megaflows && time.Now().Before(deadline); have = f.count(t) {
		for range 200 {
			const types = 60_000 // from 0x1000 on, but IP's and ARP's in no great number
			port := b.locals[2].Port + 1 + uint32(sent/types)%4
			frame := ethernet(config.Gateway.MAC[:], b.locals[2].MAC[:], uint16(0x1000+sent%types), random(46))
			must(t, unix.Send(f.ends[port], frame, 0))
			sent++
		}
		f.processed(t)
	}
	return have
}

// TestFlowLimitBoundsMegaflows: with Open vSwitch's flow-limit a pod cannot make as many megaflows as it likes. Open
// vSwitch reads their number ten times a second, so there may be some more for a moment.
func TestFlowLimitBoundsMegaflows(t *testing.T) {
	const limit, types, most = 2000, 20_000, 10_000
	sw := startReal(t, "netdev")
	sw.VSCtl(t, "set", "Open_vSwitch", ".", "other_config:max-idle=600000", "other_config:flow-limit="+strconv.Itoa(limit))
	sw.run(t, "", func(t testing.TB) {
		b := three(t)
		sw.settle(t)
		f := flood{b.real, 0}
		largest := 0
		for sent := 0; sent < types; {
			for range 200 {
				frame := ethernet(config.Gateway.MAC[:], b.locals[2].MAC[:], uint16(0x1000+sent), random(46))
				must(t, unix.Send(f.ends[b.locals[2].Port], frame, 0))
				sent++
			}
			f.processed(t)
			largest = max(largest, f.count(t))
		}
		t.Logf("%d megaflows at most", largest)
		if largest < limit/2 || largest > most {
			t.Errorf("%d megaflows of %d frames, want about %d and at most %d", largest, types, limit, most)
		}
	})
}

// count returns how many megaflows there are.
func (f *flood) count(t testing.TB) int {
	t.Helper()
	text := f.ask(t, "dpctl/show", f.datapathName())
	_, n, _ := strings.Cut(text, "flows: ")
	n, _, _ = strings.Cut(n, "\n")
	v, err := strconv.Atoi(strings.TrimSpace(n))
	must(t, err)
	return v
}

// processed waits until the datapath looks up no more packets; some may be lost where a port is read too slowly.
func (f *flood) processed(t testing.TB) {
	t.Helper()
	for before := -1; before != f.lookups(t); {
		before = f.lookups(t)
		f.drain()
	}
}

// revocation returns the time from the beginning of the bundle until the last packet of a stream of pod 0 to pod 1.
func (b *bridge) revocation(t testing.TB) time.Duration {
	t.Helper()
	sw := b.real
	frame := ethernet(config.Gateway.MAC[:], b.locals[0].MAC[:], ofctl.EtherIPv4,
		ported(policytest.Address(0, false), policytest.Address(1, false), protoUDP, 5000, 53, 0))
	var last atomic.Int64 // when a packet has come out last
	over := make(chan struct{})
	var both sync.WaitGroup
	both.Go(func() {
		for every := time.NewTicker(500 * time.Microsecond); ; {
			select {
			case <-every.C:
				_ = unix.Send(sw.ends[b.locals[0].Port], frame, 0)
			case <-over:
				every.Stop()
				return
			}
		}
	})
	both.Go(func() {
		for {
			select {
			case a := <-sw.arrived:
				if a.port == b.locals[1].Port {
					last.Store(time.Now().UnixNano())
				}
			case <-over:
				return
			}
		}
	})
	defer both.Wait()
	defer close(over)
	passing := func() bool { return time.Since(time.Unix(0, last.Load())) < 3*sw.patience }
	for deadline := time.Now().Add(comes); !passing(); {
		if time.Now().After(deadline) {
			t.Fatal("nothing passes that is allowed")
		}
		runtime.Gosched()
	}
	ch, _ := b.engine.Apply(resolve.Batch{Policies: []*policy.Policy{lets("0", "1")}})
	b.compiler.Apply(deltaFor(ch, "node1"))
	mods, _ := b.compiler.Take()
	must(t, b.sw.Commit(t.Context(), mods))
	began := time.Now()
	sw.revoke(t, mods)
	for passing() {
		runtime.Gosched()
	}
	return time.Unix(0, last.Load()).Sub(began)
}

// revoke commits a change as netplugin does: on the userspace datapath the cache is purged with the bundle and after
// it, on the kernel's it follows.
func (s *realSwitch) revoke(t testing.TB, mods []ofctl.FlowMod) {
	t.Helper()
	if s.datapath != "netdev" {
		s.commit(t, mods)
		s.settle(t)
		return
	}
	control := s.control(t)
	purged, err := appctl.Ask(t.Context(), control, "revalidator/purge")
	must(t, err)
	must(t, s.session.Commit(t.Context(), mods))
	_, err = purged()
	must(t, err)
	_, err = appctl.Call(t.Context(), control, "revalidator/purge")
	must(t, err)
}
