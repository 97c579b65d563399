package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Expectation is a verdict that packets should meet. From sends; To is the destination, a pod's or any other.
type Expectation struct {
	From  Pod
	Proto string // tcp, udp, sctp, icmp
	To    netip.Addr
	Port  int // not for icmp
	Open  bool
	Why   string // what the reader of a failure should know
}

func (e Expectation) target() string {
	if e.Proto == "icmp" {
		return e.To.String()
	}
	return netip.AddrPortFrom(e.To, uint16(e.Port)).String()
}

func (e Expectation) String() string {
	want := "shut"
	if e.Open {
		want = "open"
	}
	s := fmt.Sprintf("%v → %s %s: want %s", e.From, e.Proto, e.target(), want)
	if e.Why != "" {
		s += " (" + e.Why + ")"
	}
	return s
}

// Patience is how long an attempt waits for an answer. One that is to come comes when it comes, and on a machine that stood still for
// seconds that is late; to find that none comes costs all of Shut.
type Patience struct{ Open, Shut time.Duration }

// Check sends one attempt for each expectation, all at once, and returns those not met, each with what was seen.
func (c *Cluster) Check(ctx context.Context, p Patience, expectations []Expectation) (unmet []string, err error) {
	type group struct {
		netns string
		open  bool
	}
	groups := map[group][]Expectation{}
	for _, e := range expectations {
		g := group{e.From.NetNS, e.Open}
		groups[g] = append(groups[g], e)
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for g, list := range groups {
		wg.Go(func() {
			timeout := Window(p.Shut)
			if g.open {
				timeout = Stretch(p.Open)
			}
			u, e := c.checkFrom(ctx, g.netns, timeout, list)
			mu.Lock()
			defer mu.Unlock()
			unmet = append(unmet, u...)
			if e != nil {
				err = e
			}
		})
	}
	wg.Wait()
	return unmet, err
}

func (c *Cluster) checkFrom(ctx context.Context, netns string, timeout time.Duration, list []Expectation) (unmet []string, err error) {
	args := []string{c.probe(), "check", "-timeout", timeout.String()}
	for _, e := range list {
		args = append(args, e.Proto, e.target())
	}
	text, err := output(inNS(ctx, netns, args...))
	if err != nil {
		return nil, err
	}
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if len(lines) != len(list) {
		return nil, fmt.Errorf("%d verdicts for %d attempts: %q", len(lines), len(list), text)
	}
	for i, e := range list {
		if wrong := e.compare(lines[i]); wrong != "" {
			unmet = append(unmet, wrong)
		}
	}
	return unmet, nil
}

// compare returns what is wrong with a verdict of the probe, empty if it is the expected one.
func (e Expectation) compare(verdict string) string {
	switch open := strings.HasPrefix(verdict, "open"); {
	case open == e.Open:
		return ""
	case open:
		return leaked("%v; is %s", e, verdict)
	}
	return fmt.Sprintf("%s %v; is %s", Lost, e, verdict)
}

// unmetError returns an error with a line for each unmet expectation, nil if there is none.
func unmetError(unmet []string, of int) error {
	if len(unmet) == 0 {
		return nil
	}
	return fmt.Errorf("%d of %d verdicts are wrong:\n  %s", len(unmet), of, strings.Join(unmet, "\n  "))
}

// Report is what a stream saw; see the probe's.
type Report struct {
	Proto            string    `json:"proto"`
	Address          string    `json:"address"`
	Sent             uint64    `json:"sent"`
	Received         uint64    `json:"received"`
	LongestGapMillis float64   `json:"longestGapMillis"`
	LongestGapBegan  time.Time `json:"longestGapBegan,omitzero"`
	LastAnswer       time.Time `json:"lastAnswer,omitzero"`
	WaitedUntil      time.Time `json:"waitedUntil,omitzero"`
	FirstLoss        uint64    `json:"firstLoss"`
	Broken           string    `json:"broken"`
	TCP              string    `json:"tcp"`
}

// redial is how long one attempt of a stream to connect may take. Each that fails counts as a question without an
// answer. On a way that is open the first SYN may be lost on a busy machine: TCP sends it again after a second. On one
// that is shut, attempts follow each other quickly, so that a way that opens for an instant is found.
const (
	redial     = 2 * time.Second
	shutRedial = 200 * time.Millisecond
)

// grace is how long after its last question, and after each answer that follows it, an open stream waits for the next
// answer: TCP repeats a lost segment after up to a second. A denied stream waits shutGrace.
const (
	grace     = 2 * time.Second
	shutGrace = 500 * time.Millisecond
)

// Stream asks until Stop.
type Stream struct {
	Expectation
	cmd      *exec.Cmd
	answered *answer
	stdout   bytes.Buffer
	stderr   bytes.Buffer
}

// An answer is the first one that a probe gets.
type answer struct{ pipe *os.File }

// startAnswered starts a probe that has the flag -answered.
func startAnswered(cmd *exec.Cmd) (*answer, error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer write.Close()
	cmd.ExtraFiles = []*os.File{write}
	if err := cmd.Start(); err != nil {
		read.Close()
		return nil, err
	}
	return &answer{read}, nil
}

// awaitBegin waits until the probe is about to ask, and SIGTERM has it print its report. It fails if the probe has
// ended, or after the limit.
func (a *answer) awaitBegin(limit time.Duration) error {
	_ = a.pipe.SetReadDeadline(time.Now().Add(limit))
	if _, err := a.pipe.Read(make([]byte, 1)); err != nil {
		return fmt.Errorf("the probe has not begun: %w", err)
	}
	return nil
}

// await waits until the probe has its first answer or has ended, at most for the limit. Call it once, after awaitBegin
// if at all.
func (a *answer) await(limit time.Duration) {
	defer a.pipe.Close()
	_ = a.pipe.SetReadDeadline(time.Now().Add(limit))
	_, _ = io.Copy(io.Discard, a.pipe) // until the end of the pipe, or a timeout
}

// StreamRate is how often a second each of so many streams asks: a thousand times, and all together no more than leaves the processors half
// their time for the cluster. A machine that is kept busy by its senders alone loses packets at any socket.
func StreamRate(streams int) float64 {
	const each, processor = 1000, 3000
	return min(each, float64(processor*runtime.NumCPU())/float64(max(streams, 1)))
}

// StartStream starts one; the context's end ends it without a report. It sends at Rate(perSecond) on an open way and at
// perSecond on a denied one, which needs no processor for answers.
func (c *Cluster) StartStream(ctx context.Context, e Expectation, perSecond float64) (_ *Stream, err error) {
	args := []string{c.probe(), "stream", "-source", fmt.Sprint(nextSource())}
	args = append(args, e.streamFlags(perSecond)...)
	s := &Stream{Expectation: e, cmd: inNS(ctx, e.From.NetNS, append(args, "-answered", e.Proto, e.target())...)}
	s.cmd.Stdout, s.cmd.Stderr = &s.stdout, &s.stderr
	s.answered, err = startAnswered(s.cmd)
	return s, err
}

// beginLimit is how long a process may take to begin, at slowness 1.
const beginLimit = 10 * time.Second

// AwaitBegin waits until the stream is about to ask. Before that, Stop would end it without a report, and a denied
// stream would prove nothing. Call it before AwaitAnswer.
func (s *Stream) AwaitBegin() error {
	if err := s.answered.awaitBegin(Stretch(beginLimit)); err != nil {
		return fmt.Errorf("%v: %w", s.Expectation, err)
	}
	return nil
}

// AwaitAnswer waits until an open stream has its first answer or has ended, at most as long as an attempt to connect may
// take. Judge finds a stream without answers. Call it once.
func (s *Stream) AwaitAnswer() {
	if s.Open {
		s.answered.await(Stretch(redial))
	}
}

// Source ports of streams are below the ports that the kernel chooses, and below node ports.
const firstSource, sources = 10_000, 20_000

// usedSources is how many source ports were given to streams. Each process begins with another port.
var usedSources = func() *atomic.Uint32 {
	var used atomic.Uint32
	used.Store(rand.Uint32N(sources))
	return &used
}()

// nextSource returns a source port that no probe has used for long. With the source port of its UDP connection to the
// same pod through a Service, a client gets no answers from the pod directly until conntrack has forgotten that
// connection (docs/decisions/002-services-second-pass.md). A stream uses one port, so that all its questions would be
// lost; an attempt of Check is repeated from another port.
func nextSource() uint32 { return firstSource + usedSources.Add(1)%sources }

// Rate returns how many packets a second a stream sends on this machine that should send perSecond; see Rate.
func (e Expectation) Rate(perSecond float64) float64 {
	if e.Open {
		return Rate(perSecond)
	}
	return perSecond
}

// streamFlags returns the flags of a stream's rate and time limits.
func (e Expectation) streamFlags(perSecond float64) []string {
	connect, answers := Window(shutRedial), Window(shutGrace)
	if e.Open {
		connect, answers = Stretch(redial), Stretch(grace)
	}
	return []string{"-rate", formatRate(e.Rate(perSecond)), "-grace", answers.String(), "-redial", connect.String()}
}

// Stop ends the stream and returns what it saw.
func (s *Stream) Stop() (Report, error) {
	var r Report
	s.answered.pipe.Close()
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return r, fmt.Errorf("%v: %w", s.Expectation, err)
	}
	if err := s.cmd.Wait(); err != nil {
		return r, fmt.Errorf("%v: %w: %s", s.Expectation, err, s.stderr.String())
	}
	return r, json.Unmarshal(s.stdout.Bytes(), &r)
}

// Judge returns an error that begins with Leak if a denied stream got an answer, and one that begins with Lost if an
// open stream was interrupted or misses answers. Of the missing answers of UDP and ICMP it subtracts those that the
// kernel has dropped, at most dropped, and returns how many; TCP and SCTP repeat what is dropped.
func (e Expectation) Judge(r Report, dropped uint64) (subtracted uint64, err error) {
	lost := r.Sent - min(r.Received, r.Sent)
	if e.Proto == "udp" || e.Proto == "icmp" {
		subtracted = min(lost, dropped)
	}
	switch {
	case !e.Open && r.Received > 0:
		return 0, errors.New(leaked("%v: %d of %d questions were answered", e, r.Received, r.Sent))
	case !e.Open:
		return 0, nil
	case r.Broken != "":
		return 0, fmt.Errorf("%s %v: cut: %s (%d of %d answered)%s", Lost, e, r.Broken, r.Received, r.Sent, r.state())
	case r.Received == 0:
		return 0, fmt.Errorf("%s %v: none of %d questions was answered%s", Lost, e, r.Sent, r.state())
	case lost > subtracted:
		return subtracted, fmt.Errorf("%s %v: %d of %d questions, of which the kernel dropped %d; the first was number %d; "+
			"last answer at %s, waited until %s%s",
			Lost, e, lost, r.Sent, subtracted, r.FirstLoss, clock(r.LastAnswer), clock(r.WaitedUntil), r.state())
	}
	return subtracted, nil
}

// Gap returns the longest time without an answer.
func (r Report) Gap() time.Duration {
	return time.Duration(r.LongestGapMillis * float64(time.Millisecond))
}

// clock returns the time of day in milliseconds, "never" for the zero time.
func clock(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return t.Format("15:04:05.000")
}

// state returns the state of a TCP connection that lost answers, as the end of a message.
func (r Report) state() string {
	if r.TCP == "" {
		return ""
	}
	return "; TCP: " + r.TCP
}
