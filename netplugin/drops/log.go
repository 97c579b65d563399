package drops

import (
	"cmp"
	"container/list"
	"net/netip"
	"slices"
	"time"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// Bounds of a log: of its records, of those that speak of one pod, and of those given at once.
const (
	mostRecords = 2048
	mostOfAPod  = 128
	mostAtOnce  = 1024
)

// quiet ends a record: what comes after begins a new one. Linux sends a connection's first packet again at most 64 s apart.
const quiet = 70 * time.Second

// renaming is how old the names of a record may be that goes on: other policies may isolate the same pods meanwhile.
const renaming = 10 * time.Second

// knownPorts is how many of its clients' ports a record remembers: a packet from one of them is the same connection tried again.
const knownPorts = 16

// Record sums up what was denied to one client, by its address, at one server's port, while it kept trying.
type Record struct {
	Event
	First, Last time.Time
	// Packets are those that the switch told of, Connections the different ones among them: by the client's port, as far as it is
	// remembered.
	Packets, Connections uint64
	// Names is what the node knew of it when it began or, of one that goes on, a while ago (renaming).
	Names
	named time.Time
	// Seq counts up with every record that begins, or has another connection.
	Seq    uint64
	recent [knownPorts]uint16
}

// Names is what a node knows of an event.
type Names struct {
	Pod      string          // namespace/name: where it was denied
	Policies []policy.Origin // that isolate it, the first few
}

// mayBeOf tells whether the policy isolated it; of what more policies isolated than a node knows it may be any.
func (n *Names) mayBeOf(id string) bool {
	return len(n.Policies) >= policy.BriefOrigins || slices.ContainsFunc(n.Policies, func(o policy.Origin) bool { return o.Policy == id })
}

// log is the records, of each pod those with the latest packets last. Not for concurrent use.
type log struct {
	open    map[Key]*list.Element
	pods    map[netip.Addr]*list.List
	ports   map[uint32]*list.List // of those that forge
	size    int
	seq     uint64
	dropped uint64 // records that had to go for others
}

func newLog() *log {
	return &log{open: map[Key]*list.Element{}, pods: map[netip.Addr]*list.List{}, ports: map[uint32]*list.List{}}
}

// again counts the event in its record, if there is one that is not over.
func (l *log) again(e *Event, now time.Time) bool {
	at := l.open[e.Key]
	if at == nil {
		return false
	}
	r := at.Value.(*Record)
	if now.Sub(r.Last) > quiet || r.Class != e.Class { // else its policies are others by now
		return false
	}
	r.Last = now
	r.Packets++
	if !slices.Contains(r.recent[:min(r.Connections, knownPorts)], e.SrcPort) {
		r.recent[r.Connections%knownPorts] = e.SrcPort
		r.Connections++
		l.seq++
		r.Seq = l.seq
	}
	l.of(&e.Key).MoveToBack(at)
	return true
}

// outdated takes the event's record, which goes on, for one that gets new names now, if its are old.
func (l *log) outdated(e *Event, now time.Time) bool {
	r := l.open[e.Key].Value.(*Record)
	if now.Sub(r.named) < renaming {
		return false
	}
	r.named = now
	return true
}

// rename gives the event's record new names, if it is still there and they are known: of a pod that is gone they are not.
func (l *log) rename(e *Event, n Names) {
	at := l.open[e.Key]
	if at == nil || len(n.Policies) == 0 {
		return
	}
	if r := at.Value.(*Record); r.Class == e.Class {
		r.Policies = n.Policies
	}
}

// begin makes a record.
func (l *log) begin(e *Event, n Names, now time.Time) *Record {
	of := l.of(&e.Key)
	if of.Len() >= mostOfAPod {
		l.forget(of)
	}
	if l.size >= mostRecords {
		l.forget(l.longest())
	}
	l.seq++
	r := &Record{Event: *e, First: now, Last: now, Packets: 1, Connections: 1, Names: n, named: now, Seq: l.seq}
	r.recent[0] = e.SrcPort
	l.open[e.Key] = l.of(&e.Key).PushBack(r) // a list that was emptied is made anew
	l.size++
	return r
}

func (l *log) of(k *Key) *list.List {
	if k.Reason == Forged {
		return listOf(l.ports, k.InPort)
	}
	return listOf(l.pods, k.Local())
}

func listOf[K comparable](lists map[K]*list.List, k K) *list.List {
	if lists[k] == nil {
		lists[k] = list.New()
	}
	return lists[k]
}

// longest is the list of who has the most records.
func (l *log) longest() (most *list.List) {
	for _, each := range l.lists() {
		if most == nil || each.Len() > most.Len() {
			most = each
		}
	}
	return most
}

func (l *log) lists() (all []*list.List) {
	for _, each := range l.pods {
		all = append(all, each)
	}
	for _, each := range l.ports {
		all = append(all, each)
	}
	return all
}

// forget takes the oldest record of a list out.
func (l *log) forget(of *list.List) {
	at := of.Front()
	r := of.Remove(at).(*Record)
	if l.open[r.Key] == at {
		delete(l.open, r.Key)
	}
	if of.Len() == 0 {
		if r.Reason == Forged {
			delete(l.ports, r.InPort)
		} else {
			delete(l.pods, r.Local())
		}
	}
	l.size--
	l.dropped++
}

// since are the records that began, or had another connection, after seq, and that choose chooses: no more than most, the latest, in
// the order of Seq; left is how many more there are.
func (l *log) since(seq uint64, choose func(*Record) bool, most int) (out []Record, left int) {
	for _, each := range l.lists() {
		for at := each.Front(); at != nil; at = at.Next() {
			if r := at.Value.(*Record); r.Seq > seq && choose(r) {
				out = append(out, *r)
			}
		}
	}
	slices.SortFunc(out, func(a, b Record) int { return cmp.Compare(a.Seq, b.Seq) })
	if left = len(out) - min(most, mostAtOnce); left <= 0 {
		return out, 0
	}
	return out[left:], left
}
