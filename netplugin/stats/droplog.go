package stats

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

// DropRecord sums up what was denied to one client, by its address, at one server's port, while it kept trying.
type DropRecord struct {
	DropEvent
	First, Last time.Time
	// Packets are those that the switch reported, Connections the different ones among them: by the client's port, as
	// far as it is remembered.
	Packets, Connections uint64
	// DropNames is what the node knew of it when it began or, of one that goes on, a while ago (renaming).
	DropNames
	named time.Time
	// Seq counts up with every record that begins, or has another connection.
	Seq    uint64
	recent [knownPorts]uint16
}

// DropNames is what a node knows of an event.
type DropNames struct {
	Pod      string          // namespace/name: where it was denied
	Policies []policy.Origin // that isolate it, the first few
}

// mayBeOf reports whether the policy isolated the pod. If Policies is cut, any policy may have.
func (n *DropNames) mayBeOf(id string) bool {
	return len(n.Policies) >= policy.BriefOrigins || slices.ContainsFunc(n.Policies, func(o policy.Origin) bool { return o.Policy == id })
}

// dropLog is the records, of each pod those with the latest packets last. Not for concurrent use.
type dropLog struct {
	open    map[DropKey]*list.Element
	pods    map[netip.Addr]*list.List
	ports   map[uint32]*list.List // of those that forge
	size    int
	seq     uint64
	dropped uint64 // records that had to go for others
}

func newDropLog() *dropLog {
	return &dropLog{open: map[DropKey]*list.Element{}, pods: map[netip.Addr]*list.List{}, ports: map[uint32]*list.List{}}
}

// again counts the event in its record, if there is one that is not over.
func (l *dropLog) again(e *DropEvent, now time.Time) bool {
	at := l.open[e.DropKey]
	if at == nil {
		return false
	}
	r := at.Value.(*DropRecord)
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
	l.of(&e.DropKey).MoveToBack(at)
	return true
}

// outdated takes the event's record, which goes on, for one that gets new names now, if its are old.
func (l *dropLog) outdated(e *DropEvent, now time.Time) bool {
	r := l.open[e.DropKey].Value.(*DropRecord)
	if now.Sub(r.named) < renaming {
		return false
	}
	r.named = now
	return true
}

// rename gives the event's record new names, if it is still there and they are known: of a pod that is gone they are not.
func (l *dropLog) rename(e *DropEvent, n DropNames) {
	at := l.open[e.DropKey]
	if at == nil || len(n.Policies) == 0 {
		return
	}
	if r := at.Value.(*DropRecord); r.Class == e.Class {
		r.Policies = n.Policies
	}
}

// begin adds a record.
func (l *dropLog) begin(e *DropEvent, n DropNames, now time.Time) *DropRecord {
	of := l.of(&e.DropKey)
	if of.Len() >= mostOfAPod {
		l.forget(of)
	}
	if l.size >= mostRecords {
		l.forget(l.longest())
	}
	l.seq++
	r := &DropRecord{DropEvent: *e, First: now, Last: now, Packets: 1, Connections: 1, DropNames: n, named: now, Seq: l.seq}
	r.recent[0] = e.SrcPort
	l.open[e.DropKey] = l.of(&e.DropKey).PushBack(r) // recreates a list that was emptied
	l.size++
	return r
}

func (l *dropLog) of(k *DropKey) *list.List {
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

// longest returns the list with the most records.
func (l *dropLog) longest() (most *list.List) {
	for _, each := range l.lists() {
		if most == nil || each.Len() > most.Len() {
			most = each
		}
	}
	return most
}

func (l *dropLog) lists() (all []*list.List) {
	for _, each := range l.pods {
		all = append(all, each)
	}
	for _, each := range l.ports {
		all = append(all, each)
	}
	return all
}

// forget takes the oldest record of a list out.
func (l *dropLog) forget(of *list.List) {
	at := of.Front()
	r := of.Remove(at).(*DropRecord)
	if l.open[r.DropKey] == at {
		delete(l.open, r.DropKey)
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
func (l *dropLog) since(seq uint64, choose func(*DropRecord) bool, most int) (out []DropRecord, left int) {
	for _, each := range l.lists() {
		for at := each.Front(); at != nil; at = at.Next() {
			if r := at.Value.(*DropRecord); r.Seq > seq && choose(r) {
				out = append(out, *r)
			}
		}
	}
	slices.SortFunc(out, func(a, b DropRecord) int { return cmp.Compare(a.Seq, b.Seq) })
	if left = len(out) - min(most, mostAtOnce); left <= 0 {
		return out, 0
	}
	return out[left:], left
}
