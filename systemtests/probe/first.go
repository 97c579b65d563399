package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/netstat"
)

// Try is what became of one address in the first seconds of a pod.
type Try struct {
	Proto    string `json:"proto"`
	Address  string `json:"address"`
	Asked    int    `json:"asked"`
	Answered int    `json:"answered"`
	// FirstMillis is from the first instruction to the first answer; -1: none came.
	FirstMillis float64 `json:"firstMillis"`
}

// Beginning is what a pod saw from its first instruction on.
type Beginning struct {
	Tries []Try `json:"tries"`
	// Heard are all UDP datagrams that came to the pod since its network namespace was made, whether anybody listened or not.
	Heard int `json:"heard"`
}

// terminationLog is where the kubelet reads a container's last words.
const terminationLog = "/dev/termination-log"

func firstCommand(args []string) error {
	start := time.Now()
	flags := flag.NewFlagSet("first", flag.ContinueOnError)
	duration := flags.Duration("for", 3*time.Second, "how long to try")
	each := flags.Duration("each", 50*time.Millisecond, "how long one attempt may take")
	if err := flags.Parse(args); err != nil {
		return err
	}
	pairs := flags.Args()
	if len(pairs)%2 != 0 {
		return fmt.Errorf("first wants pairs of PROTO and ADDRESS:\n%s", usage)
	}
	b := Beginning{Tries: make([]Try, len(pairs)/2)}
	var wg sync.WaitGroup
	for i := range b.Tries {
		b.Tries[i] = Try{Proto: pairs[2*i], Address: pairs[2*i+1], FirstMillis: -1}
		wg.Go(func() { b.Tries[i].repeat(start, start.Add(*duration), *each) })
	}
	wg.Wait()
	time.Sleep(time.Until(start.Add(*duration)))
	heard, err := datagrams()
	if err != nil {
		return err
	}
	b.Heard = heard
	text, err := json.Marshal(b)
	if err != nil {
		return err
	}
	fmt.Println(string(text))
	if err := os.WriteFile(terminationLog, text, 0o600); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// datagrams counts what this network namespace has taken in over UDP, of both families.
func datagrams() (int, error) {
	four, err := os.ReadFile("/proc/net/snmp")
	if err != nil {
		return 0, err
	}
	n, err := netstat.UDP4(string(four))
	if err != nil {
		return 0, err
	}
	six, err := os.ReadFile("/proc/net/snmp6")
	if errors.Is(err, os.ErrNotExist) {
		return n, nil
	}
	if err != nil {
		return 0, err
	}
	n6, err := netstat.UDP6(string(six))
	return n + n6, err
}

// repeat asks until the end: an attempt every few milliseconds, each given little time.
func (t *Try) repeat(start, end time.Time, each time.Duration) {
	for time.Now().Before(end) {
		t.Asked++
		if attempt(t.Proto, t.Address, nil, each) == nil {
			t.Answered++
			if t.FirstMillis < 0 {
				t.FirstMillis = float64(time.Since(start).Microseconds()) / 1000
			}
			time.Sleep(200 * time.Millisecond) // that it goes on being open is of less interest, and two dozen pods would keep the machine busy
		}
	}
}

// sprayCommand sends datagrams to COUNT addresses from FIRST on, round and round, until it is told to stop, and expects no answer.
func sprayCommand(args []string) error {
	flags := flag.NewFlagSet("spray", flag.ContinueOnError)
	rate := flags.Int("rate", 2000, "datagrams a second")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() != 3 || *rate <= 0 {
		return fmt.Errorf("spray wants FIRST, COUNT and PORT, and a rate above 0:\n%s", usage)
	}
	first, err := netip.ParseAddr(flags.Arg(0))
	if err != nil {
		return err
	}
	count, err := strconv.Atoi(flags.Arg(1))
	if err != nil {
		return err
	}
	port, err := strconv.ParseUint(flags.Arg(2), 10, 16)
	if err != nil {
		return err
	}
	conn, err := net.ListenUDP("udp", nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	runtime.GOMAXPROCS(1) // there is one thing to do at a time; others would only look for more
	together := min(count, mostTogether)
	ticker := time.NewTicker(time.Duration(together) * time.Second / time.Duration(*rate))
	defer ticker.Stop()
	stop := untilSignal()
	for at, n := first, 0; ; {
		select {
		case <-stop:
			return nil
		case <-ticker.C:
		}
		for range together {
			_, _ = conn.WriteToUDPAddrPort([]byte("spray"), netip.AddrPortFrom(at, uint16(port))) // what is refused or unreachable is as good
			if at, n = at.Next(), n+1; n == count {
				at, n = first, 0
			}
		}
	}
}

// mostTogether is how many addresses are sent to one after the other: to wake up for each of a thousand datagrams a second costs more than to send them.
const mostTogether = 8
