package cluster

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

const metricsPage = `# HELP flowkeep_up says so
# TYPE flowkeep_up gauge
flowkeep_up{node="node1",x="a"} 1
flowkeep_up{node="node2",x="a"} 2.5
flowkeep_up_total 9
`

func TestSumMetric(t *testing.T) {
	for _, c := range []struct {
		metric string
		labels []string
		want   float64
	}{
		{"flowkeep_up", nil, 3.5},
		{"flowkeep_up", []string{`node="node2"`}, 2.5},
		{"flowkeep_up_total", nil, 9},
	} {
		if got, err := sumMetric(metricsPage, c.metric, c.labels...); err != nil || got != c.want {
			t.Errorf("%s %v: got %v, %v, want %v", c.metric, c.labels, got, err, c.want)
		}
	}
	if _, err := sumMetric(metricsPage, "flowkeep_u"); err == nil {
		t.Error("a metric that is not there was found")
	}
}

// TestAnswer_Await starts programs that close descriptor 3 at once, or keep it open.
func TestAnswer_Await(t *testing.T) {
	for script, limit := range map[string]time.Duration{
		"exec 3>&-; exec sleep 600": time.Hour,
		"exit 1":                    time.Hour,
		"exec sleep 600":            10 * time.Millisecond,
	} {
		t.Run(script, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), "sh", "-c", script)
			a, err := startAnswered(cmd)
			if err != nil {
				t.Fatal(err)
			}
			a.await(limit)
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
	}
}

// TestAnswer_AwaitBegin starts programs that write to descriptor 3 at once, end before, or do neither.
func TestAnswer_AwaitBegin(t *testing.T) {
	for _, c := range []struct {
		script string
		limit  time.Duration
		ok     bool
	}{
		{"echo >&3; exec 3>&-; exec sleep 600", time.Hour, true},
		{"exit 1", time.Hour, false},
		{"exec sleep 600", 10 * time.Millisecond, false},
	} {
		t.Run(c.script, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), "sh", "-c", c.script)
			a, err := startAnswered(cmd)
			if err != nil {
				t.Fatal(err)
			}
			if err := a.awaitBegin(c.limit); (err == nil) != c.ok {
				t.Errorf("got %v", err)
			}
			if c.ok {
				a.await(time.Hour)
			}
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
	}
}

const dump1 = `OFPST_FLOW reply (OF1.3) (xid=0x2):
 cookie=0x1, duration=10.5s, table=0, n_packets=3, n_bytes=294, priority=1,ip actions=goto_table:5
 cookie=0x2, duration=10.5s, table=0, n_packets=0, n_bytes=0, priority=2,arp actions=drop
`

func TestTouched(t *testing.T) {
	before, err := parseFlows(dump1)
	if err != nil || len(before) != 2 {
		t.Fatalf("%d flows, %v", len(before), err)
	}
	later := strings.ReplaceAll(dump1, "duration=10.5s", "duration=14.5s")
	later = strings.Replace(later, "n_packets=3", "n_packets=700", 1)
	check := func(name, text string, want ...string) {
		t.Helper()
		after, err := parseFlows(text)
		if err != nil {
			t.Fatal(err)
		}
		got := Touched(before, after, 4*time.Second)
		if len(got) != len(want) {
			t.Errorf("%s: got %q, want %q", name, got, want)
			return
		}
		for i := range want {
			if !strings.HasPrefix(got[i], want[i]) {
				t.Errorf("%s: got %q, want %q", name, got, want)
			}
		}
	}
	check("left alone", later)
	check("sent again", strings.Replace(later, "duration=14.5s", "duration=1.0s", 1), "sent again cookie=0x1")
	check("changed", strings.Replace(later, "goto_table:5", "goto_table:6", 1), "added cookie=0x1", "removed cookie=0x1")
}

func TestJudge(t *testing.T) {
	udp, tcp, shut := Expectation{Open: true, Proto: "udp"}, Expectation{Open: true, Proto: "tcp"}, Expectation{Proto: "udp"}
	for _, c := range []struct {
		name       string
		e          Expectation
		r          Report
		dropped    uint64
		kind       string // empty: no failure
		subtracted uint64
	}{
		{"all answered", udp, Report{Sent: 1000, Received: 1000}, 9, "", 0},
		{"one lost", udp, Report{Sent: 1000, Received: 999}, 0, Lost, 0},
		{"one lost that the kernel dropped", udp, Report{Sent: 1000, Received: 999}, 9, "", 1},
		{"more lost than the kernel dropped", udp, Report{Sent: 1000, Received: 997}, 2, Lost, 2},
		{"none answered, all dropped", udp, Report{Sent: 5}, 9, Lost, 0},
		{"TCP repeats what is dropped", tcp, Report{Sent: 1000, Received: 999}, 9, Lost, 0},
		{"nothing asked", udp, Report{}, 0, Lost, 0},
		{"interrupted", tcp, Report{Sent: 10, Received: 10, Broken: "reset"}, 0, Lost, 0},
		{"denied", shut, Report{Sent: 1000}, 9, "", 0},
		{"one passed", shut, Report{Sent: 1000, Received: 1}, 999, Leak, 0},
	} {
		subtracted, err := c.e.Judge(c.r, c.dropped)
		if (err == nil) != (c.kind == "") || err != nil && !strings.HasPrefix(err.Error(), c.kind+" ") || subtracted != c.subtracted {
			t.Errorf("%s: %v, %d subtracted; want %q, %d", c.name, err, subtracted, c.kind, c.subtracted)
		}
	}
}

// TestTiming: a limit is multiplied by the slowness, and timers that were late extend it.
func TestTiming(t *testing.T) {
	for _, c := range []struct {
		slowness string
		timing   Timing
		late     bool
		says     string
	}{
		{"1", Timing{Took: 900 * time.Millisecond, Limit: time.Second}, false, "TIME 0.90 of the limit: x: 900ms, limit 1s at slowness 1"},
		{"1", Timing{Took: 1001 * time.Millisecond, Limit: time.Second}, true, "LATE TIME 1.00 "},
		{"3", Timing{Took: 2900 * time.Millisecond, Limit: time.Second}, false, "TIME 0.97 "},
		{"3", Timing{Took: 3300 * time.Millisecond, Limit: time.Second}, true, "LATE TIME 1.10 "},
		{"1", Timing{Took: 1400 * time.Millisecond, Limit: time.Second, Late: time.Second}, false, "TIME 0.70 "},
	} {
		t.Setenv("FLOWKEEP_SLOW", c.slowness)
		c.timing.What = "x"
		text, err := c.timing.String(), c.timing.Err()
		if err != nil {
			text = err.Error()
		}
		if (err != nil) != c.late || !strings.HasPrefix(text, c.says) {
			t.Errorf("%+v at slowness %s: %q, want %q", c.timing, c.slowness, text, c.says)
		}
	}
}

// TestUnmetError_LinesOfLeaks: the line of an open denied way begins with Leak, that of a lost allowed packet does not.
func TestUnmetError_LinesOfLeaks(t *testing.T) {
	open, shut := Expectation{Open: true, Why: "allowed"}, Expectation{Why: "denied"}
	var unmet []string
	for _, c := range []struct {
		e       Expectation
		verdict string
		begins  string
	}{
		{open, "open", ""},
		{shut, "shut no answer", ""},
		{open, "shut no answer", Lost + " " + open.String()},
		{shut, "open", Leak + " " + shut.String()},
	} {
		got := c.e.compare(c.verdict)
		if (got == "") != (c.begins == "") || !strings.HasPrefix(got, c.begins) {
			t.Errorf("%v is %s: %q, want %q at its beginning", c.e, c.verdict, got, c.begins)
		}
		if got != "" {
			unmet = append(unmet, got)
		}
	}
	if err := unmetError(nil, 4); err != nil {
		t.Error(err)
	}
	text := fmt.Sprintf("after 30s still: %v", unmetError(unmet, 4))
	leaks := 0
	for line := range strings.Lines(text) {
		if strings.HasPrefix(strings.TrimSpace(line), Leak) {
			leaks++
		}
	}
	if leaks != 1 || !strings.Contains(text, "2 of 4 verdicts are wrong") {
		t.Errorf("%d lines begin with %s, want 1:\n%s", leaks, Leak, text)
	}
}

// TestJudge_NamesTimesOfALoss: whether answers still came when the stream gave up.
func TestJudge_NamesTimesOfALoss(t *testing.T) {
	last := time.Date(2026, 1, 2, 3, 4, 5, 6e6, time.UTC)
	open := Expectation{Open: true}
	for _, c := range []struct {
		r    Report
		says string
	}{
		{
			Report{Sent: 2, Received: 1, LastAnswer: last, WaitedUntil: last.Add(2 * time.Second)},
			"; last answer at 03:04:05.006, waited until 03:04:07.006",
		},
		{Report{Sent: 2, Received: 1}, "last answer at never"},
	} {
		if _, err := open.Judge(c.r, 0); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: %v, want %q in it", c.r, err, c.says)
		}
	}
}

func TestJudge_NamesTheStateOfALoss(t *testing.T) {
	for _, broken := range []string{"", "reset"} {
		r := Report{Sent: 2, Received: 1, Broken: broken, TCP: "ESTABLISHED"}
		_, err := (Expectation{Open: true}).Judge(r, 0)
		if err == nil || !strings.HasSuffix(err.Error(), "; TCP: ESTABLISHED") {
			t.Errorf("%+v: %v", r, err)
		}
	}
}

// TestStreamFlags: on an open way a SYN that is sent again after a second arrives in time. A slow machine has more time,
// and sends fewer packets on an open way; a denied way keeps its rate.
func TestStreamFlags(t *testing.T) {
	for _, c := range []struct {
		slowness string
		open     bool
		want     string
	}{
		{"1", true, "-rate 900 -grace 2s -redial 2s"},
		{"1", false, "-rate 900 -grace 500ms -redial 200ms"},
		{"3", true, "-rate 100 -grace 6s -redial 6s"},
		{"3", false, "-rate 900 -grace 500ms -redial 200ms"},
		{"12", true, "-rate 10 -grace 24s -redial 24s"},
	} {
		t.Setenv("FLOWKEEP_SLOW", c.slowness)
		if got := strings.Join(Expectation{Open: c.open}.streamFlags(900), " "); got != c.want {
			t.Errorf("open %v at slowness %s: %q, want %q", c.open, c.slowness, got, c.want)
		}
	}
}

func TestPressure(t *testing.T) {
	const text = "some avg10=1.94 avg60=5.51 avg300=2.33 total=15844107\nfull avg10=0.15 avg60=0.91 avg300=0.56 total=4800020\n"
	if got, told := pressure(text, 2); !told || got != 31688214*time.Microsecond {
		t.Errorf("%v, %v", got, told)
	}
	for _, bad := range []string{"", "full avg10=0.15 total=1\n", "some total=\n", "some avg10=0.15\n"} {
		if got, told := pressure(bad, 2); told {
			t.Errorf("%q: %v", bad, got)
		}
	}
}

func TestNextAddresses(t *testing.T) {
	at := netip.MustParseAddr
	for _, c := range []struct {
		last  string
		count int
		want  []Run
	}{
		{"10.244.1.9", 24, []Run{{at("10.244.1.10"), 24}}},
		{"10.244.1.230", 24, []Run{{at("10.244.1.231"), 24}}},
		{"10.244.1.250", 24, []Run{{at("10.244.1.251"), 4}, {at("10.244.1.2"), 20}}},
		{"10.244.1.254", 1, []Run{{at("10.244.1.2"), 1}}},
		{"fd00::fe", 3, []Run{{at("fd00::ff"), 3}}},
	} {
		if got := NextAddresses(at(c.last), c.count); !slices.Equal(got, c.want) {
			t.Errorf("%d behind %s: %v, want %v", c.count, c.last, got, c.want)
		}
	}
	for later, earlier := range map[string]string{"10.244.1.9": "10.244.1.8", "10.244.1.3": "10.244.1.254", "fd00::3": "fd00::2", "fd00::1:3": "fd00::fe"} {
		if !GivenLater(at(later), at(earlier)) || GivenLater(at(earlier), at(later)) || !GivenLater(at(later), netip.Addr{}) {
			t.Errorf("%s was given out after %s", later, earlier)
		}
	}
}

func TestUntil(t *testing.T) {
	n := 0
	err := Until(t.Context(), time.Second, func() error {
		if n++; n < 3 {
			return errors.New("not yet")
		}
		return nil
	})
	if err != nil || n != 3 {
		t.Errorf("%d calls, %v", n, err)
	}
	if err := Until(t.Context(), 60*time.Millisecond, func() error { return errors.New("never") }); err == nil || !strings.Contains(err.Error(), "never") {
		t.Errorf("got %v", err)
	}
}

func TestNextSource(t *testing.T) {
	seen := map[uint32]bool{}
	for range sources {
		port := nextSource()
		if seen[port] || port < firstSource || port >= 30_000 {
			t.Fatalf("port %d, after %d others", port, len(seen))
		}
		seen[port] = true
	}
}
