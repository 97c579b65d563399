// Package feed is the protocol between netmaster and the netplugins: one bidirectional gRPC stream a node, with mutual TLS.
// Messages are JSON in gRPC frames; a field that the other side does not know is ignored, and the protocol's version in
// Hello says what must be understood. docs/feed.md tells the protocol in one page.
package feed

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"

	"github.com/flowkeep/flowkeep/policydb/policy"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
)

// Versions of the protocol that this build speaks.
const (
	MinVersion = 1
	MaxVersion = 1
)

// MaxMessage bounds a message, in bytes, in both directions.
const MaxMessage = 4 << 20

// NodeMessage goes up; exactly one field is set.
type NodeMessage struct {
	Hello    *Hello        `json:"hello,omitempty"`
	Ack      *Ack          `json:"ack,omitempty"`
	Announce *Announcement `json:"announce,omitempty"`
	Withdraw *Announcement `json:"withdraw,omitempty"`
	Reply    *Reply        `json:"reply,omitempty"`
}

// MasterMessage goes down; exactly one field is set.
type MasterMessage struct {
	Update *Update            `json:"update,omitempty"`
	Nodes  *[]policy.NodeInfo `json:"nodes,omitempty"`
	Query  *Query             `json:"query,omitempty"`
}

// Hello is a node's first message: who it is, and what it holds.
type Hello struct {
	Node       string         `json:"node"`
	Version    string         `json:"version"`
	MinVersion int            `json:"minVersion"`
	MaxVersion int            `json:"maxVersion"`
	Revision   uint64         `json:"revision"`
	Held       []Held         `json:"held,omitempty"`
	Announced  []Announcement `json:"announced,omitempty"`
	// More says that another Hello with more of Held follows.
	More bool `json:"more,omitempty"`
}

// Held is a rule (Group 0) or a group that a node holds, with the hash of its content.
type Held struct {
	Group policy.GroupKind `json:"group,omitempty"`
	Key   policy.Key       `json:"key"`
	Hash  policy.Key       `json:"hash"`
}

// Announcement is a pod that the node wired.
type Announcement struct {
	Namespace string       `json:"namespace"`
	Name      string       `json:"name"`
	UID       string       `json:"uid,omitempty"`
	Addresses []netip.Addr `json:"addresses"`
}

// Validate fails on what no node would announce.
func (a *Announcement) Validate() error {
	if a.Namespace == "" || a.Name == "" || len(a.Namespace) > 253 || len(a.Name) > 253 {
		return fmt.Errorf("announcement of %q/%q: not a pod's name", a.Namespace, a.Name)
	}
	if len(a.Addresses) > 8 {
		return fmt.Errorf("announcement of %s/%s: %d addresses", a.Namespace, a.Name, len(a.Addresses))
	}
	for _, addr := range a.Addresses {
		if !addr.IsValid() || addr.IsUnspecified() || addr.IsMulticast() || addr.IsLoopback() || addr.Zone() != "" || addr.Is4In6() {
			return fmt.Errorf("announcement of %s/%s: %q is no pod's address", a.Namespace, a.Name, addr)
		}
	}
	return nil
}

// Ack says that a revision is realised, but for the rules in Errors.
type Ack struct {
	Revision uint64      `json:"revision"`
	Errors   []RuleError `json:"errors,omitempty"`
}

// RuleError is why a rule could not be realised; a zero key speaks of all.
type RuleError struct {
	Key     policy.Key `json:"key"`
	Message string     `json:"message"`
}

// Update is a part of what takes a node to Revision; with Last it is complete, and taken over whole.
type Update struct {
	Revision uint64                   `json:"revision"`
	Rules    []policy.RuleChange      `json:"rules,omitempty"`
	Groups   []policy.GroupUpdate     `json:"groups,omitempty"`
	Settled  []policy.SettledEndpoint `json:"settled,omitempty"`
	Last     bool                     `json:"last,omitempty"`
}

// Query asks a node something; Reply answers, in parts of which the last has no More.
type Query struct {
	ID   uint64          `json:"id"`
	Body json.RawMessage `json:"body"`
}

// Reply is an answer, or with Error set, why there is none.
type Reply struct {
	ID    uint64 `json:"id"`
	Body  []byte `json:"body,omitempty"`
	More  bool   `json:"more,omitempty"`
	Error string `json:"error,omitempty"`
}

// Codec is the content-subtype of the stream.
const Codec = "flowkeep-json"

type codec struct{}

func (codec) Marshal(v any) ([]byte, error)   { return json.Marshal(v) }
func (codec) Unmarshal(b []byte, v any) error { return json.Unmarshal(b, v) }
func (codec) Name() string                    { return Codec }

func init() { encoding.RegisterCodec(codec{}) }

// Server is what netmaster implements.
type Server interface {
	Stream(grpc.BidiStreamingServer[NodeMessage, MasterMessage]) error
}

const method = "/flowkeep.feed.v1.Feed/Stream"

var serviceDesc = grpc.ServiceDesc{
	ServiceName: "flowkeep.feed.v1.Feed",
	HandlerType: (*Server)(nil),
	Streams: []grpc.StreamDesc{{
		StreamName: "Stream", ServerStreams: true, ClientStreams: true,
		Handler: func(srv any, stream grpc.ServerStream) error {
			return srv.(Server).Stream(&grpc.GenericServerStream[NodeMessage, MasterMessage]{ServerStream: stream})
		},
	}},
}

// Register adds the feed to a gRPC server.
func Register(r grpc.ServiceRegistrar, s Server) { r.RegisterService(&serviceDesc, s) }

// Open starts a stream.
func Open(ctx context.Context, conn grpc.ClientConnInterface) (grpc.BidiStreamingClient[NodeMessage, MasterMessage], error) {
	stream, err := conn.NewStream(ctx, &serviceDesc.Streams[0], method, grpc.CallContentSubtype(Codec),
		grpc.MaxCallRecvMsgSize(MaxMessage), grpc.MaxCallSendMsgSize(MaxMessage))
	if err != nil {
		return nil, err
	}
	return &grpc.GenericClientStream[NodeMessage, MasterMessage]{ClientStream: stream}, nil
}
