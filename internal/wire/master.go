package wire

import (
	"errors"
	"fmt"
	"time"

	"github.com/flowkeep/flowkeep/api/feed"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"google.golang.org/protobuf/proto"
)

// FromNodes returns the message of all nodes. It leaves out what receivers would refuse.
func FromNodes(infos []policy.NodeInfo) *feed.MasterMessage {
	out := new(feed.Nodes)
	for i := range infos {
		out.Nodes = append(out.Nodes, fromNode(&infos[i]))
	}
	return &feed.MasterMessage{Message: &feed.MasterMessage_Nodes{Nodes: out}}
}

func fromNode(n *policy.NodeInfo) *feed.NodeInfo {
	info := &feed.NodeInfo{Name: n.Name, Addresses: packAddresses(sorted(n.Addresses))}
	for _, p := range n.PodCIDRs {
		if checkPrefix(p) == nil {
			info.PodCidrs = append(info.PodCidrs, packPrefix(p))
		}
	}
	info.Links = packLinks(n.Links)
	return info
}

// Packed returns the message in encoded form, so that sending it to many nodes costs a copy each.
func Packed(m *feed.MasterMessage) (*feed.MasterMessage, error) {
	text, err := proto.Marshal(m)
	if err != nil {
		return nil, err
	}
	packed := new(feed.MasterMessage)
	packed.ProtoReflect().SetUnknown(text) // which is sent as it is
	return packed, nil
}

// ToNodes fails on what no netmaster would say of nodes.
func ToNodes(in *feed.Nodes) ([]policy.NodeInfo, error) {
	out := make([]policy.NodeInfo, 0, len(in.Nodes))
	names := make(map[string]struct{}, len(in.Nodes))
	for _, n := range in.Nodes {
		info, err := toNode(n)
		if err != nil {
			return nil, fmt.Errorf("nodes: %w", err)
		}
		if _, twice := names[info.Name]; twice {
			return nil, fmt.Errorf("nodes: %s comes twice", info.Name)
		}
		names[info.Name] = struct{}{}
		out = append(out, info)
	}
	return out, nil
}

func toNode(in *feed.NodeInfo) (policy.NodeInfo, error) {
	info := policy.NodeInfo{Name: in.GetName()}
	if !isName(info.Name) {
		return info, fmt.Errorf("%q is not the name of a node", short(info.Name))
	}
	var err error
	if info.Addresses, err = unpackAddresses(in.Addresses); err != nil {
		return info, fmt.Errorf("%s: %w", info.Name, err)
	}
	for _, p := range in.PodCidrs {
		prefix, err := unpackPrefix(p)
		if err != nil {
			return info, fmt.Errorf("%s: %w", info.Name, err)
		}
		info.PodCIDRs = append(info.PodCIDRs, prefix)
	}
	if info.Links, err = ToLinks(in.Links); err != nil {
		return info, fmt.Errorf("%s: %w", info.Name, err)
	}
	return info, nil
}

// FromWelcome returns netmaster's first message: the leader's epoch and for how long after the hello no other candidate
// leads. Both are 0 without an election.
func FromWelcome(version uint32, program string, epoch uint64, valid time.Duration) *feed.MasterMessage {
	w := &feed.Welcome{Version: version, ProgramVersion: program}
	if version >= feed.Beats {
		w.Epoch, w.ValidMs = epoch, uint32(valid.Milliseconds())
	}
	return &feed.MasterMessage{Message: &feed.MasterMessage_Welcome{Welcome: w}}
}

// FromFenced returns the message of a leader that is not certain to lead and may be again within hold.
func FromFenced(hold time.Duration) *feed.MasterMessage {
	fenced := &feed.Fenced{HoldMs: uint32(hold.Milliseconds())}
	return &feed.MasterMessage{Message: &feed.MasterMessage_Fenced{Fenced: fenced}}
}

// FromTrust returns the message that responds to a beat.
func FromTrust(number uint64, valid time.Duration) *feed.MasterMessage {
	return &feed.MasterMessage{Message: &feed.MasterMessage_Trust{Trust: &feed.Trust{Number: number,
		ValidMs: uint32(valid.Milliseconds())}}}
}

// CheckWelcome fails on a version that is none of one's own, and on what no leader would say.
func CheckWelcome(w *feed.Welcome, own Versions) error {
	if w.Version < own.Min || w.Version > own.Max {
		return fmt.Errorf(
			"netmaster %s speaks version %d of the feed, this netplugin %d to %d: upgrade the older of the two",
			short(w.ProgramVersion), w.Version, own.Min, own.Max)
	}
	if (w.Epoch == 0) != (w.ValidMs == 0) || w.Epoch > 0 && w.Version < feed.Beats || w.Epoch > maxEpoch ||
		w.ValidMs > maxTrust {
		return fmt.Errorf(
			"netmaster %s says that it leads in epoch %d, for %d ms, by version %d of the feed: no leader is like that",
			short(w.ProgramVersion), w.Epoch, w.ValidMs, w.Version)
	}
	return nil
}

// ToTrust fails on more than a leader could promise.
func ToTrust(in *feed.Trust) (number uint64, valid time.Duration, err error) {
	if in.ValidMs > maxTrust {
		return 0, 0, errors.New("a leader that wants to be believed for more than a minute")
	}
	return in.Number, time.Duration(in.ValidMs) * time.Millisecond, nil
}

// FromQuery returns the message of a query.
func FromQuery(id uint64, body []byte) *feed.MasterMessage {
	return &feed.MasterMessage{Message: &feed.MasterMessage_Query{Query: &feed.Query{Id: id, Body: body}}}
}

// FromStreamQuery returns the message of a query whose response is a stream; window is not 0.
func FromStreamQuery(id uint64, body []byte, window int) *feed.MasterMessage {
	return &feed.MasterMessage{Message: &feed.MasterMessage_Query{Query: &feed.Query{Id: id, Body: body,
		Window: uint32(window)}}}
}

// FromGrant returns the message that lets a node send further responses, or ends the stream.
func FromGrant(id uint64, answers int, end bool) *feed.MasterMessage {
	return &feed.MasterMessage{Message: &feed.MasterMessage_Grant{Grant: &feed.Grant{Id: id, Answers: uint32(answers),
		End: end}}}
}
