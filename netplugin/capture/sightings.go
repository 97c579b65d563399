package capture

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/internal/frames"
	"github.com/flowkeep/flowkeep/internal/frames/filter"
	"github.com/flowkeep/flowkeep/netplugin/hostnet"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"golang.org/x/net/bpf"
)

// Limits of sightings.
const (
	mostLooking   = 4 // queries of a node at a time
	mostSightings = 5000
	batchOf       = 200
	// filtered is how many addresses of To, and ports, the kernel looks at; where there are more they are looked at here.
	filtered = 8
)

// extended are IPv6 packets with extension headers, fragments among them: what they are is behind where the kernel looks.
const extended = "(ip6 and not (tcp or udp or sctp))"

// kernelTunnel begins the names of the devices by which the kernel's datapath sends to tunnels, before there is anything around a packet.
const kernelTunnel = "genev_sys_"

// Look sends the packets that q selects, on all interfaces of this network namespace, until q's time is over, q's
// limit is reached, ctx ends or send fails. podAt returns the pod whose link ends at an interface, or "".
func (c *Captures) Look(ctx context.Context, q *inspect.SightingsQuery, node string, podAt func(ifName string) string, send func(*inspect.Sighted) error) error {
	programs, err := programsOf(q)
	if err != nil {
		return err
	}
	select {
	case c.looking <- struct{}{}:
		defer func() { <-c.looking }()
	default:
		return fmt.Errorf("%d others trace packets here already: ask again later", mostLooking)
	}
	socket, err := Open(0, frames.IdentitySnap, programs...)
	if err != nil {
		return err
	}
	defer socket.Close()
	defer context.AfterFunc(ctx, func() { socket.Close() })()
	duration := min(q.Duration, inspect.LongestTrace+time.Minute)
	l := &looking{socket: socket, limit: c.limit, q: q, over: time.Now().Add(duration), out: inspect.Sighted{Node: node}, podAt: podAt, places: map[int]inspect.Sighting{}, send: send}
	return l.run(ctx)
}

// programsOf returns the socket filters to try, the finest first. Packets that pass are examined in any case.
func programsOf(q *inspect.SightingsQuery) (list [][]bpf.RawInstruction, err error) {
	fine, err := filterOf(q)
	if err != nil {
		return nil, err
	}
	coarse, err := filter.Parse(anyOf("host", q.From) + " or udp port " + strconv.Itoa(hostnet.GenevePort))
	if err != nil {
		return nil, err
	}
	for _, f := range []*filter.Filter{fine.OrTunnelled(), coarse} {
		program, err := f.Compile(frames.IdentitySnap)
		if err != nil {
			return nil, err
		}
		list = append(list, program)
	}
	return list, nil
}

// filterOf returns the filter for what the kernel can leave out.
func filterOf(q *inspect.SightingsQuery) (*filter.Filter, error) {
	if len(q.From) == 0 || len(q.To) == 0 || len(q.From) > inspect.MostSources || q.Duration <= 0 {
		return nil, fmt.Errorf("packets from %d addresses to %d for %v cannot be looked for", len(q.From), len(q.To), q.Duration)
	}
	var more []string
	if len(q.To) <= filtered {
		more = append(more, anyOf("host", q.To))
	}
	name := ""
	if q.Protocol != 0 {
		name = strings.ToLower(q.Protocol.String())
	}
	switch {
	case isICMP(q.Protocol):
		more = append(more, "(icmp or icmp6)")
	case len(q.Ports) > 0 && len(q.Ports) <= filtered:
		more = append(more, anyOf(name+" port", q.Ports))
	case name != "":
		more = append(more, name)
	}
	expr := anyOf("host", q.From)
	if len(more) > 0 {
		expr += " and (" + strings.Join(more, " and ") + " or icmp or icmp6 or " + extended + ")"
	}
	return filter.Parse(expr)
}

func isICMP(p policy.Protocol) bool { return p == frames.ICMP || p == frames.ICMPv6 }

func anyOf[T any](word string, list []T) string {
	parts := make([]string, len(list))
	for i, v := range list {
		parts[i] = fmt.Sprintf("%s %v", word, v)
	}
	return "(" + strings.Join(parts, " or ") + ")"
}

// looking is a query that is answered.
type looking struct {
	socket *Socket
	limit  *Limit
	q      *inspect.SightingsQuery
	over   time.Time
	out    inspect.Sighted // what is sent next
	podAt  func(ifName string) string
	places map[int]inspect.Sighting // by the interface's index: what is the same of all its sightings
	send   func(*inspect.Sighted) error
}

func (l *looking) run(ctx context.Context) error {
	if err := l.flush(""); err != nil { // it has begun
		return err
	}
	flushAt := time.Now().Add(heartbeat)
	for {
		got, err := l.socket.Read(earlier(flushAt, l.over))
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, os.ErrDeadlineExceeded):
			if !time.Now().Before(l.over) {
				return l.flush("the time is over")
			}
		case errors.Is(err, ErrGone): // one of the interfaces
		case err != nil:
			return err
		case l.add(&got):
			if len(l.out.Sightings) == 1 {
				flushAt = earlier(flushAt, time.Now().Add(batchTime))
			}
			if l.out.Packets >= mostSightings {
				return l.flush("as many packets as a trace takes")
			}
			fallthrough
		default:
			l.out.Limited += l.limit.Take(ctx, len(got.Data))
		}
		if !time.Now().Before(flushAt) || len(l.out.Sightings) >= batchOf {
			if err := l.flush(""); err != nil {
				return err
			}
			flushAt = time.Now().Add(heartbeat)
		}
	}
}

func (l *looking) flush(end string) error {
	l.out.Dropped, l.out.End = l.socket.Dropped(), end
	err := l.send(&l.out)
	l.out.Sightings = nil
	return err
}

// add reports whether the frame has a wanted packet.
func (l *looking) add(got *Received) bool {
	p := frames.Decode(got.Data)
	inside, tunnelled := p.Geneve()
	if tunnelled {
		p = inside
	}
	p.Cut = p.Cut && got.Length <= len(got.Data) // not by the snap length
	seen, ok := seenOf(&p, l.q)
	if !ok {
		return false
	}
	s := l.place(got.Interface)
	if tunnelled {
		s.Place = inspect.PlaceTunnel
	}
	s.Time, s.Sent, s.SeenPacket = got.Time, got.Sent, seen
	l.out.Sightings = append(l.out.Sightings, s)
	l.out.Packets++
	return true
}

func (l *looking) place(index int) inspect.Sighting {
	s, known := l.places[index]
	if known {
		return s
	}
	link, err := net.InterfaceByIndex(index)
	if err != nil {
		return inspect.Sighting{Interface: fmt.Sprint(index), Place: inspect.PlaceOther}
	}
	s = inspect.Sighting{Interface: link.Name, Place: inspect.PlaceOther}
	switch {
	case link.Name == hostnet.Gateway:
		s.Place = inspect.PlaceGateway
	case link.Name == hostnet.Wire || link.Name == hostnet.Out:
		s.Place = inspect.PlaceWire
	case strings.HasPrefix(link.Name, kernelTunnel):
		s.Place = inspect.PlaceTunnel
	case strings.HasPrefix(link.Name, hostnet.PodPrefix):
		s.Place, s.Pod = inspect.PlacePod, l.podAt(link.Name)
	}
	l.places[index] = s
	return s
}

// seenOf returns the record of a wanted packet.
func seenOf(p *frames.Packet, q *inspect.SightingsQuery) (s inspect.SeenPacket, ok bool) {
	if !p.IsIP() || !p.Src.IsValid() || p.Offset > 0 { // later fragments follow the first
		return s, false
	}
	if about, isError := p.Quoted(); isError {
		s.About = &inspect.SeenPacket{}
		*s.About = endsOf(&about)
		ok = wanted(s.About, q)
	}
	about := s.About
	s = endsOf(p)
	s.About = about
	if ok = ok || wanted(&s, q); !ok {
		return s, false
	}
	id, strong := p.Identity()
	s.Identity, s.Strong, s.Text, s.Length = hex.EncodeToString(id[:]), strong, p.String(), p.PayloadLength()
	s.Flags, s.Seq, s.Ack = p.Flags, p.Seq, p.Ack
	if p.IsEcho() {
		s.Seq = uint32(p.EchoSeq)
	}
	return s, true
}

func endsOf(p *frames.Packet) inspect.SeenPacket {
	s := inspect.SeenPacket{Protocol: policy.Protocol(p.Protocol), Src: p.Src, Dst: p.Dst, SrcPort: p.SrcPort, DstPort: p.DstPort}
	if request := p.Type == 8 || p.Type == 128; p.IsEcho() && request {
		s.SrcPort = p.EchoID
	} else if p.IsEcho() {
		s.DstPort = p.EchoID
	}
	return s
}

// wanted compares both directions.
func wanted(s *inspect.SeenPacket, q *inspect.SightingsQuery) bool {
	bothICMP := isICMP(q.Protocol) && isICMP(s.Protocol)
	if q.Protocol != 0 && q.Protocol != s.Protocol && !bothICMP {
		return false
	}
	port := func(p uint16) bool { return len(q.Ports) == 0 || slices.Contains(q.Ports, p) }
	way := func(from, to netip.Addr, port bool) bool {
		return port && slices.Contains(q.From, from) && slices.Contains(q.To, to)
	}
	return way(s.Src, s.Dst, port(s.DstPort)) || way(s.Dst, s.Src, port(s.SrcPort))
}
