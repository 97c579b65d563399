package wire

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/api/feed"
	"github.com/flowkeep/flowkeep/internal/keyed"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// helloPart is about how large a part of a hello gets, in bytes.
const helloPart = 512 << 10

const heldLen = 2 * keyLen

// HelloParts returns the messages of a hello, at least one.
func HelloParts(h *Hello) iter.Seq[*feed.NodeMessage] {
	return func(yield func(*feed.NodeMessage) bool) {
		part := &feed.Hello{
			Node:           h.Node,
			ProgramVersion: h.Program,
			MinVersion:     h.Versions.Min,
			MaxVersion:     h.Versions.Max,
			Revision:       h.Revision,
			TrafficMode:    h.TrafficMode,
			Epoch:          h.Epoch,
			Links:          packLinks(h.Links),
		}
		if len(h.Nodes) > 0 && h.Versions.Max >= feed.KeyedSets {
			part.Keyed = append(part.Keyed, &feed.KeyedHeld{Set: feed.KeyedSet_KEYED_SET_NODES, Sums: h.Nodes})
		}
		if len(h.Services) > 0 && h.Versions.Max >= feed.Services {
			held := &feed.KeyedHeld{Set: feed.KeyedSet_KEYED_SET_SERVICES, Sums: h.Services}
			part.Keyed = append(part.Keyed, held)
		}
		size := 0
		room := func(n int) bool {
			if size += n; size <= helloPart {
				return true
			}
			part.More = true
			full := part
			part, size = &feed.Hello{Node: h.Node}, n
			return yield(&feed.NodeMessage{Message: &feed.NodeMessage_Hello{Hello: full}})
		}
		for i := range h.Held {
			if !room(heldLen) {
				return
			}
			putHeld(part, &h.Held[i])
		}
		for i := range h.Announced {
			a := &h.Announced[i]
			if !room(len(a.Namespace) + len(a.Name) + len(a.UID) + 17*len(a.Addresses) + 32) {
				return
			}
			part.Announced = append(part.Announced, FromAnnouncement(a))
		}
		yield(&feed.NodeMessage{Message: &feed.NodeMessage_Hello{Hello: part}})
	}
}

func putHeld(part *feed.Hello, h *Held) {
	to := &part.HeldRules
	switch h.Group {
	case policy.PeerGroup:
		to = &part.HeldPeerGroups
	case policy.AppliedToGroup:
		to = &part.HeldAppliedToGroups
	}
	*to = append(append(*to, h.Key[:]...), h.Hash[:]...)
}

// HelloAssembler assembles a hello from its parts. It is of no use after an error.
type HelloAssembler struct {
	hello     Hello
	begun     bool
	held      map[policy.GroupID]struct{}
	announced map[string]struct{}
}

// addKeyed takes over what is held of the sets that this version knows.
func (a *HelloAssembler) addKeyed(all []*feed.KeyedHeld) error {
	const maxSets = 16
	if len(all) > maxSets {
		return fmt.Errorf("%d keyed sets", len(all))
	}
	for _, held := range all {
		if n := len(held.GetSums()); n != 0 && n != keyed.SumsLen {
			return fmt.Errorf("%d bytes are no sums of a keyed set", n)
		}
		switch held.GetSet() {
		case feed.KeyedSet_KEYED_SET_NODES:
			a.hello.Nodes = held.GetSums()
		case feed.KeyedSet_KEYED_SET_SERVICES:
			a.hello.Services = held.GetSums()
		}
	}
	return nil
}

// Add takes a part; with the last the hello is complete and whole is true.
func (a *HelloAssembler) Add(part *feed.Hello) (hello Hello, whole bool, err error) {
	if err := a.add(part); err != nil {
		return Hello{}, false, fmt.Errorf("hello: %w", err)
	}
	return a.hello, !part.More, nil
}

func (a *HelloAssembler) add(part *feed.Hello) error {
	if !a.begun {
		if !isName(part.Node) || len(part.ProgramVersion) > maxVersion || len(part.TrafficMode) > maxVersion {
			return fmt.Errorf(
				"node %q of version %q in traffic mode %q: not the name of a node, no version, or no mode",
				short(part.Node), short(part.ProgramVersion), short(part.TrafficMode))
		}
		a.begun, a.held, a.announced = true, map[policy.GroupID]struct{}{}, map[string]struct{}{}
		a.hello = Hello{Node: part.Node, Program: part.ProgramVersion,
			Versions: Versions{part.MinVersion, part.MaxVersion}, Revision: part.Revision,
			TrafficMode: part.TrafficMode, Epoch: part.Epoch}
		if err := a.addKeyed(part.Keyed); err != nil {
			return err
		}
		var err error
		if a.hello.Links, err = ToLinks(part.Links); err != nil {
			return err
		}
	}
	if part.Node != a.hello.Node {
		return fmt.Errorf("it began as %q and goes on as %q", a.hello.Node, short(part.Node))
	}
	for kind, b := range [][]byte{0: part.HeldRules, policy.PeerGroup: part.HeldPeerGroups,
		policy.AppliedToGroup: part.HeldAppliedToGroups} {
		if err := a.addHeld(policy.GroupKind(kind), b); err != nil {
			return err
		}
	}
	for _, in := range part.Announced {
		announced, err := ToAnnouncement(in)
		if err != nil {
			return err
		}
		if _, twice := a.announced[announced.ID()]; twice || len(a.announced) == MaxAnnounced {
			return fmt.Errorf("pod %s is announced twice, or is one of more than %d", announced.ID(), MaxAnnounced)
		}
		a.announced[announced.ID()] = struct{}{}
		a.hello.Announced = append(a.hello.Announced, announced)
	}
	return nil
}

func (a *HelloAssembler) addHeld(kind policy.GroupKind, b []byte) error {
	if len(b)%heldLen != 0 {
		return fmt.Errorf("%d bytes are no list of keys and hashes", len(b))
	}
	if len(a.hello.Held)+len(b)/heldLen > MaxHeld {
		return fmt.Errorf("it holds more than %d rules and groups", MaxHeld)
	}
	for ; len(b) > 0; b = b[heldLen:] {
		h := Held{Group: kind, Key: policy.Key(b), Hash: policy.Key(b[keyLen:])}
		id := kind.ID(h.Key)
		if _, twice := a.held[id]; twice {
			return fmt.Errorf("it holds %s twice", h.Key)
		}
		a.held[id] = struct{}{}
		a.hello.Held = append(a.hello.Held, h)
	}
	return nil
}

// FromAnnouncement returns the message of an announcement.
func FromAnnouncement(a *Announcement) *feed.Announcement {
	return &feed.Announcement{
		Namespace: a.Namespace,
		Name:      a.Name,
		Uid:       a.UID,
		Addresses: packAddresses(sorted(a.Addresses)),
	}
}

// ToAnnouncement fails on what no node would announce.
func ToAnnouncement(in *feed.Announcement) (Announcement, error) {
	addresses, err := unpackAddresses(in.GetAddresses())
	a := Announcement{Namespace: in.GetNamespace(), Name: in.GetName(), UID: in.GetUid(), Addresses: addresses}
	if err != nil {
		return a, fmt.Errorf("announcement of %q/%q: %w", short(a.Namespace), short(a.Name), err)
	}
	return a, a.Validate()
}

// FromAck returns the message of an ack, cut to the size of a message: the first errors, and their number beyond.
func FromAck(a *Ack) *feed.NodeMessage {
	out := &feed.Ack{Revision: a.Revision}
	for i := range a.Errors {
		if i == MaxErrors-1 && len(a.Errors) > MaxErrors {
			out.Errors = append(out.Errors, &feed.RuleError{Message: fmt.Sprintf("and %d more", len(a.Errors)-i)})
			break
		}
		out.Errors = append(out.Errors, fromError(&a.Errors[i]))
	}
	return &feed.NodeMessage{Message: &feed.NodeMessage_Ack{Ack: out}}
}

func fromError(e *RuleError) *feed.RuleError {
	out := &feed.RuleError{Rules: packKeys(e.Rules[:min(len(e.Rules), MaxErrorKeys)]), Message: text(e.Message)}
	for _, o := range e.Origins[:min(len(e.Origins), MaxErrorKeys)] {
		out.Origins = append(out.Origins, fromOrigin(o))
	}
	return out
}

// text returns s as valid UTF-8, cut to MaxErrorText.
func text(s string) string {
	return strings.ToValidUTF8(s[:min(len(s), MaxErrorText)], "")
}

// ToAck fails on more than a node may say.
func ToAck(in *feed.Ack) (Ack, error) {
	out := Ack{Revision: in.Revision}
	if len(in.Errors) > MaxErrors {
		return out, fmt.Errorf("ack of %d: %d errors", in.Revision, len(in.Errors))
	}
	for _, e := range in.Errors {
		converted, err := toError(e)
		if err != nil {
			return out, fmt.Errorf("ack of %d: %w", in.Revision, err)
		}
		out.Errors = append(out.Errors, converted)
	}
	return out, nil
}

func toError(in *feed.RuleError) (RuleError, error) {
	if len(in.Rules) > MaxErrorKeys*keyLen || len(in.Origins) > MaxErrorKeys || len(in.Message) > MaxErrorText {
		return RuleError{}, errors.New("an error that is larger than errors may be")
	}
	rules, err := unpackKeys(in.Rules)
	if err != nil {
		return RuleError{}, err
	}
	origins, err := toOrigins(in.Origins)
	return RuleError{Rules: slices.Clip(rules), Origins: origins, Message: in.Message}, err
}

// FromBeat returns the message by which a node queries whether the leader still leads.
func FromBeat(number uint64) *feed.NodeMessage {
	return &feed.NodeMessage{Message: &feed.NodeMessage_Beat{Beat: &feed.Beat{Number: number}}}
}

// FromDrift returns the message of a drift.
func FromDrift(d *Drift) *feed.NodeMessage {
	return &feed.NodeMessage{Message: &feed.NodeMessage_Drift{Drift: &feed.Drift{Missing: d.Missing, Changed: d.Changed,
		Extra:   d.Extra,
		Example: text(d.Example), Problem: text(d.Problem)}}}
}

// ToDrift fails on more than a node may say.
func ToDrift(in *feed.Drift) (Drift, error) {
	d := Drift{
		Missing: in.GetMissing(),
		Changed: in.GetChanged(),
		Extra:   in.GetExtra(),
		Example: in.GetExample(),
		Problem: in.GetProblem(),
	}
	if len(d.Example) > MaxErrorText || len(d.Problem) > MaxErrorText || max(d.Missing, d.Changed, d.Extra) > maxFlows {
		return Drift{}, errors.New("a drift that is larger than drifts may be")
	}
	return d, nil
}

// FromReplyError returns the message of a failed query.
func FromReplyError(id uint64, err error) *feed.NodeMessage {
	return &feed.NodeMessage{Message: &feed.NodeMessage_Reply{Reply: &feed.Reply{Id: id, Error: text(err.Error())}}}
}

// MaxStreamed bounds an answer of a stream, in bytes.
const MaxStreamed = 1 << 20

// FromStreamed returns the message of one response of a stream; nil ends the stream.
func FromStreamed(id uint64, body []byte) *feed.NodeMessage {
	return &feed.NodeMessage{Message: &feed.NodeMessage_Reply{Reply: &feed.Reply{Id: id, Body: body,
		More: body != nil}}}
}

// replyPart is how many bytes of an answer go into a message.
const replyPart = 1 << 20

// ReplyParts returns the messages of a response, at least one.
func ReplyParts(id uint64, body []byte) iter.Seq[*feed.NodeMessage] {
	return func(yield func(*feed.NodeMessage) bool) {
		for {
			n := min(len(body), replyPart)
			r := &feed.Reply{Id: id, Body: body[:n], More: n < len(body)}
			body = body[n:]
			if !yield(&feed.NodeMessage{Message: &feed.NodeMessage_Reply{Reply: r}}) || !r.More {
				return
			}
		}
	}
}
