package wire

import (
	"iter"
	"time"

	"github.com/flowkeep/flowkeep/api/feed"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// partSize is about how large a part of an update gets, in bytes, and pieceSize a piece of one rule or group. Nothing
// that is sent undivided (the excepts of one block) exceeds what the API server takes as an object, so that every
// message stays below feed.MaxMasterMessage.
const (
	partSize  = 256 << 10
	pieceSize = 64 << 10
)

// Parts returns the messages of an update, made one at a time. There is at least one, and the last one has Last.
func Parts(u *policy.NodeUpdate) iter.Seq[*feed.MasterMessage] { return (*Shared)(nil).Parts(u) }

// Parts returns the messages of an update, as the function Parts does. Do not modify them: they may share content with
// messages for other nodes.
func (s *Shared) Parts(u *policy.NodeUpdate) iter.Seq[*feed.MasterMessage] {
	return func(yield func(*feed.MasterMessage) bool) {
		s.renew(time.Now())
		p := &parts{yield: yield, revision: u.Revision, shared: s}
		p.start()
		if p.putRules(u.Rules) && p.putGroups(u.Groups) && p.putSettled(u.Settled) {
			p.part.Last = true
			p.flush()
		}
	}
}

// parts fills one part after another. Its put functions return false when no more are wanted.
type parts struct {
	yield    func(*feed.MasterMessage) bool
	revision uint64
	shared   *Shared
	part     *feed.Update
	size     int // of part, estimated from above
}

func (p *parts) start() { p.part, p.size = &feed.Update{Revision: p.revision}, 0 }

func (p *parts) flush() bool {
	part := p.part
	p.start()
	return p.yield(&feed.MasterMessage{Message: &feed.MasterMessage_Update{Update: part}})
}

// room makes room for n bytes.
func (p *parts) room(n int) bool {
	if p.size > 0 && p.size+n > partSize && !p.flush() {
		return false
	}
	p.size += n
	return true
}

func (p *parts) putRules(changes []policy.RuleChange) bool {
	for i := range changes {
		if r := changes[i].Rule; r != nil && !p.putRule(r) {
			return false
		}
	}
	for i := range changes {
		if c := &changes[i]; c.Rule == nil {
			if !p.room(keyLen) {
				return false
			}
			p.part.RemovedRules = append(p.part.RemovedRules, c.Key[:]...)
		}
	}
	return true
}

func (p *parts) putRule(r *policy.Rule) bool {
	for _, piece := range p.shared.rule(r) {
		if !p.room(piece.size) {
			return false
		}
		p.part.Rules = append(p.part.Rules, piece.rule)
	}
	return true
}

type rulePiece struct {
	rule *feed.Rule
	size int
}

// Sizes of messages, with what stands around them, from above.
const (
	ruleHeadSize = 64
	prefixSize   = 24
	portsSize    = 16
	originSize   = 16
)

// rulePieces returns the pieces of a rule, most often one.
func rulePieces(r *policy.Rule) iter.Seq[rulePiece] {
	return func(yield func(rulePiece) bool) {
		b := rulePiecer{of: r, yield: yield}
		b.start()
		if b.peers() && b.blocks() && b.ports() && b.origins() {
			yield(b.piece)
		}
	}
}

type rulePiecer struct {
	of    *policy.Rule
	piece rulePiece
	yield func(rulePiece) bool
}

func (b *rulePiecer) start() {
	r := b.of
	b.piece = rulePiece{size: ruleHeadSize, rule: &feed.Rule{
		Key:       r.Key[:],
		Direction: feed.Direction(r.Direction),
		AppliedTo: r.AppliedTo[:],
		AnyPeer:   r.AnyPeer,
		AnyPort:   r.AnyPort,
		Audit:     r.DryRun,
	}}
}

func (b *rulePiecer) room(n int) bool {
	if b.piece.size > ruleHeadSize && b.piece.size+n > pieceSize {
		b.piece.rule.More = true
		if !b.yield(b.piece) {
			return false
		}
		b.start()
	}
	b.piece.size += n
	return true
}

func (b *rulePiecer) peers() bool {
	const most = pieceSize / keyLen / 2
	for rest := b.of.Peers; len(rest) > 0; {
		n := min(len(rest), most)
		if !b.room(n * keyLen) {
			return false
		}
		b.piece.rule.Peers = append(b.piece.rule.Peers, packKeys(rest[:n])...)
		rest = rest[n:]
	}
	return true
}

func (b *rulePiecer) blocks() bool {
	for i := range b.of.Blocks {
		block := &b.of.Blocks[i]
		if !b.room(2*prefixSize + prefixSize*len(block.Except)) {
			return false
		}
		b.piece.rule.Blocks = append(b.piece.rule.Blocks, fromBlock(block))
	}
	return true
}

func fromBlock(b *policy.IPBlock) *feed.IPBlock {
	out := &feed.IPBlock{Cidr: packPrefix(b.CIDR)}
	for _, e := range b.Except {
		out.Except = append(out.Except, packPrefix(e))
	}
	return out
}

func (b *rulePiecer) ports() bool {
	for _, p := range b.of.Ports {
		if !b.room(portsSize) {
			return false
		}
		b.piece.rule.Ports = append(b.piece.rule.Ports,
			&feed.PortRange{Protocol: feed.Protocol(p.Protocol), First: uint32(p.First), Last: uint32(p.Last)})
	}
	return true
}

func (b *rulePiecer) origins() bool {
	for _, o := range b.of.Origins {
		if !b.room(originSize + len(o.Policy)) {
			return false
		}
		b.piece.rule.Origins = append(b.piece.rule.Origins, fromOrigin(o))
	}
	return true
}

func fromOrigin(o policy.Origin) *feed.Origin {
	return &feed.Origin{Policy: o.Policy, Rule: int32(o.Rule)}
}

func (p *parts) putGroups(groups []policy.GroupUpdate) bool {
	for i := range groups {
		if !p.putGroup(&groups[i]) {
			return false
		}
	}
	return true
}

// putGroup cuts a large group into a first piece that may replace, and patches that follow.
func (p *parts) putGroup(g *policy.GroupUpdate) bool {
	const head, address, most = 48, 16, pieceSize / 16
	added, removed, alike, replace := p.shared.list(g.Added), p.shared.list(g.Removed), g.Alike, g.Replace
	for first := true; first || added.len()+removed.len()+len(alike) > 0; first = false {
		n := min(removed.len(), most)
		m := min(added.len(), most-n)
		k := min(len(alike), most-n-m) // a key has 16 bytes, as an address has at most
		if !p.room(head + address*(n+m+k)) {
			return false
		}
		p.part.Groups = append(p.part.Groups, &feed.Group{
			Key:     g.Key[:],
			Kind:    feed.GroupKind(g.Kind),
			Gone:    g.Gone,
			Replace: replace,
			Added:   added.take(m),
			Removed: removed.take(n),
			Alike:   packKeys(alike[:k]),
		})
		alike, replace = alike[k:], false
	}
	return true
}

func (p *parts) putSettled(settled []policy.SettledEndpoint) bool {
	for _, s := range settled {
		if !p.room(len(s.ID) + len(s.UID) + 16) {
			return false
		}
		p.part.Settled = append(p.part.Settled, &feed.Settled{Id: s.ID, Uid: s.UID})
	}
	return true
}
