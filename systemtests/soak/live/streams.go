package live

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
	"github.com/flowkeep/flowkeep/systemtests/soak"
)

// A live connection asks every pace. What it may still do after the change that forbids it is in force is cutLimit; an answer
// that has not come after lostAfter counts as lost.
var (
	pace      = cluster.Stretch(50 * time.Millisecond)
	cutLimit  = cluster.Stretch(time.Second)
	lostAfter = cluster.Stretch(4 * time.Second)
)

// stream is a connection that lives on over the rounds. Its attempt is the way it took.
type stream struct {
	attempt
	conn net.Conn
	done sync.WaitGroup
	stop chan struct{}

	mu       sync.Mutex
	sent     uint64
	waiting  map[uint64]time.Time // asked at, by number
	last     time.Time            // answer
	longest  time.Duration        // between answers
	answered uint64
	broken   error
}

func openStream(a attempt) (*stream, error) {
	conn, err := a.at.Dial(strings.ToLower(a.packet.Protocol), a.to, longPatience)
	if err != nil {
		return nil, err
	}
	s := &stream{attempt: a, conn: conn, stop: make(chan struct{}), waiting: map[uint64]time.Time{}, last: time.Now()}
	s.done.Go(s.ask)
	s.done.Go(s.listen)
	return s, nil
}

func (s *stream) close() {
	close(s.stop)
	_ = s.conn.Close() // it may be dead already
	s.done.Wait()
}

func (s *stream) ask() {
	ticker := time.NewTicker(pace)
	defer ticker.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-ticker.C:
		}
		s.mu.Lock()
		s.sent++
		n := s.sent
		s.waiting[n] = time.Now()
		s.mu.Unlock()
		if _, err := s.conn.Write(binary.BigEndian.AppendUint64(nil, n)); err != nil {
			s.fail(err)
		}
	}
}

func (s *stream) listen() {
	buf := make([]byte, 8)
	for {
		if _, err := io.ReadFull(s.conn, buf); err != nil {
			s.fail(err)
			if errors.Is(err, net.ErrClosed) || s.packet.Protocol == "TCP" {
				return
			}
			continue
		}
		s.mu.Lock()
		now := time.Now()
		s.longest = max(s.longest, now.Sub(s.last))
		s.last = now
		s.answered++
		delete(s.waiting, binary.BigEndian.Uint64(buf))
		s.mu.Unlock()
	}
}

func (s *stream) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken == nil {
		s.broken = err
	}
}

// wrong says what an allowed connection has lost, or nothing.
func (s *stream) wrong(now time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken != nil {
		return fmt.Errorf("it broke after %d answers: %w", s.answered, s.broken)
	}
	for n, at := range s.waiting {
		if now.Sub(at) > lostAfter {
			return fmt.Errorf("question %d, asked %v ago, has no answer; %d of %d have", n, now.Sub(at).Round(time.Millisecond), s.answered, s.sent)
		}
	}
	return nil
}

func (s *stream) lastAnswer() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

// spare ends the connections of pods that the change takes away; how those end is not a policy's business.
func (p *player) spare(c soak.Change) {
	gone := func(id string) bool {
		switch {
		case c.Namespace != nil:
			return c.Anew && strings.HasPrefix(id, c.Namespace.Name+"/")
		case c.Pod != nil:
			return c.Anew && id == c.Pod.ID()
		}
		return id == c.DeletePod
	}
	p.keep(func(s *stream) bool { return !gone(s.from) && !gone(s.target) })
}

func (p *player) keep(stays func(*stream) bool) {
	var rest []*stream
	for _, s := range p.streams {
		if stays(s) {
			rest = append(rest, s)
		} else {
			p.LongestGap = max(p.LongestGap, s.longestGap())
			s.close()
		}
	}
	p.streams = rest
}

func (s *stream) longestGap() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.longest
}

// watchStreams judges the connections by what is allowed now. Those that are not must be silent cutLimit after it was in force.
func (p *player) watchStreams(inForce time.Time) error {
	view := p.view()
	var errs []error
	var forbidden []*stream
	for _, s := range p.streams {
		s.verdict = view.Judge(s.packet)
		if !s.verdict.Allowed {
			forbidden = append(forbidden, s)
			continue
		}
		if err := s.wrong(time.Now()); err != nil {
			p.Differences++
			errs = append(errs, &wrongStream{s, cluster.Lost, err})
		}
		p.LongestGap = max(p.LongestGap, s.longestGap())
	}
	if len(forbidden) > 0 {
		time.Sleep(time.Until(inForce.Add(cutLimit + 4*pace)))
	}
	for _, s := range forbidden {
		p.Cut++
		after := max(0, s.lastAnswer().Sub(inForce))
		p.LongestCut = max(p.LongestCut, after)
		if after > min(cutLimit, cluster.LeakAfter) {
			p.Differences++
			errs = append(errs, s.outlived(inForce))
		}
		s.close()
	}
	var rest []*stream
	for _, s := range p.streams {
		if s.verdict.Allowed {
			rest = append(rest, s)
		}
	}
	p.streams = rest
	return errors.Join(errs...)
}

// outlived observes a connection that lived too long for some time more than cluster.LeakAfter.
func (s *stream) outlived(inForce time.Time) *wrongStream {
	time.Sleep(time.Until(inForce.Add(cluster.LeakAfter + 2*cutLimit)))
	after := s.lastAnswer().Sub(inForce)
	err := fmt.Errorf("its last answer came %v after the change was in force", after.Round(time.Millisecond))
	return &wrongStream{s, kindAfter(after), err}
}

// kindAfter returns the kind of failure of a revoked connection that got its last answer so long after its change.
func kindAfter(after time.Duration) string {
	if after >= cluster.LeakAfter {
		return cluster.Leak
	}
	return cluster.Late
}

// openStreams draws allowed ways until there are enough, or none were found.
func (p *player) openStreams(rng *rand.Rand) error {
	for _, a := range p.sample(rng, 8*p.Streams) {
		if len(p.streams) >= p.Streams {
			return nil
		}
		if !a.verdict.Allowed || !p.answers(a) {
			continue
		}
		s, err := openStream(*a)
		if err != nil {
			fmt.Fprintf(p.Log, "round %d: no live connection %v: %v\n", p.round, a, err)
			continue // the next probes will tell
		}
		p.BeganStreams++
		p.streams = append(p.streams, s)
	}
	return nil
}

// answers tells whether somebody listens there: on the ports between them are refusals only.
func (p *player) answers(a *attempt) bool {
	port := int(a.to.Port())
	switch {
	case a.service:
		return true
	case p.pods[a.target] != nil:
		return slices.Contains(soak.Ports, port)
	}
	return slices.Contains(machinePorts, port)
}
