package wire

import (
	"bytes"
	"cmp"
	"compress/flate"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/flowkeep/flowkeep/api/feed"
	"github.com/flowkeep/flowkeep/internal/keyed"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"google.golang.org/protobuf/proto"
)

const (
	// keyedPart is about how large a part of a delta gets before it is compressed, in bytes.
	keyedPart = 1 << 20
	// minDeflated is from which size on a part is compressed.
	minDeflated = 512
	// maxInflated bounds a part that is decompressed.
	maxInflated = 4 << 20
)

// FromKeyed returns the messages of a delta, in a form that costs nothing but a copy to send: many are sent the same.
func FromKeyed(set feed.KeyedSet, d *keyed.Delta) ([]*feed.MasterMessage, error) {
	var out []*feed.MasterMessage
	part, size := &feed.Keyed{Whole: d.Whole, Buckets: d.Buckets}, 0
	flush := func(sum []byte) error {
		m, err := packKeyed(set, part, sum)
		out = append(out, m)
		part, size = new(feed.Keyed), 0
		return err
	}
	room := func(n int) error {
		if size += n; size <= keyedPart {
			return nil
		}
		err := flush(nil)
		size = n
		return err
	}
	for _, key := range d.Removed {
		if err := room(len(key)); err != nil {
			return nil, err
		}
		part.Removed = append(part.Removed, key)
	}
	for i := range d.Put {
		e := &d.Put[i]
		if err := room(len(e.Key) + len(e.Value)); err != nil {
			return nil, err
		}
		part.Put = append(part.Put, &feed.KeyedEntry{Key: e.Key, Value: e.Value})
	}
	if err := flush(d.Sum[:]); err != nil {
		return nil, err
	}
	return out, nil
}

func packKeyed(set feed.KeyedSet, part *feed.Keyed, sum []byte) (*feed.MasterMessage, error) {
	text, err := proto.Marshal(part)
	if err != nil {
		return nil, err
	}
	if len(text) >= minDeflated {
		var b bytes.Buffer
		w, err := flate.NewWriter(&b, flate.DefaultCompression)
		if err != nil {
			return nil, err
		}
		if _, err := w.Write(text); err != nil {
			return nil, err
		}
		if err := w.Close(); err != nil {
			return nil, err
		}
		part = &feed.Keyed{Deflated: b.Bytes()}
	}
	part.Set, part.Sum = set, sum
	return Packed(&feed.MasterMessage{Message: &feed.MasterMessage_Keyed{Keyed: part}})
}

// ToKeyed fails on what no sender of keyed sets would send.
func ToKeyed(in *feed.Keyed) (d keyed.Delta, err error) {
	content := in
	if len(in.Deflated) > 0 {
		if content, err = inflate(in); err != nil {
			return d, fmt.Errorf("keyed set: %w", err)
		}
	}
	if unknown(in) || unknown(content) {
		return d, fmt.Errorf("keyed set: %w", errUnknownField)
	}
	d = keyed.Delta{Whole: content.Whole, Buckets: content.Buckets, Removed: content.Removed, More: len(in.Sum) == 0}
	if !d.More && copy(d.Sum[:], in.Sum) != len(in.Sum) || !d.More && len(in.Sum) != len(d.Sum) {
		return d, fmt.Errorf("keyed set: a sum of %d bytes", len(in.Sum))
	}
	if !ascending(d.Buckets, cmp.Compare[byte]) || len(d.Buckets) > 0 && d.Buckets[len(d.Buckets)-1] >= keyed.Buckets {
		return d, errors.New("keyed set: buckets that there are not")
	}
	for _, e := range content.Put {
		if unknown(e) {
			return d, fmt.Errorf("keyed set: %w", errUnknownField)
		}
		d.Put = append(d.Put, keyed.Entry{Key: e.Key, Value: e.Value})
	}
	return d, nil
}

func inflate(in *feed.Keyed) (*feed.Keyed, error) {
	if in.Whole || len(in.Buckets)+len(in.Put)+len(in.Removed) > 0 {
		return nil, errors.New("compressed, and not compressed")
	}
	r := flate.NewReader(bytes.NewReader(in.Deflated))
	text, err := io.ReadAll(io.LimitReader(r, maxInflated+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxInflated {
		return nil, fmt.Errorf("more than %d bytes when decompressed", maxInflated)
	}
	out := new(feed.Keyed)
	if err := proto.Unmarshal(text, out); err != nil {
		return nil, err
	}
	if len(out.Deflated)+len(out.Sum) > 0 || out.Set != 0 {
		return nil, errors.New("compressed twice")
	}
	return out, nil
}

// FromResend returns the message by which a node requests a keyed set once more.
func FromResend(set feed.KeyedSet) *feed.NodeMessage {
	return &feed.NodeMessage{Message: &feed.NodeMessage_Resend{Resend: &feed.KeyedHeld{Set: set}}}
}

// NodeValue returns the value of a node in the keyed set of nodes. A field that no receiver would accept is left
// out.
func NodeValue(n *policy.NodeInfo) ([]byte, error) {
	info := fromNode(n)
	info.Name = ""
	return proto.MarshalOptions{Deterministic: true}.Marshal(info)
}

// NodeList returns the nodes of a keyed set by name; it fails on what no netmaster would say of nodes.
func NodeList(s *keyed.Set) ([]policy.NodeInfo, error) {
	out := make([]policy.NodeInfo, 0, s.Len())
	for name, value := range s.All() {
		in := new(feed.NodeInfo)
		if err := proto.Unmarshal(value, in); err != nil {
			return nil, fmt.Errorf("nodes: %s: %w", short(name), err)
		}
		in.Name = name
		info, err := toNode(in)
		if err != nil {
			return nil, fmt.Errorf("nodes: %w", err)
		}
		out = append(out, info)
	}
	slices.SortFunc(out, func(a, b policy.NodeInfo) int { return cmp.Compare(a.Name, b.Name) })
	return out, nil
}
