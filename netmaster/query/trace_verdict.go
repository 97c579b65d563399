package query

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netmaster/follow"
	"github.com/flowkeep/flowkeep/policydb/explain"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// proofTimeout bounds the queries to switches about one packet.
const proofTimeout = 5 * time.Second

// packet returns the outcome of a packet.
func (t *traceRun) packet(ctx context.Context, w, answer *follow.Way) *inspect.FollowedPacket {
	first := &w.Hops[0]
	p := &inspect.FollowedPacket{Text: first.Text, Hops: reportedHops(w.Hops), Answer: reportedHops(answer.Hops)}
	if len(answer.Hops) > 0 && answer.Last().Node == first.Node && t.ends.Arrived(answer) {
		p.RoundTrip = answer.Last().Time.Sub(first.Time)
	}
	t.translate(ctx, w, p)
	t.judge(ctx, w, p)
	switch {
	case t.ends.Arrived(w):
		t.delivered(w, answer, p)
	case t.ends.Recut(w, t.ways):
		resegmented(w, p, p.RoundTrip > 0)
	default:
		t.undelivered(w, answer, p)
	}
	t.qualify(ctx, w, answer, p)
	return p
}

// qualify downgrades a verdict to "not certain" if sightings that it relies on may be missing.
func (t *traceRun) qualify(ctx context.Context, w, answer *follow.Way, p *inspect.FollowedPacket) {
	last, doubtful := w.Last(), p.Outcome == inspect.Lost || p.Outcome == inspect.AnswerLost ||
		p.Outcome == inspect.Unanswered
	if p.Outcome == inspect.AnswerLost {
		last = answer.Last()
	}
	unknown := w.Alike || answer.Alike
	switch {
	case p.Outcome == inspect.Unsure || p.Outcome == inspect.Refused:
		return
	case p.Outcome == inspect.Denied:
		unknown = unknown ||
			follow.Opens(&w.Hops[0].SeenPacket) == 0 && t.overflowed() // a packet of an existing connection may pass
	case doubtful:
		unknown = unknown || t.overflowed()
	}
	if deaf := t.silentAt(last); doubtful && len(deaf) > 0 {
		p.Problems = append(p.Problems,
			strings.Join(deaf, ", ")+" may have seen more of it, but stopped reporting")
	} else if unknown {
		p.Problems = append(p.Problems, "it may have gone on unseen, or be another: there were more packets than "+
			"could be followed, or several that are the same in all that can be compared")
	} else if t.isAnsweredUnseen(w, answer, p) {
		p.Problems = append(p.Problems, "it is answered all the same: a node may have sent it on by an address that "+
			"its Node object does not have, by which it is not known again")
	} else if p.Outcome == inspect.Lost && t.changed(ctx) {
		p.Problems = append(p.Problems, changedMeanwhile)
	} else {
		return
	}
	p.Outcome, p.Verdict = inspect.Unsure, "NOT CERTAIN: "+p.Verdict
}

// isAnsweredUnseen reports whether a response arrived to a packet whose arrival was not seen, unless another packet
// that did arrive explains it, such as a TCP retransmission.
func (t *traceRun) isAnsweredUnseen(w, answer *follow.Way, p *inspect.FollowedPacket) bool {
	if p.Outcome != inspect.Lost && p.Outcome != inspect.Denied || len(answer.Hops) == 0 || !t.ends.Arrived(answer) {
		return false
	}
	return !slices.ContainsFunc(t.ways, func(other follow.Way) bool {
		return t.ends.Arrived(&other) && follow.Answers(&other, answer)
	})
}

// silentAt returns the nodes behind a hop that may have seen the packet but do not report.
func (t *traceRun) silentAt(h *inspect.Hop) (names []string) {
	for _, name := range t.nodes {
		if (name == h.Node || follow.Behind(h) == follow.Network) && t.observers[name].isSilent() {
			names = append(names, name)
		}
	}
	return names
}

// reportedHops removes the fingerprints of packets from hops, as they depend on the payload.
func reportedHops(hops []inspect.Hop) []inspect.Hop {
	hops = slices.Clone(hops)
	for i := range hops {
		hops[i].Identity, hops[i].Strong = "", false
	}
	return hops
}

// judge adds the verdicts of the model and of the switches for this packet, or for the connection it replies to.
func (t *tracePlan) judge(ctx context.Context, w *follow.Way, p *inspect.FollowedPacket) {
	q, ok := t.question(w, p.Service)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, proofTimeout)
	defer cancel()
	if t.isReply(ctx, w, q) {
		q = policy.Packet{From: q.To, To: q.From, Protocol: q.Protocol, Port: w.Hops[0].SrcPort}
		p.Problems = append(p.Problems, "it is of a connection that the other end began: policies judge it as that")
	}
	x := &explanation{s: t.x.s, q: t.x.q, infos: t.x.infos}
	model, err := x.model(ctx, []netip.Addr{q.From, q.To})
	if err != nil {
		p.Problems = append(p.Problems, fmt.Sprintf("the verdict of the policies is unknown: %v", err))
		return
	}
	ways := []inspect.Way{
		x.ofTheNode(inspect.Way{
			Explanation:   model.Explain(q),
			Connections:   model.Connections(q.From, q.To),
			Traces:        []inspect.Trace{},
			Disagreements: []string{},
		}),
	}
	markUnattached(&ways[0], x.s.cfg.Unattached())
	p.Problems = append(append(p.Problems, x.out.Problems...), x.s.prove(ctx, ways, ways[0].From.Node)...)
	p.Way = &ways[0]
}

// translate adds the endpoints that the sender's switch translates the packet to.
func (t *tracePlan) translate(ctx context.Context, w *follow.Way, p *inspect.FollowedPacket) {
	h := &w.Hops[0]
	if t.x.from.node == "" || !slices.Contains(t.ends.Virtual, h.Dst) || !hasPorts(h.Protocol) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, proofTimeout)
	defer cancel()
	packet := policy.Packet{From: h.Src, To: h.Dst, Protocol: h.Protocol, Port: h.DstPort}
	by, err := t.x.s.serviceTraces(ctx, t.x.from.node, []policy.Packet{packet})
	switch {
	case err != nil:
		p.Problems = append(p.Problems, fmt.Sprintf("Service translation is unknown: %v", err))
	case by.TranslatedBy == inspect.TranslatedByOVS && len(by.Traces) == 1:
		p.Service = &by.Traces[0]
	}
}

// question returns the packet as policies see it: after translation, and with the source's own address if it leaves
// the cluster. A packet that the switch translates is seen behind the translation only if policies allow it.
func (t *tracePlan) question(w *follow.Way, by *inspect.ServiceTrace) (q policy.Packet, ok bool) {
	for i := range w.Hops {
		h := &w.Hops[i]
		to := t.ends.At(h.Dst)
		if to == nil || ok && to.Pod == "" {
			continue
		}
		q, ok = policy.Packet{From: h.Src, To: h.Dst, Protocol: h.Protocol}, true
		if hasPorts(h.Protocol) {
			q.Port = h.DstPort
		}
	}
	if !ok && by != nil && by.Outcome != inspect.ServiceUntranslated {
		q = by.Packet
		q.To, q.Port = by.Endpoint.Addr(), by.Endpoint.Port()
		return q, by.Endpoint.IsValid()
	}
	if first := &w.Hops[0]; !ok && nodeAt(t.x.infos, first.Dst) != "" && t.ends.From.Pod != "" {
		// Policies evaluate a packet to a node port before its translation.
		return policy.Packet{From: first.Src, To: first.Dst, Protocol: first.Protocol, Port: first.DstPort}, true
	}
	return q, ok
}

// isReply reports whether the packet belongs to a connection that its receiver opened.
func (t *tracePlan) isReply(ctx context.Context, w *follow.Way, q policy.Packet) bool {
	first := &w.Hops[0]
	if opens := follow.Opens(&first.SeenPacket); opens != 0 || t.x.q.To.Port != "" || t.x.out.Service != nil ||
		!hasPorts(q.Protocol) {
		return opens < 0
	}
	live, err := queried[inspect.NodeConnections](
		ctx,
		t.x.s,
		first.Node,
		inspect.NodeQuery{Kind: inspect.QueryConnections,
			Connections: &inspect.ConnectionFilter{From: []netip.Addr{q.From, q.To}}},
	)
	if err != nil {
		return false
	}
	theirs := false
	for _, c := range live.Counts {
		switch {
		case c.Protocol != q.Protocol:
		case c.From == q.From && c.To == q.To && c.Port == q.Port:
			return false
		case c.From == q.To && c.To == q.From && c.Port == first.SrcPort:
			theirs = true
		}
	}
	return theirs
}

func (t *traceRun) delivered(w, answer *follow.Way, p *inspect.FollowedPacket) {
	first, last := &w.Hops[0].SeenPacket, w.Last()
	name := t.nameOf(last.Dst)
	if p.Way != nil && p.Way.DeniesEnforced() {
		p.Way.Disagreements = append(p.Way.Disagreements,
			fmt.Sprintf("it was delivered to %s, but by the policies it is denied", name))
		p.Way.DisagreeingNodes = unique(append(p.Way.DisagreeingNodes, denyingNodes(p.Way)...))
	}
	by := ""
	if len(t.ends.Virtual) > 0 {
		by = fmt.Sprintf(" by %s on %s", name, last.Node)
	}
	switch {
	case !follow.AsksForAnswer(first):
		p.Outcome, p.Verdict = inspect.Delivered, fmt.Sprintf("DELIVERED to %s; it asks for no answer", name)
	case len(answer.Hops) == 0:
		p.Outcome, p.Verdict = inspect.Unanswered, fmt.Sprintf(
			"DELIVERED, NOT ANSWERED: %s got it and sent nothing back within %v", name, responseTimeout)
		if to := t.ends.At(last.Dst); to == nil || to.Pod == "" && to.Node == "" {
			p.Verdict = fmt.Sprintf("LEFT THE CLUSTER by %s of %s, NOT ANSWERED: nothing came back within %v",
				last.Interface, last.Node, responseTimeout)
		}
	case !t.ends.Arrived(answer):
		p.Outcome, p.Verdict = inspect.AnswerLost, fmt.Sprintf("DELIVERED, BUT ITS ANSWER IS LOST %s",
			t.behind(answer.Last()))
	case answer.Hops[0].Protocol == 6 && answer.Hops[0].Flags&4 != 0:
		p.Outcome, p.Verdict = inspect.Answered, fmt.Sprintf("DELIVERED, and %s refuses it (a TCP reset)", name)
	default:
		p.Outcome, p.Verdict = inspect.Answered, "DELIVERED AND ANSWERED"+by
	}
	if p.Outcome == inspect.Answered && p.RoundTrip > 0 {
		p.Verdict += fmt.Sprintf(", after %v", p.RoundTrip.Round(time.Microsecond))
	}
}

// denyingNodes returns the nodes of the ends where policies deny a way and are enforced.
func denyingNodes(w *inspect.Way) (nodes []string) {
	if !w.Egress.Allowed && w.IsEnforced(&w.From) {
		nodes = append(nodes, w.From.Node)
	}
	if !w.Ingress.Allowed && w.IsEnforced(&w.To) {
		nodes = append(nodes, w.To.Node)
	}
	return nodes
}

func (t *traceRun) undelivered(w, answer *follow.Way, p *inspect.FollowedPacket) {
	last := w.Last()
	if follow.Resets(answer, last) {
		p.Outcome, p.Verdict = inspect.Refused, fmt.Sprintf(
			"REFUSED by the network stack of %s (a TCP reset): no process listens there, or kube-proxy does not send "+
				"it on (yet)",
			last.Node,
		)
		return
	}
	if by := p.Service; by != nil && by.Outcome == inspect.ServiceRejected && follow.Behind(last) == follow.Switch {
		p.Outcome, p.Verdict = inspect.Refused, fmt.Sprintf(
			"REFUSED by Open vSwitch of %s: the Service has no endpoint for it, or no such port", last.Node)
		return
	}
	if e := w.Error(t.sightings); e != nil {
		p.Outcome, p.Verdict = inspect.Refused, fmt.Sprintf("REFUSED on its way: %s says so (%s), seen on %s", e.Src,
			e.Text, e.Node)
		return
	}
	if side, end := deniedAt(last, p.Way); side != nil && follow.Behind(last) == follow.Switch {
		p.Outcome, p.Verdict = inspect.Denied, fmt.Sprintf("DENIED on %s: %s is isolated by %s, and no rule allows it",
			last.Node, end.Pods[0], strings.Join(side.Isolating(), ", "))
		return
	}
	p.Outcome, p.Verdict = inspect.Lost, "LOST "+t.behind(last)
	switch by := p.Service; {
	case p.Way == nil && by != nil && by.Outcome == inspect.ServiceTranslated:
		p.Outcome, p.Verdict = inspect.Unsure, fmt.Sprintf(
			"NOT CERTAIN: Open vSwitch of %s translated it to one of %d endpoints, and it was not seen behind: "+
				"netctl explain has the policies for each", last.Node, len(by.Endpoints))
	case p.Way == nil && t.x.out.Service != nil:
		p.Verdict += ", still to the Service's address: no node has translated it"
		for _, port := range t.x.out.Service.Ports {
			if port.Refused != "" {
				p.Verdict += "; " + port.Refused
			}
		}
	case p.Way != nil && p.Way.Allowed:
		p.Verdict += "; policies allow it"
	}
	if to := t.ends.At(last.Dst); to != nil && to.Node != "" && to.Node != last.Node &&
		t.observers[to.Node].isSilent() {
		p.Outcome, p.Verdict = inspect.Unsure, fmt.Sprintf("NOT CERTAIN: it was seen last at %s, and %s does not look",
			hopText(last), to.Node)
	}
}

// resegmented sets the outcome of a packet whose data continued in other segments, with only their acknowledgement
// seen.
func resegmented(w *follow.Way, p *inspect.FollowedPacket, acknowledged bool) {
	p.Outcome, p.Verdict = inspect.Unsure, fmt.Sprintf("NOT CERTAIN: behind %s on %s it went on in other segments",
		hopText(w.Last()), w.Last().Node)
	if acknowledged {
		p.Outcome, p.Verdict = inspect.Answered, fmt.Sprintf("DELIVERED AND ACKNOWLEDGED, after %v",
			p.RoundTrip.Round(time.Microsecond))
	}
	p.Problems = append(
		p.Problems,
		"segmentation offload has cut it, or joined it with others, on its way: a connection's first packets are "+
			"seen all the way",
	)
}

func (l *observer) isSilent() bool {
	return l == nil || l.err != nil || !l.ended && time.Since(l.lastReport) > silenceTimeout
}

// deniedAt returns the side that denies the packet at the switch of a hop; nil if neither does.
func deniedAt(h *inspect.Hop, way *inspect.Way) (*explain.Side, *explain.End) {
	switch {
	case way == nil || way.OfTheNode || way.Self:
	case way.From.Kind == explain.Pod && way.From.Node == h.Node && !way.Egress.Allowed:
		return &way.Egress, &way.From
	case way.To.Kind == explain.Pod && way.To.Node == h.Node && !way.Ingress.Allowed:
		return &way.Ingress, &way.To
	}
	return nil, nil
}

// behind describes where a packet is after its last sighting.
func (t *tracePlan) behind(h *inspect.Hop) string {
	switch follow.Behind(h) {
	case follow.Switch:
		return fmt.Sprintf("in Open vSwitch of %s: it went in by %s, and came out nowhere", h.Node, hopText(h))
	case follow.Stack:
		return fmt.Sprintf(
			"in the network stack of %s (routes, nftables, kube-proxy): it came in by %s, and went out nowhere",
			h.Node, hopText(h))
	case follow.Other:
		return fmt.Sprintf("at %s, whom it was not for", hopText(h))
	}
	next := "the next node"
	if to := t.ends.At(h.Dst); to != nil && to.Node != "" {
		next = to.Node
	}
	return fmt.Sprintf("between %s and %s: it left by %s, and %s has not seen it", h.Node, next, h.Interface, next)
}

func hopText(h *inspect.Hop) string {
	if h.Pod != "" {
		return "the link of " + h.Pod
	}
	return h.Interface
}

func (t *tracePlan) nameOf(a netip.Addr) string {
	if to := t.ends.At(a); to != nil {
		switch {
		case to.Pod != "":
			return to.Pod
		case to.Node != "":
			return to.Node
		}
	}
	return a.String()
}

// queried queries a node and decodes the response.
func queried[T any](ctx context.Context, s *sources, node string, q inspect.NodeQuery) (out T, err error) {
	body, err := s.queryNode(ctx, node, q)
	if err == nil {
		err = json.Unmarshal(body, &out)
	}
	return out, err
}
