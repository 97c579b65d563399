package wire

import (
	"fmt"

	"github.com/flowkeep/flowkeep/api/feed"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// FromNodes is the message that tells of all nodes. What of a node no receiver would believe is left out.
func FromNodes(infos []policy.NodeInfo) *feed.MasterMessage {
	out := new(feed.Nodes)
	for i := range infos {
		n := &infos[i]
		info := &feed.NodeInfo{Name: n.Name, Addresses: packAddresses(sorted(n.Addresses))}
		for _, p := range n.PodCIDRs {
			if checkPrefix(p) == nil {
				info.PodCidrs = append(info.PodCidrs, packPrefix(p))
			}
		}
		out.Nodes = append(out.Nodes, info)
	}
	return &feed.MasterMessage{Message: &feed.MasterMessage_Nodes{Nodes: out}}
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
	return info, nil
}

// FromWelcome is netmaster's first message.
func FromWelcome(version uint32, program string) *feed.MasterMessage {
	return &feed.MasterMessage{Message: &feed.MasterMessage_Welcome{Welcome: &feed.Welcome{Version: version, ProgramVersion: program}}}
}

// CheckWelcome fails on a version that this build does not speak.
func CheckWelcome(w *feed.Welcome) error {
	if w.Version < feed.MinVersion || w.Version > feed.MaxVersion {
		return fmt.Errorf("netmaster %s speaks version %d of the feed, this netplugin %d to %d: upgrade the older of the two",
			short(w.ProgramVersion), w.Version, feed.MinVersion, feed.MaxVersion)
	}
	return nil
}

// FromQuery is the message of a query.
func FromQuery(id uint64, body []byte) *feed.MasterMessage {
	return &feed.MasterMessage{Message: &feed.MasterMessage_Query{Query: &feed.Query{Id: id, Body: body}}}
}

// FromStreamQuery is the message of a query that is answered by a stream; window is not 0.
func FromStreamQuery(id uint64, body []byte, window int) *feed.MasterMessage {
	return &feed.MasterMessage{Message: &feed.MasterMessage_Query{Query: &feed.Query{Id: id, Body: body, Window: uint32(window)}}}
}

// FromGrant is the message that lets a node send further answers, or ends the stream.
func FromGrant(id uint64, answers int, end bool) *feed.MasterMessage {
	return &feed.MasterMessage{Message: &feed.MasterMessage_Grant{Grant: &feed.Grant{Id: id, Answers: uint32(answers), End: end}}}
}
