package wire

import (
	"bytes"
	"compress/flate"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/api/feed"
	"github.com/flowkeep/flowkeep/internal/keyed"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"google.golang.org/protobuf/proto"
)

// overTheWire returns what a receiver reads of a message.
func overTheWire(t *testing.T, m *feed.MasterMessage) *feed.Keyed {
	t.Helper()
	text, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	if len(text) > feed.MaxMasterMessage {
		t.Fatalf("a message of %d bytes", len(text))
	}
	out := new(feed.MasterMessage)
	if err := proto.Unmarshal(text, out); err != nil {
		t.Fatal(err)
	}
	return out.GetKeyed()
}

// TestKeyed: small deltas and ones of several parts come over as they are.
func TestKeyed(t *testing.T) {
	for _, entries := range []int{0, 1, 100, 60_000} {
		d := keyed.Delta{Buckets: []byte{3, 9}, Removed: []string{"gone"}, Sum: keyed.Sum{1, 2}}
		for i := range entries {
			d.Put = append(d.Put, keyed.Entry{Key: fmt.Sprint("key", i), Value: bytes.Repeat([]byte{byte(i)}, 40)})
		}
		messages, err := FromKeyed(feed.KeyedSet_KEYED_SET_NODES, &d)
		if err != nil {
			t.Fatal(err)
		}
		var got keyed.Delta
		for i, m := range messages {
			in := overTheWire(t, m)
			if in.GetSet() != feed.KeyedSet_KEYED_SET_NODES {
				t.Errorf("part %d is of set %v", i, in.GetSet())
			}
			part, err := ToKeyed(in)
			if err != nil {
				t.Fatal(err)
			}
			if part.More != (i < len(messages)-1) {
				t.Errorf("%d entries, part %d: more is %v", entries, i, part.More)
			}
			got.Buckets, got.Removed = append(got.Buckets, part.Buckets...), append(got.Removed, part.Removed...)
			got.Put, got.Sum = append(got.Put, part.Put...), part.Sum
		}
		if !reflect.DeepEqual(got, d) || entries > 50_000 && len(messages) < 2 {
			t.Errorf("%d entries in %d messages came as %d", entries, len(messages), len(got.Put))
		}
	}
}

// TestKeyedRefuses: what no sender sends is an error.
func TestKeyedRefuses(t *testing.T) {
	deflate := func(text []byte) []byte {
		var b bytes.Buffer
		w, _ := flate.NewWriter(&b, flate.BestCompression)
		_, _ = w.Write(text)
		_ = w.Close()
		return b.Bytes()
	}
	encoded := func(m *feed.Keyed) []byte {
		text, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	twice, bomb := deflate(encoded(&feed.Keyed{Deflated: []byte{1}})), deflate(make([]byte, maxInflated+1))
	strange := new(feed.KeyedEntry)
	strange.ProtoReflect().SetUnknown([]byte{0x78, 1})
	for name, c := range map[string]struct {
		in   *feed.Keyed
		says string
	}{
		"a short sum":                {&feed.Keyed{Sum: []byte{1}}, "a sum of 1 bytes"},
		"a long sum":                 {&feed.Keyed{Sum: make([]byte, 17)}, "a sum of 17 bytes"},
		"a bucket that there is not": {&feed.Keyed{Buckets: []byte{keyed.Buckets}}, "buckets that there are not"},
		"a bucket twice":             {&feed.Keyed{Buckets: []byte{1, 1}}, "buckets that there are not"},
		"an unknown field":           {&feed.Keyed{Put: []*feed.KeyedEntry{strange}}, "does not understand"},
		"compressed and not":         {&feed.Keyed{Whole: true, Deflated: deflate(nil)}, "and not compressed"},
		"compressed twice":           {&feed.Keyed{Deflated: twice}, "compressed twice"},
		"a bomb":                     {&feed.Keyed{Deflated: bomb}, "bytes when decompressed"},
		"not compressed":             {&feed.Keyed{Deflated: []byte("no")}, "keyed set"},
	} {
		if _, err := ToKeyed(c.in); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestNodeListRefuses: values that are no nodes, under names that are none, are errors.
func TestNodeListRefuses(t *testing.T) {
	value, err := NodeValue(&policy.NodeInfo{Name: "a"})
	if err != nil {
		t.Fatal(err)
	}
	for name, e := range map[string]keyed.Entry{
		"no value": {Key: "a", Value: []byte{0xff}},
		"no name":  {Key: "a/b", Value: value},
		"a mask":   {Key: "a", Value: []byte{0x1a, 0x02, 0x10, 0x63}},
	} {
		var source keyed.Source
		source.Put(e.Key, e.Value)
		d, _ := source.Since(0)
		var set keyed.Set
		if err := set.Apply(&d); err != nil {
			t.Fatal(err)
		}
		if infos, err := NodeList(&set); err == nil {
			t.Errorf("%s: %v", name, infos)
		}
	}
}

// TestHelloHasSums: what a node holds of the list of nodes comes over with its hello, and nonsense is refused.
func TestHelloHasSums(t *testing.T) {
	for _, c := range []struct {
		sums  int
		fails bool
	}{{0, false}, {keyed.SumsLen, false}, {1, true}, {keyed.SumsLen + 16, true}} {
		h := Hello{Node: "n", Versions: Own(), Nodes: bytes.Repeat([]byte{7}, c.sums)}
		for part := range HelloParts(&h) {
			var all HelloAssembler
			got, whole, err := all.Add(part.GetHello())
			if (err != nil) != c.fails || err == nil && (!whole || !bytes.Equal(got.Nodes, h.Nodes)) {
				t.Errorf("%d bytes of sums: %d came, %v", c.sums, len(got.Nodes), err)
			}
		}
	}
}
