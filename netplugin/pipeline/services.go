package pipeline

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/service"
)

// services is what the compiler knows of Services, and the flows of each.
type services struct {
	known  map[string]*knownService
	ids    *idPool
	claims claims
	// owners has the flows of each key by the Services that want them, sorted by these: the first one's is in force.
	// Services share alone flows that are the same for all of them, for a frontend is of one Service.
	owners map[flowKey][]ownedFlow
	used   map[policy.Key]int // Services that use an id
	// restoring keeps saved ids that are not used yet: until all Services are in, others may have their frontends.
	restoring bool
	// serving counts the Services of which an endpoint over UDP serves a frontend; for those in stale it serves no
	// more.
	serving map[served]int
	stale   []served
	// refused are the flows that the switch does not take, without the Services that were compiled while it did not.
	refused map[flowKey][]refusal
	without []string
}

type knownService struct {
	service *service.Service
	slices  []*service.Slice
	keys    []flowKey
	ids     []policy.Key
	serving []served

	left     []int // frontends that are not translated, as indices of Frontends
	problems []string
}

type ownedFlow struct {
	owner string
	flow  ofctl.Flow
}

func newServices(saved []Assignment, log *[]Assignment) services {
	s := services{
		known:  map[string]*knownService{},
		ids:    newIDPool(ServiceIDs, log),
		claims: newClaims(),
		owners: map[flowKey][]ownedFlow{},
		used:   map[policy.Key]int{},

		restoring: len(saved) > 0,

		serving: map[served]int{},
		refused: map[flowKey][]refusal{},
	}
	s.ids.restore(saved)
	return s
}

// PutService replaces what is known of a Service, and returns the parts that are not translated, for people. What is
// translated of other Services may change: ServiceProblems has it. The Service must not be modified afterwards.
func (c *Compiler) PutService(s *service.Service, all []*service.Slice) (problems []string) {
	id := s.ID()
	k := c.services.known[id]
	if k == nil {
		k = &knownService{}
		c.services.known[id] = k
	}
	concerned := c.services.claims.update(id, k.service, s)
	k.service, k.slices = s, all
	c.compileService(id, k)
	c.settleClaims(slices.Sorted(maps.Keys(concerned)))
	return c.problemsOf(k)
}

// problemsOf returns which parts of a Service are not translated, for people.
func (c *Compiler) problemsOf(k *knownService) []string {
	out := append(c.services.claims.refusals(&c.config, k), k.problems...)
	return out[:min(len(out), maxProblems)]
}

// ServiceProblems returns what PutService would return for each Service with problems, by its ID.
func (c *Compiler) ServiceProblems() map[string][]string {
	out := map[string][]string{}
	for id, k := range c.services.known {
		if problems := c.problemsOf(k); len(problems) > 0 {
			out[id] = problems
		}
	}
	return out
}

// RemoveService removes a Service by its ID.
func (c *Compiler) RemoveService(id string) {
	k := c.services.known[id]
	if k == nil {
		return
	}
	delete(c.services.known, id)
	concerned := c.services.claims.update(id, k.service, nil)
	c.replace(id, k, &serviceFlows{})
	c.settleClaims(slices.Sorted(maps.Keys(concerned)))
}

// HasService reports whether a Service is known, by its ID.
func (c *Compiler) HasService(id string) bool { return c.services.known[id] != nil }

// compileServices compiles all Services, after the configuration has changed.
func (c *Compiler) compileServices() {
	for _, id := range slices.Sorted(maps.Keys(c.services.known)) {
		c.compileService(id, c.services.known[id])
	}
}

func (c *Compiler) compileService(id string, k *knownService) {
	out := serviceFlows{cfg: &c.config, ids: c.services.ids, services: &c.services}
	k.left = nil
	if c.config.Services.Translated {
		k.left = c.services.claims.leftOut(&c.config, k.service)
		out.service(k.service, k.slices, k.left)
	}
	k.problems = out.problems
	c.replace(id, k, &out)
}

// replace changes the flows of a Service to others. An id is given back when no Service uses it, but for saved ones
// before ForgetUnusedServices.
func (c *Compiler) replace(id string, k *knownService, with *serviceFlows) {
	before, ids := k.keys, k.ids
	keep := map[flowKey]struct{}{} // not needed where there was nothing before
	k.keys, k.ids = make([]flowKey, 0, len(with.flows)), with.used
	for i := range with.flows {
		f := &with.flows[i]
		key := keyOf(f)
		if len(before) == 0 && c.services.owns(id, key) || has(keep, key) {
			continue // two frontends of the Service at one address and port
		}
		if len(before) > 0 {
			keep[key] = struct{}{}
		}
		k.keys = append(k.keys, key)
		c.own(id, key, f)
	}
	for _, key := range before {
		if !has(keep, key) {
			c.own(id, key, nil)
		}
	}
	c.services.serve(k, with.serving)
	for _, content := range k.ids {
		c.services.used[content]++
	}
	for _, content := range ids {
		if c.services.used[content]--; c.services.used[content] == 0 {
			delete(c.services.used, content)
			if !c.services.restoring {
				c.services.ids.put(content)
			}
		}
	}
}

// owns reports whether a Service wants a flow of a key.
func (s *services) owns(id string, key flowKey) bool {
	return slices.ContainsFunc(s.owners[key], func(o ownedFlow) bool { return o.owner == id })
}

// own enters a flow that a Service wants; nil: it wants none of this key.
func (c *Compiler) own(id string, key flowKey, f *ofctl.Flow) {
	list := c.services.owners[key]
	byOwner := func(o ownedFlow, id string) int { return strings.Compare(o.owner, id) }
	at, found := slices.BinarySearchFunc(list, id, byOwner)
	switch {
	case f == nil && found:
		list = slices.Delete(list, at, at+1)
	case f != nil && found:
		list[at].flow = *f
	case f != nil:
		list = slices.Insert(list, at, ownedFlow{id, *f})
	}
	if len(list) == 0 {
		delete(c.services.owners, key)
		c.flows.unset(key)
		return
	}
	c.services.owners[key] = list
	c.flows.set(list[0].flow)
}

// ForgetUnusedServices gives back the ids of pools and endpoints that no Service uses: call it once, when all Services
// that were known before a restart are in.
func (c *Compiler) ForgetUnusedServices() {
	used := map[policy.Key]bool{}
	for content := range c.services.used {
		used[content] = true
	}
	c.services.ids.retain(used)
	c.services.restoring = false
}

// LearnedFilter chooses the flows that IsLearned reports.
func LearnedFilter() ofctl.Filter {
	return ofctl.Filter{
		Table:  TableServiceLearned,
		Cookie: uint64(learnedCookie) << 32,
		Mask:   0xffffffff << 32,
	}
}

// KeepsClient reports whether a learned flow keeps a client with its endpoint; the others keep fragments together.
func KeepsClient(f *ofctl.Flow) bool { return IsLearned(f) && f.Priority == affinityPriority }

// IsLearned reports whether a flow was added by the switch itself, by a Learn action of a Service's flow.
func IsLearned(f *ofctl.Flow) bool {
	return f.Table == TableServiceLearned && uint32(f.Cookie>>32) == learnedCookie
}

// serviceFlows is the flows of one Service while they are made.
type serviceFlows struct {
	cfg      *Config
	ids      *idPool
	services *services
	flows    flowList
	used     []policy.Key
	serving  []served
	problems []string
}

func (o *serviceFlows) id(content string) uint32 {
	key := contentOf(content, nil)
	if !slices.Contains(o.used, key) {
		o.used = append(o.used, key)
	}
	return o.ids.get(key)
}

// maxProblems is how many problems of a Service are reported.
const maxProblems = 16

func (o *serviceFlows) problem(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if len(o.problems) < maxProblems && !slices.Contains(o.problems, text) {
		o.problems = append(o.problems, text)
	}
}

// service adds the flows of all frontends of a Service, without those that are left out. Those of one port that lead to
// the same endpoints share a pool.
func (o *serviceFlows) service(s *service.Service, all []*service.Slice, left []int) {
	made := map[string]pool{}
	at := service.Place{Node: o.cfg.Services.Node, Zone: o.cfg.Services.Zone}
	frontends := s.Frontends()
	for i := range frontends {
		if _, found := slices.BinarySearch(left, i); found {
			continue
		}
		f := &frontends[i]
		name := fmt.Sprintf("pool %s %s %d %d", s.ID(), f.Name, f.Protocol, f.Family)
		if f.Kind == service.ClusterIP && s.InternalLocal {
			name += " internal"
		}
		p, found := made[name]
		if !found {
			behind := service.Behind(f, all)
			p = o.pool(name, s, f, service.Choose(s, f, behind, at))
			made[name] = p
		}
		if f.Protocol == policy.UDP {
			o.serves(f, service.Behind(f, all))
		}
		o.frontend(s, f, &p)
	}
}

// frontend adds the flows that lead from an address and port, or a node port, to a pool.
func (o *serviceFlows) frontend(s *service.Service, f *service.Frontend, p *pool) {
	m := ofctl.Match{
		EtherType: familyType(f.Family),
		IPProto:   uint8(f.Protocol),
		TpDst:     ofctl.U16{Value: f.Port, Mask: 0xffff},
	}
	priority, to := uint16(100), m
	if f.Kind == service.NodePort {
		priority = 50
		m.Reg[regWay] = exactReg(byNodePort)
	} else {
		m.NwDst = single(f.Address)
		to = m
	}
	complete := true
	lookup := func(prio uint16, m ofctl.Match, actions ...ofctl.Action) {
		complete = o.place(p, TableServiceFrontend, prio, m, actions...) && complete
	}
	if sources := s.SourcesOf(f); len(sources) == 0 {
		lookup(priority, m, p.lead...)
	} else {
		lookup(priority, m)
		for _, from := range sources {
			m.NwSrc = from.Masked()
			lookup(priority+20, m, p.lead...)
		}
	}
	if f.Kind == service.NodePort {
		o.place(p, TableServiceNodePort, 100, to, o.enters(complete, visitNodePort()...)...)
	} else {
		o.external(p, f, to, complete)
	}
}

// enters returns the actions that lead to the frontend's flow, where there is one. Else the packets are rejected: no
// other flow of that table may take them.
func (o *serviceFlows) enters(complete bool, actions ...ofctl.Action) []ofctl.Action {
	if complete {
		return actions
	}
	return o.cfg.rejection()
}

// firstFragment matches first fragments alone.
var firstFragment = ofctl.U8{Value: ofctl.FragAny, Mask: ofctl.FragAny | ofctl.FragLater}

// external sends packets to an address outside of the ServiceCIDRs to the zone: at the ports of the Service alone.
func (o *serviceFlows) external(p *pool, f *service.Frontend, m ofctl.Match, complete bool) {
	if contains(o.cfg.ServiceCIDRs, f.Address) {
		return
	}
	visit := o.enters(complete, visitTranslation(ZoneTranslation, TableServiceState))
	o.place(p, TableService, 120, sourceIs(m, fromPod), visit...)
	for _, m := range portless(ofctl.Match{EtherType: m.EtherType, NwDst: m.NwDst}) {
		// Behind those of nodes' addresses: such packets may be to node ports.
		o.place(&pool{}, TableService, 105, sourceIs(m, fromPod), visitTranslation(ZoneTranslation, TableServiceState))
	}
}

// pool is endpoints among which new connections are divided.
type pool struct {
	id   uint32
	lead []ofctl.Action // from a frontend to one of them
}

// maxAffinity is the longest hard timeout of a flow.
const maxAffinity = 0xffff

// pool adds the flows that choose one of the endpoints.
func (o *serviceFlows) pool(name string, s *service.Service, f *service.Frontend, choice service.Choice) pool {
	if choice.Outcome == service.Translated && o.refusesSCTP(s, f, choice.Backends) {
		choice.Outcome = service.Rejected
	}
	switch {
	case choice.Outcome == service.Rejected:
		return pool{lead: o.cfg.rejection()}
	case choice.Outcome == service.Dropped || len(choice.Backends) == 0:
		return pool{}
	}
	p := pool{id: o.id(name)}
	backends := choice.Backends
	if n, most := len(backends), service.Slots(len(backends)); n > most {
		o.problem("port %q has %d endpoints: %d of them are used", f.Name, n, most)
	}
	affinity := uint16(min(s.Affinity.Seconds(), maxAffinity))
	p.lead = []ofctl.Action{setReg(regPool, p.id)}
	if affinity > 0 {
		p.lead = append(p.lead, resubmit(TableServiceLearned))
	}
	p.lead = append(p.lead, goTo(TableServiceChoice))
	var among endpoints
	start := len(o.flows)
	for i := range backends {
		at := len(o.flows)
		id := o.backend(f, &backends[i])
		if affinity > 0 {
			o.sticky(&p, f, &backends[i], id, affinity)
		}
		if err := o.since(at); err != nil {
			o.flows = o.flows[:at]
			o.problem("endpoint %s is left out: %v", backends[i].AddrPort(), err)
			continue
		}
		among.ids = append(among.ids, id)
		among.addresses = append(among.addresses, backends[i].AddrPort())
	}
	if len(among.ids) == 0 {
		return pool{id: p.id, lead: o.cfg.rejection()}
	}
	err := o.choice(&p, f, &among, affinity > 0)
	if err == nil {
		err = o.since(start)
	}
	if err != nil {
		o.flows = o.flows[:start]
		o.problem("port %q is rejected: %v", f.Name, err)
		return pool{id: p.id, lead: o.cfg.rejection()}
	}
	return p
}

// refusesSCTP reports a Service whose ports the datapath cannot translate.
func (o *serviceFlows) refusesSCTP(s *service.Service, f *service.Frontend, backends []service.Backend) bool {
	if f.Protocol != policy.SCTP || o.cfg.Services.SCTPPorts {
		return false
	}
	for i := range s.Ports {
		p := &s.Ports[i]
		if p.Protocol == policy.SCTP && p.Name == f.Name && (p.NodePort != 0 || otherPort(p.Port, backends)) {
			o.problem("port %q: the datapath does not translate ports of SCTP", f.Name)
			return true
		}
	}
	return false
}

func otherPort(port uint16, backends []service.Backend) bool {
	return slices.ContainsFunc(backends, func(b service.Backend) bool { return b.Port != port })
}

// backend adds the translation to an endpoint, which all Services share that lead there, and returns its id.
func (o *serviceFlows) backend(f *service.Frontend, b *service.Backend) uint32 {
	id := o.id(fmt.Sprintf("endpoint %d %s", f.Protocol, b.AddrPort()))
	m := ofctl.Match{EtherType: familyType(f.Family), IPProto: uint8(f.Protocol)}
	m.Reg[regBackend] = exactReg(id)
	o.flows.add(KindBackend, id, TableServiceEndpoint, 50, m, o.lead(f, b)...)
	o.flows.add(KindBackend, id, TableServiceCommit, 50, o.isLed(f, b), o.commit(f, b)...)
	if o.fragments(f) {
		later := m
		later.IPFrag = ofctl.LaterFragments
		if f.Family == service.IPv6 {
			later.IPProto = 0 // it is that of the fragment header
		}
		o.flows.add(KindBackend, id, TableServiceEndpoint, 60, later, o.translate(f, b)...)
	}
	if first, follow := o.firstFragments(f, m); follow != nil {
		o.flows.add(KindBackend, id, TableServiceEndpoint, 110, first, append(follow, o.translate(f, b)...)...)
	}
	return id
}

// firstFragments narrows a match to first fragments, and returns the actions that have those behind them go to the same
// endpoint; nil where the datapath or the protocol has no need.
func (o *serviceFlows) firstFragments(f *service.Frontend, m ofctl.Match) (ofctl.Match, []ofctl.Action) {
	if !o.fragments(f) {
		return m, nil
	}
	m.IPFrag = firstFragment
	fields := ofctl.LearnSrc | ofctl.LearnDst | learnFamily(f)
	if f.Family == service.IPv4 {
		fields |= ofctl.LearnProto // in IPv6 later fragments have that of the fragment header
	}
	learn := ofctl.LearnFlow(ofctl.Learned{
		Table:       TableServiceLearned,
		Priority:    50,
		HardTimeout: fragmentsTimeout,
		CookieHigh:  learnedCookie,
		Fields:      fields,
		Match:       1 << regWay,
		Load:        1 << regBackend,
	})
	return m, []ofctl.Action{setReg(regWay, bySameAddress), learn}
}

// fragmentsTimeout is how long, in seconds, later fragments follow a first one: longer than a megaflow lives unused, so
// that no first fragment passes by one whose learned flow has ended.
const fragmentsTimeout = 60

// affinityPriority is that of learned flows that keep clients with their endpoints.
const affinityPriority = 100

// learnedCookie is the upper half of the cookie of learned flows.
const learnedCookie = uint32(cookieMagic<<24 | cookieLayout<<16 | uint64(KindLearned)<<8)

// sticky keeps a client with an endpoint, for as long after its last new connection as the Service says.
func (o *serviceFlows) sticky(p *pool, f *service.Frontend, b *service.Backend, id uint32, timeout uint16) {
	m := ofctl.Match{EtherType: familyType(f.Family), IPProto: uint8(f.Protocol)}
	m.Reg[regPool], m.Reg[regBackend] = exactReg(p.id), exactReg(id)
	o.flows.add(KindBackend, id, TableServiceChoice, 100, m, goTo(TableServiceEndpoint))
	learn := ofctl.LearnFlow(ofctl.Learned{
		Table:       TableServiceLearned,
		Priority:    affinityPriority,
		HardTimeout: timeout,
		CookieHigh:  learnedCookie,
		Fields:      ofctl.LearnSrc | learnFamily(f),
		Match:       1 << regPool,
		Load:        1 << regBackend,
	})
	o.flows.add(KindBackend, id, TableServiceEndpoint, 100, m, append([]ofctl.Action{learn}, o.lead(f, b)...)...)
	if first, follow := o.firstFragments(f, m); follow != nil {
		actions := slices.Concat(follow, []ofctl.Action{learn}, o.translate(f, b))
		o.flows.add(KindBackend, id, TableServiceEndpoint, 120, first, actions...)
	}
}

// fragments reports whether connections of the protocol may open with fragments that the datapath lets go of.
func (o *serviceFlows) fragments(f *service.Frontend) bool {
	return o.cfg.Services.Held && f.Protocol != policy.TCP
}

// destination returns what a packet to an endpoint gets as its destination; the port is 0 where it keeps its own.
func (o *serviceFlows) destination(f *service.Frontend, b *service.Backend) netip.AddrPort {
	if f.Protocol == policy.SCTP && !o.cfg.Services.SCTPPorts {
		return netip.AddrPortFrom(b.Address, 0)
	}
	return b.AddrPort()
}

// lead returns the way of a new connection to an endpoint: policies see the endpoint's address and port, and the
// Service's are kept for the commit.
func (o *serviceFlows) lead(f *service.Frontend, b *service.Backend) []ofctl.Action {
	to, proto := o.destination(f, b), uint8(f.Protocol)
	actions := []ofctl.Action{{Kind: ofctl.Push, Clauses: uint8(f.Family)}}
	if to.Port() != 0 {
		actions = append(actions, ofctl.Action{Kind: ofctl.Push, Clause: proto})
	}
	actions = append(actions, ofctl.SetDestination(proto, to)...)
	return append(actions, ofctl.Action{Kind: ofctl.SetEthSrc, MAC: chosenMAC}, goTo(TableServiceTranslated))
}

// isLed matches the packets of lead where policies have let them through.
func (o *serviceFlows) isLed(f *service.Frontend, b *service.Backend) ofctl.Match {
	to := o.destination(f, b)
	m := ofctl.Match{EtherType: familyType(f.Family), IPProto: uint8(f.Protocol), NwDst: single(b.Address)}
	if to.Port() != 0 {
		m.TpDst = ofctl.U16{Value: to.Port(), Mask: 0xffff}
	}
	return m
}

// commit returns the commit of a connection whose packet lead led.
func (o *serviceFlows) commit(f *service.Frontend, b *service.Backend) []ofctl.Action {
	var actions []ofctl.Action
	if o.destination(f, b).Port() != 0 {
		actions = append(actions, ofctl.Action{Kind: ofctl.Pop, Clause: uint8(f.Protocol)})
	}
	return append(append(actions, ofctl.Action{Kind: ofctl.Pop, Clauses: uint8(f.Family)}), o.translate(f, b)...)
}

// translate returns the commit of a connection to an endpoint.
func (o *serviceFlows) translate(f *service.Frontend, b *service.Backend) []ofctl.Action {
	to := o.destination(f, b)
	return append(noClasses(), ofctl.Translate(ZoneTranslation, TableServiceTranslated, ofctl.NatDst, to))
}

func learnFamily(f *service.Frontend) ofctl.LearnFields {
	if f.Family == service.IPv6 {
		return ofctl.LearnIPv6
	}
	return 0
}

func familyType(f service.Family) uint16 {
	if f == service.IPv6 {
		return ofctl.EtherIPv6
	}
	return ofctl.EtherIPv4
}

// serviceOf returns the Services that want a flow, for people.
func (c *Compiler) serviceOf(f *ofctl.Flow) string {
	var names []string
	for _, o := range c.services.owners[keyOf(f)] {
		names = append(names, o.owner)
	}
	return strings.Join(names, ", ")
}
