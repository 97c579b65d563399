package wire

import (
	"fmt"
	"net/netip"

	"github.com/flowkeep/flowkeep/api/feed"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// FromLinks returns the message of a node's segments.
func FromLinks(l *policy.Links) *feed.NodeMessage {
	return &feed.NodeMessage{Message: &feed.NodeMessage_Links{Links: packLinks(l)}}
}

// packLinks leaves out prefixes that no receiver would accept.
func packLinks(l *policy.Links) *feed.Links {
	if l == nil {
		return nil
	}
	out := new(feed.Links)
	for _, p := range l.OnLink {
		if checkPrefix(p) == nil && len(out.OnLink) < policy.MaxOnLink {
			out.OnLink = append(out.OnLink, packPrefix(p))
		}
	}
	return out
}

// ToLinks returns nil for nil. It fails on more prefixes than a node may have.
func ToLinks(in *feed.Links) (*policy.Links, error) {
	if in == nil {
		return nil, nil
	}
	if len(in.OnLink) > policy.MaxOnLink {
		return nil, fmt.Errorf("links: %d prefixes, at most %d", len(in.OnLink), policy.MaxOnLink)
	}
	out := &policy.Links{OnLink: []netip.Prefix{}}
	for _, p := range in.OnLink {
		prefix, err := unpackPrefix(p)
		if err != nil {
			return nil, fmt.Errorf("links: %w", err)
		}
		out.OnLink = append(out.OnLink, prefix)
	}
	return out, nil
}
