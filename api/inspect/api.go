package inspect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"time"

	"github.com/flowkeep/flowkeep/policydb/explain"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/status"
)

// Kinds of Question.
const (
	AskStatus    = "status"
	AskPolicies  = "policies"
	AskEndpoints = "endpoints"
	AskFlows     = "flows"
	AskDB        = "db"
	AskCache     = "cache"
	AskLookup    = "lookup"
	AskCuts      = "cuts"
)

// Question is what netctl asks; ID, Node and the others count by Kind.
type Question struct {
	Kind      string           `json:"kind"`
	ID        string           `json:"id,omitempty"` // namespace/name
	Namespace string           `json:"namespace,omitempty"`
	Node      string           `json:"node,omitempty"`
	Selector  *policy.Selector `json:"selector,omitempty"`
	Wait      *WaitFor         `json:"wait,omitempty"`
	// From is the end that a packet comes from (ParseName), To where it goes.
	From string  `json:"from,omitempty"`
	To   *Target `json:"to,omitempty"`
	// Unproved leaves the switches out of an explanation: they are not asked.
	Unproved bool `json:"unproved,omitempty"`
	// At is the state that an explanation is of; nil: as it is now.
	At *At `json:"at,omitempty"`
	// Matrix is which part of the matrix is wanted.
	Matrix *explain.Question `json:"matrix,omitempty"`
	// Rules: policies are wanted with their rules, as if each had been asked for by ID.
	Rules bool `json:"rules,omitempty"`
	// Names: of policies or endpoints nothing but namespace and name is wanted.
	Names bool `json:"names,omitempty"`
	// Counts: a list of policies has InForce in place of Nodes.
	Counts bool `json:"counts,omitempty"`
	// Since is for how long rules have matched nothing, in AskUnused.
	Since time.Duration `json:"since,omitempty"`
	// Diff is the change to try.
	Diff *Trial `json:"diff,omitempty"`
	// Capture selects the packets of the pod ID to capture.
	Capture *CaptureSpec `json:"capture,omitempty"`
	// Verify selects the flows to verify.
	Verify *VerifyWhat    `json:"verify,omitempty"`
	Drops  *DropsQuestion `json:"drops,omitempty"`
	// DryRun selects what AskDryRuns returns; nil: the list of policies.
	DryRun *DryRunQuestion `json:"dryRun,omitempty"`
	// FromNode: the node itself is queried, in AskFrontends.
	FromNode bool `json:"fromNode,omitempty"`
	// Trace limits the trace of packets from From to To.
	Trace *TraceSpec `json:"trace,omitempty"`
	// Forwarded is set by a standby that hands the question to the leader: it is not forwarded again.
	Forwarded bool `json:"forwarded,omitempty"`
}

// Answer holds the type that belongs to the question's kind.
type Answer struct {
	Body json.RawMessage `json:"body"`
	// Cached is the state that an answer is of which is cached; nil: it is of none.
	Cached *Cached `json:"cached,omitempty"`
}

// Status answers AskStatus.
type Status struct {
	Version    string    `json:"version"`
	Started    time.Time `json:"started"`
	Revision   uint64    `json:"revision"`
	Namespaces int       `json:"namespaces"`
	Endpoints  int       `json:"endpoints"`
	Policies   int       `json:"policies"`
	DryRuns    int       `json:"dryRuns,omitempty"` // of Policies
	Rules      int       `json:"rules"`
	Groups     int       `json:"groups"`
	Nodes      []Node    `json:"nodes"`
	// Leader is who answers, where it is one of several netmasters; nil: it is the only one.
	Leader *Leader `json:"leader,omitempty"`
	// History is which earlier states explanations can be asked of; nil: none.
	History *History `json:"history,omitempty"`
	// Problems are sentences, empty when all is well.
	Problems []string `json:"problems"`
	// NotEnforced is the number of pods that policies select and that Flowkeep did not attach.
	NotEnforced int `json:"notEnforced,omitempty"`
	// Unattached is a digest of the pods that Flowkeep did not attach; 0: there are none.
	Unattached uint32 `json:"unattached,omitempty"`
	// Ways are those between the Node of the question and each other node, by name; nil: no node was named.
	Ways []PeerWay `json:"ways,omitempty"`
}

// PeerWay is the way between a node and another one.
type PeerWay struct {
	Peer   string `json:"peer"`
	Way    string `json:"way"` // route or geneve
	Reason string `json:"reason,omitempty"`
}

// Leader is the netmaster that serves.
type Leader struct {
	Identity string `json:"identity"` // in the Lease
	Epoch    uint64 `json:"epoch"`
	// Standbys are the other netmasters that announce themselves, by identity.
	Standbys []Standby `json:"standbys,omitempty"`
	// StandbysUnknown is why it is not known who stands by; empty: it is.
	StandbysUnknown string `json:"standbysUnknown,omitempty"`
}

// Standby is a netmaster that another one leads.
type Standby struct {
	Identity string `json:"identity"` // in the Lease, if it comes to lead
	Version  string `json:"version"`
	// NotReady is why it could not take over; empty: it could.
	NotReady string `json:"notReady,omitempty"`
}

// DryRunsText goes on where policies in force are counted; empty if none is in a dry run.
func (s *Status) DryRunsText() string {
	if s.DryRuns == 0 {
		return ""
	}
	return fmt.Sprintf(", %d in a dry run", s.DryRuns)
}

// Node is a node in Status.
type Node struct {
	Name      string      `json:"name"`
	Connected bool        `json:"connected"`
	Since     time.Time   `json:"since"`
	Version   string      `json:"version,omitempty"`
	Sent      uint64      `json:"sent"`
	Realised  uint64      `json:"realised"`
	Pending   int         `json:"pending"`
	Rules     int         `json:"rules"`
	Groups    int         `json:"groups"`
	Errors    []string    `json:"errors,omitempty"`
	Refused   string      `json:"refused,omitempty"` // why it is not connected, if it tried
	Own       *NodeStatus `json:"own,omitempty"`     // what the node says of itself
}

// Policy is one in the answer to AskPolicies; AppliedTo and Rules only if one was asked for by ID, or Rules were.
type Policy struct {
	Namespace  string       `json:"namespace"`
	Name       string       `json:"name"`
	Generation int64        `json:"generation"`
	Mode       string       `json:"mode"` // enforce or dry-run
	Selector   string       `json:"selector"`
	Directions []string     `json:"directions"`
	Pods       int          `json:"pods"` // that it applies to
	AppliedTo  []string     `json:"appliedTo,omitempty"`
	MorePods   int          `json:"morePods,omitempty"` // how many pods are not listed in AppliedTo
	Nodes      []PolicyNode `json:"nodes"`
	InForce    *InForce     `json:"inForce,omitempty"` // nil: Nodes are listed
	Rules      []Rule       `json:"rules,omitempty"`
	Problems   []string     `json:"problems,omitempty"`
}

// InForce counts the nodes of a policy, and those of them that have it in force.
type InForce struct {
	Realised int `json:"realised"`
	Nodes    int `json:"nodes"`
}

// CountNodes counts nodes by whether they have their policy in force.
func CountNodes(nodes []PolicyNode) InForce {
	c := InForce{Nodes: len(nodes)}
	for i := range nodes {
		if nodes[i].State == "realised" {
			c.Realised++
		}
	}
	return c
}

// PolicyNode is whether a node has the policy in force.
type PolicyNode struct {
	Name  string `json:"name"`
	State string `json:"state"` // realised, pending, failed, away or partial
	// Errors are why it failed. What the rules concerned would have let through is denied.
	Errors []string `json:"errors,omitempty"`
	// Reason is why it is not realised, where Errors do not say.
	Reason string `json:"reason,omitempty"`
	// Leaving: the policy applies to no pod there now; the node has yet to drop the rules that it has of it.
	Leaving bool `json:"leaving,omitempty"`
	// Pods are the first pods of the policy that a partial node does not enforce it for, as Flowkeep did not attach
	// them; of a pending node, those that it may still announce.
	Pods []string `json:"pods,omitempty"`
	// MorePods is the number of such pods that are not listed.
	MorePods int `json:"morePods,omitempty"`
}

// PodsText returns the names of Pods, in one line.
func (n *PolicyNode) PodsText() string {
	text := strings.Join(n.Pods, ", ")
	if n.MorePods > 0 {
		text += fmt.Sprintf(" and %d more", n.MorePods)
	}
	return text
}

// Rule is a resolved rule.
type Rule struct {
	Key       policy.Key `json:"key"`
	Direction string     `json:"direction"`
	Index     int        `json:"index"`
	AppliedTo string     `json:"appliedTo"`
	Peers     []Peer     `json:"peers,omitempty"`
	Ports     string     `json:"ports"`
}

// Peer is one of a rule's peers.
type Peer struct {
	Text      string   `json:"text"`
	Endpoints []string `json:"endpoints,omitempty"`
	More      int      `json:"more,omitempty"` // how many pods are not listed in Endpoints
}

// Endpoint is one in the answer to AskEndpoints.
type Endpoint struct {
	Namespace string             `json:"namespace"`
	Name      string             `json:"name"`
	Node      string             `json:"node"`
	Addresses []netip.Addr       `json:"addresses"`
	Labels    map[string]string  `json:"labels,omitempty"`
	Ports     []policy.NamedPort `json:"ports,omitempty"`
	State     string             `json:"state"`
	Remedy    string             `json:"remedy,omitempty"` // of the state "not wired"
	Ingress   []string           `json:"isolatedForIngressBy,omitempty"`
	Egress    []string           `json:"isolatedForEgressBy,omitempty"`
}

// DB answers AskDB.
type DB struct {
	Revision   uint64   `json:"revision"`
	Namespaces int      `json:"namespaces"`
	Endpoints  int      `json:"endpoints"`
	Policies   int      `json:"policies"`
	Rules      int      `json:"rules"`
	Groups     int      `json:"groups"`
	Waiting    int      `json:"waiting"`
	SetAside   string   `json:"setAside,omitempty"`
	Error      string   `json:"error,omitempty"`
	Problems   []string `json:"problems"`
}

// Cuts answers AskCuts, of one node or of all.
type Cuts struct {
	Nodes []NodeCuts `json:"nodes"`
}

// Lookup answers AskLookup.
type Lookup struct {
	Source    string   `json:"source"`
	Revision  uint64   `json:"revision"`
	Endpoints []string `json:"endpoints"`
}

// MaxMessage bounds a message, in bytes.
const MaxMessage = 256 << 20

// Codec is the content-subtype of the calls.
const Codec = "flowkeep-inspect-json"

type codec struct{}

func (codec) Marshal(v any) ([]byte, error)   { return json.Marshal(v) }
func (codec) Unmarshal(b []byte, v any) error { return json.Unmarshal(b, v) }
func (codec) Name() string                    { return Codec }

func init() { encoding.RegisterCodec(codec{}) }

// Server answers questions.
type Server interface {
	Ask(context.Context, *Question) (*Answer, error)
}

// Follower is a Server with streams of responses, until the client leaves or there is nothing more to send.
type Follower interface {
	Follow(ctx context.Context, q *Question, send func(*Answer) error) error
}

const (
	serviceName  = "flowkeep.inspect.v1.Inspect"
	method       = "/" + serviceName + "/Ask"
	followMethod = "/" + serviceName + "/Follow"
)

var serviceDesc = grpc.ServiceDesc{
	ServiceName: serviceName,
	HandlerType: (*Server)(nil),
	Streams:     []grpc.StreamDesc{followDesc},
	Methods: []grpc.MethodDesc{{MethodName: "Ask", Handler: func(srv any, ctx context.Context, dec func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		q := new(Question)
		if err := dec(q); err != nil {
			return nil, err
		}
		return srv.(Server).Ask(ctx, q)
	}}},
}

var followDesc = grpc.StreamDesc{StreamName: "Follow", ServerStreams: true, Handler: func(srv any, stream grpc.ServerStream) error {
	q := new(Question)
	if err := stream.RecvMsg(q); err != nil {
		return err
	}
	f, ok := srv.(Follower)
	if !ok {
		return status.Error(codes.Unimplemented, "this netmaster has no streams")
	}
	return f.Follow(stream.Context(), q, func(a *Answer) error { return stream.SendMsg(a) })
}}

// Register adds the API to a gRPC server.
func Register(r grpc.ServiceRegistrar, s Server) { r.RegisterService(&serviceDesc, s) }

// Ask asks and decodes the answer.
func Ask[T any](ctx context.Context, conn grpc.ClientConnInterface, q Question) (T, error) {
	var out T
	a, err := AskRaw(ctx, conn, &q)
	if err == nil {
		err = json.Unmarshal(a.Body, &out)
	}
	return out, err
}

// AskRaw puts a question and returns the answer as it came.
func AskRaw(ctx context.Context, conn grpc.ClientConnInterface, q *Question) (*Answer, error) {
	a := new(Answer)
	if err := conn.Invoke(ctx, method, q, a, grpc.CallContentSubtype(Codec), grpc.MaxCallRecvMsgSize(MaxMessage)); err != nil {
		return nil, err
	}
	return a, nil
}

// Follow asks for a stream and hands each answer's body on, until each fails, ctx ends or there is no more.
func Follow(ctx context.Context, conn grpc.ClientConnInterface, q Question, each func(json.RawMessage) error) error {
	return FollowRaw(ctx, conn, &q, func(a *Answer) error { return each(a.Body) })
}

// FollowRaw does the same as Follow, with undecoded responses.
func FollowRaw(ctx context.Context, conn grpc.ClientConnInterface, q *Question, each func(*Answer) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := conn.NewStream(ctx, &followDesc, followMethod, grpc.CallContentSubtype(Codec), grpc.MaxCallRecvMsgSize(MaxMessage))
	if err != nil {
		return err
	}
	if err := errors.Join(stream.SendMsg(q), stream.CloseSend()); err != nil {
		return err
	}
	for {
		a := new(Answer)
		switch err := stream.RecvMsg(a); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if err := each(a); err != nil {
			return err
		}
	}
}
