package check

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
)

// Names of the pods, which are also the values of their label RoleLabel.
const (
	Near     = "near"     // serves, on the node of the clients
	Far      = "far"      // serves, on another node
	Friend   = "friend"   // may connect to the servers
	Stranger = "stranger" // may not, while the policies are there
)

// RoleLabel is the label that the policies and the Service select pods by.
const RoleLabel = "app.kubernetes.io/component"

// Ports of the servers and of the Service. The policies leave OpenPort to everyone.
const (
	Port        = 8080
	OpenPort    = 8081
	ServicePort = 80
)

// Stage is a state of the policies.
type Stage int

// Stages, in their order.
const (
	NoPolicy      Stage = iota
	IngressPolicy       // the servers accept connections to Port from Friend only
	EgressPolicy        // Stranger may not connect at all, in addition
	Removed             // both policies are deleted
)

// Stages are all stages.
var Stages = []Stage{NoPolicy, IngressPolicy, EgressPolicy, Removed}

// String returns the name of the stage's change.
func (s Stage) String() string {
	return [...]string{"no policy", "ingress policy", "egress policy", "policies deleted"}[s]
}

// Facts are what the checks depend on.
type Facts struct {
	Near, Far []netip.Addr // addresses of the pods; no far: there is one node
	Service   []netip.Addr
	// Outside are addresses HOST:PORT that are no pods.
	Outside []string
	// Name is the DNS name of the Service; empty: NoDNS has the reason why it is not looked up.
	Name, NoDNS string
}

// Check is an expectation: whether a probe of a client succeeds at a stage.
type Check struct {
	Name   string
	Stage  Stage
	Client string
	To     string
	Family int // 4 or 6; 0: it depends on none
	Open   bool
	Probe  Probe
	// Skipped is why it cannot be checked.
	Skipped string
}

// Plan returns all checks in order of their stages.
func Plan(f *Facts) (checks []Check) {
	for _, family := range []int{4, 6} {
		checks = append(checks, ofFamily(f, family)...)
	}
	for _, address := range f.Outside {
		checks = append(checks, Check{
			Name:   "outside",
			Client: Friend,
			To:     address,
			Family: familyOf(address),
			Open:   true,
			Probe:  Probe{Kind: KindTCP, Address: address},
		})
	}
	if len(f.Outside) == 0 {
		checks = append(checks, skipped("outside", 0, "no address is known: give --outside HOST:PORT"))
	}
	checks = append(checks, Check{
		Name:    "DNS",
		Client:  Friend,
		To:      f.Name,
		Open:    true,
		Probe:   Probe{Kind: KindDNS, Address: f.Name},
		Skipped: f.NoDNS,
	})
	slices.SortStableFunc(checks, func(a, b Check) int { return int(a.Stage) - int(b.Stage) })
	return checks
}

func skipped(name string, family int, why string) Check {
	return Check{Name: name, Family: family, Skipped: why}
}

// target is where a client connects to.
type target struct {
	name, to string // of the check and of the server
	address  netip.Addr
	port     uint16
}

func (t *target) check(stage Stage, client string, open bool) Check {
	address := netip.AddrPortFrom(t.address, t.port)
	c := Check{
		Name:   t.name,
		Stage:  stage,
		Client: client,
		To:     fmt.Sprintf("%s:%d", t.to, t.port),
		Family: family(t.address),
		Open:   open,
		Probe:  Probe{Kind: KindTCP, Address: address.String()},
	}
	if client == Stranger {
		c.Probe.Often = true // the time of its changes is measured
	}
	return c
}

// ofFamily returns the checks between pods over an address family.
func ofFamily(f *Facts, want int) (checks []Check) {
	near, ok := addressOf(f.Near, want)
	if !ok {
		name := fmt.Sprintf("IPv%d", want)
		return []Check{skipped(name, want, "pods have no "+name+" address")}
	}
	targets := []target{{"pod to pod, one node", Near, near, Port}}
	big := target{"MTU", Near, near, Port}
	if far, ok := addressOf(f.Far, want); ok {
		targets = append(targets, target{"pod to pod, across nodes", Far, far, Port})
		big = target{"MTU", Far, far, Port}
	} else {
		checks = append(checks, skipped("pod to pod, across nodes", want, "there is one node that takes pods"))
	}
	if service, ok := addressOf(f.Service, want); ok {
		targets = append(targets, target{"Service", "Service", service, ServicePort})
	} else {
		checks = append(checks, skipped("Service", want, fmt.Sprintf("Services have no IPv%d address", want)))
	}
	for _, t := range targets {
		checks = append(checks,
			t.check(NoPolicy, Friend, true),
			t.check(NoPolicy, Stranger, true),
			t.check(IngressPolicy, Friend, true),
			t.check(IngressPolicy, Stranger, false),
			t.check(Removed, Stranger, true),
		)
	}
	open := target{"port of a rule", Near, near, OpenPort}
	mtu := big.check(NoPolicy, Friend, true)
	mtu.Probe.Kind = KindMTU
	return append(checks,
		open.check(NoPolicy, Stranger, true),
		open.check(IngressPolicy, Stranger, true),
		open.check(EgressPolicy, Stranger, false),
		open.check(Removed, Stranger, true),
		mtu,
	)
}

func family(a netip.Addr) int {
	if a.Is4() {
		return 4
	}
	return 6
}

func familyOf(hostport string) int {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		return 0
	}
	a, err := netip.ParseAddr(host)
	if err != nil {
		return 0
	}
	return family(a)
}

func addressOf(list []netip.Addr, want int) (netip.Addr, bool) {
	i := slices.IndexFunc(list, func(a netip.Addr) bool { return family(a) == want })
	if i < 0 {
		return netip.Addr{}, false
	}
	return list[i], true
}

// Probes returns what a client tries for its checks, each once.
func Probes(checks []Check, client string) (list []Probe) {
	for i := range checks {
		c := &checks[i]
		if c.Client == client && c.Skipped == "" && !slices.Contains(list, c.Probe) {
			list = append(list, c.Probe)
		}
	}
	return list
}

// ParseHostPort checks an address HOST:PORT.
func ParseHostPort(text string) error {
	host, port, err := net.SplitHostPort(text)
	if err != nil || host == "" {
		return fmt.Errorf("address %q: write HOST:PORT", text)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("address %q: port %q is not between 1 and 65535", text, port)
	}
	return nil
}
