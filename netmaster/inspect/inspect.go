// Package inspect answers netctl: what is enforced, where, and from which policy.
package inspect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/internal/mtls"
	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/netmaster/feed"
	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/policydb/labelcache"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/store"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// Owner runs a function on the engine's own goroutine.
type Owner interface {
	Do(ctx context.Context, f func(*resolve.Engine)) error
}

// Nodes is the feed's view of the nodes.
type Nodes interface {
	Nodes() []feed.NodeStatus
	Query(ctx context.Context, node string, body []byte) ([]byte, error)
}

// Config is what a server needs.
type Config struct {
	Owner    Owner
	Nodes    Nodes
	Store    *store.Store
	Cache    *labelcache.Cache
	Version  string
	Problems func() []string // of the process, sentences
	// Labels counts up with everything that can change which endpoints a selector chooses.
	Labels func() uint64
}

// Server implements the API. Only administrators' certificates may ask.
type Server struct {
	cfg     Config
	started time.Time
}

// NewServer makes a server.
func NewServer(cfg Config) *Server { return &Server{cfg, time.Now()} }

// Ask answers one question.
func (s *Server) Ask(ctx context.Context, q *inspect.Question) (*inspect.Answer, error) {
	if err := authorise(ctx); err != nil {
		return nil, err
	}
	answers := map[string]func(context.Context, *inspect.Question) (any, error){
		inspect.AskStatus: s.status, inspect.AskPolicies: s.policies, inspect.AskEndpoints: s.endpoints, inspect.AskFlows: s.flows,
		inspect.AskDB: s.db, inspect.AskCache: s.cache, inspect.AskLookup: s.lookup,
	}
	f := answers[q.Kind]
	if f == nil {
		return nil, status.Errorf(codes.Unimplemented, "this netmaster (%s) does not know the question %q: netctl is newer", s.cfg.Version, q.Kind)
	}
	v, err := f(ctx, q)
	if err != nil {
		if _, ok := status.FromError(err); ok {
			return nil, err
		}
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	body, err := json.Marshal(v)
	return &inspect.Answer{Body: body}, err
}

func authorise(ctx context.Context) error {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return status.Error(codes.Unauthenticated, "no peer")
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.PeerCertificates) == 0 || !mtls.Admin(info.State.PeerCertificates[0]) {
		return status.Error(codes.PermissionDenied, "this certificate is not an administrator's: netmaster pki issue --admin makes one")
	}
	return nil
}

// nodeTimeout bounds how long status waits for the nodes' own words.
const nodeTimeout = 2 * time.Second

func (s *Server) status(ctx context.Context, _ *inspect.Question) (any, error) {
	out := inspect.Status{Version: s.cfg.Version, Started: s.started, Problems: append([]string{}, s.cfg.Problems()...), Nodes: []inspect.Node{}}
	err := s.cfg.Owner.Do(ctx, func(e *resolve.Engine) {
		c := e.Counts()
		out.Revision, out.Namespaces, out.Endpoints, out.Policies, out.Rules, out.Groups = e.Revision(), c.Namespaces, c.Endpoints, c.Policies, c.Rules, c.Groups
	})
	if err != nil {
		return nil, err
	}
	for _, n := range s.cfg.Nodes.Nodes() {
		node := inspect.Node{Name: n.Name, Connected: n.Connected, Since: n.Since, Version: n.Version, Sent: n.Sent, Realised: n.Realised,
			Pending: n.Pending, Rules: n.Rules, Groups: n.Groups, Refused: n.Refused}
		for i := range n.Errors {
			node.Errors = append(node.Errors, errorText(&n.Errors[i]))
		}
		out.Nodes = append(out.Nodes, node)
	}
	silent := s.askNodes(ctx, out.Nodes)
	out.Problems = append(out.Problems, nodeProblems(out.Nodes, silent)...)
	return out, nil
}

// askNodes fills in what each node says of itself. Of those that say nothing it returns why, by the place in the list.
func (s *Server) askNodes(ctx context.Context, nodes []inspect.Node) []error {
	ctx, cancel := context.WithTimeout(ctx, nodeTimeout)
	defer cancel()
	silent := make([]error, len(nodes))
	var all sync.WaitGroup
	for i := range nodes {
		if !nodes[i].Connected {
			continue
		}
		all.Go(func() {
			body, err := s.queryNode(ctx, nodes[i].Name, inspect.NodeQuery{Kind: inspect.QueryStatus})
			own := new(inspect.NodeStatus)
			if err == nil {
				err = json.Unmarshal(body, own)
			}
			if err == nil {
				nodes[i].Own = own
			}
			silent[i] = err
		})
	}
	all.Wait()
	return silent
}

func nodeProblems(nodes []inspect.Node, silent []error) []string {
	var out []string
	for i, n := range nodes {
		switch {
		case !n.Connected && n.Refused != "":
			out = append(out, fmt.Sprintf("node %s is refused and enforces what it last had: %s", n.Name, n.Refused))
		case !n.Connected:
			out = append(out, fmt.Sprintf("node %s is not connected; it enforces what it last had", n.Name))
		case silent[i] != nil:
			out = append(out, fmt.Sprintf("node %s is connected and does not say how it is: %v", n.Name, silent[i]))
		case n.Own != nil && !n.Own.SwitchConnected:
			out = append(out, fmt.Sprintf("node %s has no connection to its Open vSwitch", n.Name))
		}
		for _, e := range n.Errors {
			out = append(out, fmt.Sprintf("node %s: %s", n.Name, e))
		}
	}
	return out
}

// leave is the share of a question's time that is kept for saying who did not answer.
const leave = 10

// inTime ends a little before ctx, so that the answer that there is none still reaches who asked.
func inTime(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, deadline.Add(-time.Until(deadline)/leave))
}

func (s *Server) queryNode(ctx context.Context, node string, q inspect.NodeQuery) ([]byte, error) {
	body, err := json.Marshal(q)
	if err != nil {
		return nil, err
	}
	return s.cfg.Nodes.Query(ctx, node, body)
}

func (s *Server) policies(ctx context.Context, q *inspect.Question) (any, error) {
	nodes := map[string]feed.NodeStatus{}
	for _, n := range s.cfg.Nodes.Nodes() {
		nodes[n.Name] = n
	}
	out := []inspect.Policy{}
	err := s.cfg.Owner.Do(ctx, func(e *resolve.Engine) {
		for _, id := range e.Policies() {
			if q.ID != "" && q.ID != id || q.Namespace != "" && !strings.HasPrefix(id, q.Namespace+"/") {
				continue
			}
			if v, ok := e.Policy(id); ok {
				out = append(out, policyOf(&v, nodes, q.ID != ""))
			}
		}
	})
	if err == nil && q.ID != "" && len(out) == 0 {
		err = status.Errorf(codes.NotFound, "there is no policy %s", q.ID)
	}
	return out, err
}

func policyOf(v *resolve.PolicyView, nodes map[string]feed.NodeStatus, rules bool) inspect.Policy {
	p := inspect.Policy{Namespace: v.Policy.Namespace, Name: v.Policy.Name, Generation: v.Policy.Generation, Selector: v.Policy.AppliedTo.String(),
		AppliedTo: append([]string{}, v.AppliedTo...), Problems: v.Policy.Problems, Nodes: []inspect.PolicyNode{}, Directions: []string{}}
	if v.Policy.IsolatesIngress {
		p.Directions = append(p.Directions, "ingress")
	}
	if v.Policy.IsolatesEgress {
		p.Directions = append(p.Directions, "egress")
	}
	for _, name := range v.Nodes {
		errs := concerning(nodes[name].Errors, v.Rules)
		p.Nodes = append(p.Nodes, inspect.PolicyNode{Name: name, State: nodeState(nodes[name], len(errs) > 0), Errors: errs})
	}
	if rules {
		for i := range v.Rules {
			p.Rules = append(p.Rules, ruleOf(&v.Rules[i]))
		}
	}
	return p
}

// concerning are the errors that speak of one of these rules, or of all.
func concerning(errs []wire.RuleError, rules []resolve.RuleView) []string {
	var out []string
	for i := range errs {
		if slices.ContainsFunc(rules, func(r resolve.RuleView) bool { return errs[i].Concerns(r.Rule.Key) }) {
			out = append(out, errs[i].Message)
		}
	}
	return out
}

// errorText tells whom an error concerns, and what it is.
func errorText(e *wire.RuleError) string {
	var policies []string
	for _, o := range e.Origins {
		if !slices.Contains(policies, o.Policy) {
			policies = append(policies, o.Policy)
		}
	}
	const most = 3
	if n := len(policies); n > most {
		policies = append(policies[:most], fmt.Sprintf("%d more", n-most))
	}
	if len(policies) == 0 {
		return e.Message
	}
	return strings.Join(policies, ", ") + ": " + e.Message
}

func nodeState(n feed.NodeStatus, failed bool) string {
	switch {
	case !n.Connected:
		return "away"
	case failed:
		return "failed"
	case n.Pending > 0 || n.Realised < n.Sent:
		return "pending"
	}
	return "realised"
}

func ruleOf(v *resolve.RuleView) inspect.Rule {
	r := inspect.Rule{Key: v.Rule.Key, Direction: v.Rule.Direction.String(), Index: v.Index, AppliedTo: v.Target.Text, Ports: portsText(&v.Rule)}
	if v.Rule.AnyPeer {
		r.Peers = append(r.Peers, inspect.Peer{Text: "everyone"})
	}
	for _, g := range v.Peers {
		r.Peers = append(r.Peers, inspect.Peer{Text: g.Text, Endpoints: g.Members})
	}
	for _, b := range v.Rule.Blocks {
		text := b.CIDR.String()
		if len(b.Except) > 0 {
			text += fmt.Sprintf(" except %s", join(b.Except))
		}
		r.Peers = append(r.Peers, inspect.Peer{Text: text})
	}
	return r
}

func join(prefixes []netip.Prefix) string {
	texts := make([]string, len(prefixes))
	for i, p := range prefixes {
		texts[i] = p.String()
	}
	return strings.Join(texts, ", ")
}

func portsText(r *policy.Rule) string {
	if r.AnyPort {
		return "all"
	}
	var texts []string
	for _, p := range r.Ports {
		switch {
		case p.First == p.Last:
			texts = append(texts, fmt.Sprintf("%s/%d", p.Protocol, p.First))
		case p.First == 0 && p.Last == 65535:
			texts = append(texts, p.Protocol.String())
		default:
			texts = append(texts, fmt.Sprintf("%s/%d-%d", p.Protocol, p.First, p.Last))
		}
	}
	return strings.Join(texts, ",")
}

func (s *Server) endpoints(ctx context.Context, q *inspect.Question) (any, error) {
	out := []inspect.Endpoint{}
	err := s.cfg.Owner.Do(ctx, func(e *resolve.Engine) {
		for _, id := range e.Endpoints() {
			if q.ID != "" && q.ID != id || q.Namespace != "" && !strings.HasPrefix(id, q.Namespace+"/") {
				continue
			}
			if v, ok := e.Endpoint(id); ok {
				out = append(out, endpointOf(&v))
			}
		}
	})
	if err == nil && q.ID != "" && len(out) == 0 {
		err = status.Errorf(codes.NotFound, "there is no pod %s", q.ID)
	}
	return out, err
}

func endpointOf(v *resolve.EndpointView) inspect.Endpoint {
	e := v.Endpoint
	return inspect.Endpoint{Namespace: e.Namespace, Name: e.Name, Node: v.Node, Addresses: append([]netip.Addr{}, v.Addresses...), Labels: e.Labels, Ports: e.Ports,
		State: endpointState(v), Ingress: v.Ingress, Egress: v.Egress}
}

func endpointState(v *resolve.EndpointView) string {
	switch {
	case v.Endpoint.HostNetwork:
		return "host network"
	case len(v.Contested) > 0:
		return "contested address"
	case v.Endpoint.Finished && !v.Announced:
		return "finished"
	case len(v.Addresses) == 0:
		return "no address"
	case v.Announced:
		return "wired"
	}
	return "known"
}

func (s *Server) flows(ctx context.Context, q *inspect.Question) (any, error) {
	query := inspect.NodeQuery{Kind: inspect.QueryFlows}
	var rules []resolve.RuleView
	if q.ID != "" {
		var p resolve.PolicyView
		found := false
		if err := s.cfg.Owner.Do(ctx, func(e *resolve.Engine) { p, found = e.Policy(q.ID) }); err != nil {
			return nil, err
		}
		if !found {
			return nil, status.Errorf(codes.NotFound, "there is no policy %s", q.ID)
		}
		rules, query.Rules = p.Rules, []policy.Key{}
		for i := range rules {
			query.Rules = append(query.Rules, rules[i].Rule.Key)
		}
	}
	ctx, cancel := inTime(ctx)
	defer cancel()
	body, err := s.queryNode(ctx, q.Node, query)
	if err != nil {
		return nil, err
	}
	var out inspect.NodeFlows
	if err := json.Unmarshal(body, &out); err != nil {
		return nil, fmt.Errorf("the answer of node %s: %w", q.Node, err)
	}
	for i := range out.Flows {
		nameOrigins(&out.Flows[i], q.ID, rules)
	}
	return &out, nil
}

// nameOrigins sees to it that a flow names the policy that was asked for: nodes know only the first few of a rule's origins.
func nameOrigins(f *inspect.Flow, id string, rules []resolve.RuleView) {
	for i := range rules {
		o := policy.Origin{Policy: id, Rule: rules[i].Index}
		if slices.Contains(f.Rules, rules[i].Rule.Key) && !slices.Contains(f.Origins, o) {
			f.Origins = append(f.Origins, o)
			f.Note += ", " + id + " and others"
		}
	}
}

func (s *Server) db(context.Context, *inspect.Question) (any, error) {
	out := inspect.DB{SetAside: s.cfg.Store.SetAside(), Problems: []string{}}
	if waiting, err := s.cfg.Store.Problem(); err != nil {
		out.Error, out.Waiting = err.Error(), waiting
	} else {
		out.Waiting = waiting
	}
	c, err := s.cfg.Store.Load()
	if err != nil {
		return nil, errors.New("read the policy DB: " + err.Error())
	}
	out.Revision, out.Namespaces, out.Endpoints, out.Policies = c.Revision, len(c.Namespaces), len(c.Endpoints), len(c.Policies)
	out.Rules, out.Groups = len(c.Rules), len(c.Groups)
	out.Problems = append(out.Problems, c.Check()...)
	return out, nil
}

func (s *Server) cache(context.Context, *inspect.Question) (any, error) {
	return inspect.Cache(s.cfg.Cache.Stats()), nil
}

func (s *Server) lookup(ctx context.Context, q *inspect.Question) (any, error) {
	if q.Selector == nil || q.Namespace == "" {
		return nil, status.Error(codes.InvalidArgument, "a look-up needs a namespace and a selector")
	}
	spec := policy.GroupSpec{Namespace: q.Namespace, Pods: q.Selector}
	e, source, err := s.cfg.Cache.Get(ctx, labelcache.Key(&spec), s.cfg.Labels(), func(ctx context.Context) (entry labelcache.Entry, err error) {
		err = s.cfg.Owner.Do(ctx, func(e *resolve.Engine) {
			entry = labelcache.Entry{Revision: s.cfg.Labels(), Endpoints: e.Select(spec)}
		})
		return entry, err
	})
	return inspect.Lookup{Source: string(source), Revision: e.Revision, Endpoints: append([]string{}, e.Endpoints...)}, err
}
