package lldp

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
)

// Port is an interface that can receive frames of neighbours.
type Port struct {
	Index   int
	Name    string
	Default bool // whether to listen without a choice of the document
}

// Ear is what a Listener has to say of a port.
type Ear struct {
	Listens    bool
	Neighbours []Neighbour
}

// Listener follows ports and keeps their neighbours. Safe for concurrent use.
type Listener struct {
	record string
	frames *prometheus.CounterVec

	mu      sync.Mutex
	table   Table
	ports   map[int]Port
	joined  map[int]bool
	said    map[int]bool       // by Set, as long as the port is there
	known   map[string][]Heard // on record, by the names of ports that are not listened to yet
	start   time.Time
	socket  *socket
	deaf    error
	changed func()
	log     *slog.Logger
	done    chan struct{}
}

// New returns a Listener with the neighbours of the file record, which it keeps up to date; "" is no file. Those
// neighbours expire as if their frames had arrived now. It receives nothing before Open.
func New(record string) *Listener {
	return &Listener{
		record: record, known: readRecord(record), start: time.Now(), ports: map[int]Port{}, joined: map[int]bool{}, said: map[int]bool{},
		frames: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "flowkeep_nodestate_lldp_frames_total",
			Help: "LLDP frames by outcome: heard (taken), malformed, full (more neighbours than are kept), restless (changes too often).",
		}, []string{"outcome"}),
	}
}

// Describe implements prometheus.Collector.
func (l *Listener) Describe(c chan<- *prometheus.Desc) { l.frames.Describe(c) }

// Collect implements prometheus.Collector.
func (l *Listener) Collect(c chan<- prometheus.Metric) { l.frames.Collect(c) }

// Open starts to listen in the network namespace of the calling thread, until Close. changed is called after
// neighbours appeared, left or changed; it must not block. Deaf returns the same error.
func (l *Listener) Open(changed func(), log *slog.Logger) error {
	s, err := openSocket()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.deaf = err; err != nil {
		return err
	}
	l.socket, l.changed, l.log, l.done = s, changed, log, make(chan struct{})
	l.join()
	go l.listen(s, l.done)
	return nil
}

// Deaf returns the reason for which frames cannot be received, or nil.
func (l *Listener) Deaf() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.deaf
}

// Close ends listening.
func (l *Listener) Close() {
	l.mu.Lock()
	s, done := l.socket, l.done
	l.socket = nil
	l.mu.Unlock()
	if s != nil {
		s.close()
		<-done
	}
}

// Follow sets the ports, and returns for each, by index, whether it is listened to, and its neighbours.
func (l *Listener) Follow(ports []Port) map[int]Ear {
	l.mu.Lock()
	defer l.mu.Unlock()
	there, now := map[int]Port{}, time.Now()
	for _, p := range ports {
		there[p.Index] = p
	}
	forgot := l.table.Expire(now)
	for index := range l.ports {
		if _, ok := there[index]; !ok {
			forgot = l.table.Forget(index) || forgot
			l.leave(index)
		}
	}
	maps.DeleteFunc(l.said, func(index int, _ bool) bool { _, ok := there[index]; return !ok })
	l.ports = there
	for _, p := range ports {
		if !l.listensTo(p) {
			forgot = l.table.Forget(p.Index) || forgot
		}
		l.remember(p, now)
	}
	l.join()
	if forgot {
		l.save()
	}
	return l.ears()
}

// remember has the neighbours on record known again, once the port is listened to: but for those who were silent since the start.
func (l *Listener) remember(p Port, now time.Time) {
	if !l.listensTo(p) {
		return
	}
	for _, h := range l.known[p.Name] {
		if now.Sub(l.start) < h.TTL {
			_, _ = l.table.Hear(p.Index, h, now) // a record has no more than there may be
		}
	}
	delete(l.known, p.Name)
}

// leave takes the groups from an interface that is no port. Where it is gone, the kernel has done so.
func (l *Listener) leave(index int) {
	if l.joined[index] && l.socket != nil {
		_ = l.socket.member(index, false)
	}
	delete(l.joined, index)
}

func (l *Listener) listensTo(p Port) bool {
	if on, ok := l.said[p.Index]; ok {
		return on && l.deaf == nil
	}
	return p.Default && l.deaf == nil
}

// join has the groups joined where there is listening, and nowhere else.
func (l *Listener) join() {
	if l.socket == nil {
		return
	}
	for index, p := range l.ports {
		if want := l.listensTo(p); want != l.joined[index] {
			if err := l.socket.member(index, want); err != nil && !errors.Is(err, unix.ENODEV) && !errors.Is(err, unix.ENXIO) {
				l.log.Warn("the groups of LLDP can't be joined or left", "interface", p.Name, "err", err)
				continue
			}
			l.joined[index] = want
		}
	}
	l.socket.wakeAt(l.wake())
}

// wake returns the time of the next expiry, at most an hour ahead.
func (l *Listener) wake() time.Time {
	if next := l.table.Next(); !next.IsZero() {
		return next
	}
	return time.Now().Add(time.Hour)
}

func (l *Listener) ears() map[int]Ear {
	out := make(map[int]Ear, len(l.ports))
	for index, p := range l.ports {
		e := Ear{Listens: l.listensTo(p)}
		for _, h := range l.table.Known(index) {
			e.Neighbours = append(e.Neighbours, h.Neighbour)
		}
		out[index] = e
	}
	return out
}

// Set has a port listened to, or not, whatever its default. The port may be new: the next Follow reports it.
func (l *Listener) Set(index int, on bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if on && l.deaf != nil {
		return l.deaf
	}
	l.said[index] = on
	if p, ok := l.ports[index]; ok {
		l.remember(p, time.Now())
	}
	if !on && l.table.Forget(index) {
		l.save()
	}
	l.join()
	return nil
}

// listen ends when the socket is closed, or cannot be read.
func (l *Listener) listen(s *socket, done chan struct{}) {
	defer close(done)
	for {
		index, frame, err := s.read()
		switch {
		case err == nil:
			l.hear(index, frame)
		case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, unix.ENOBUFS):
			l.expire()
		case errors.Is(err, os.ErrClosed):
			return
		default:
			l.fail(err)
			return
		}
	}
}

func (l *Listener) hear(index int, frame []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p, ok := l.ports[index]
	if !ok || !l.listensTo(p) || l.socket == nil {
		return
	}
	heard, err := Parse(frame)
	if err != nil {
		l.frames.WithLabelValues("malformed").Inc()
		l.log.Debug("a frame of LLDP is dropped", "interface", p.Name, "why", err)
		return
	}
	changed, err := l.table.Hear(index, heard, time.Now())
	l.frames.WithLabelValues(outcome(err)).Inc()
	l.news(changed)
}

func outcome(err error) string {
	switch {
	case errors.Is(err, ErrFull):
		return "full"
	case errors.Is(err, ErrRestless):
		return "restless"
	}
	return "heard"
}

func (l *Listener) expire() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.news(l.table.Expire(time.Now()))
}

// news stores and reports changes, and determines the next expiry.
func (l *Listener) news(changed bool) {
	if l.socket == nil {
		return
	}
	l.socket.wakeAt(l.wake())
	if changed {
		l.save()
		l.changed()
	}
}

func (l *Listener) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.deaf = fmt.Errorf("LLDP is listened to no longer: %w", err)
	l.log.Error("LLDP reception ended", "err", err)
	l.changed()
}

func (l *Listener) save() {
	names := map[string][]Heard{}
	for index, p := range l.ports {
		if known := l.table.Known(index); len(known) > 0 {
			names[p.Name] = known
		}
	}
	if err := writeRecord(l.record, names); err != nil && l.log != nil {
		l.log.Warn("could not write the record of neighbours; after a restart they are unknown until they announce themselves", "err", err)
	}
}
