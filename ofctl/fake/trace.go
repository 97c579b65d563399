package fake

import (
	"fmt"
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/ofctl"
)

// Result is what became of a packet.
type Result struct {
	Packet  Packet
	InPort  uint32
	Steps   []Step
	Outputs []Output
	// Told is the number of copies of the packet that flows sent to the controller; meters are ignored.
	Told int
}

// Step is a table that the packet went through, and the flow that it met there; none means that it was dropped.
type Step struct {
	Table uint8
	Flow  *ofctl.Flow
}

// Output is a copy that left by a port, as it was then.
type Output struct {
	Port   uint32
	Packet Packet
}

// Left reports whether the packet left by the port.
func (r *Result) Left(port uint32) bool {
	return slices.ContainsFunc(r.Outputs, func(o Output) bool { return o.Port == port })
}

// String returns the trace, one line for each table.
func (r *Result) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "port %d: %s\n", r.InPort, &r.Packet)
	for _, s := range r.Steps {
		if s.Flow == nil {
			fmt.Fprintf(&b, "  table %d: no flow\n", s.Table)
			continue
		}
		match := s.Flow.Match.String()
		if match == "" {
			match = "any"
		}
		fmt.Fprintf(&b, "  table %d, priority %d, %s: %s\n", s.Table, s.Flow.Priority, match,
			ofctl.ActionsString(s.Flow.Actions))
	}
	if len(r.Outputs) == 0 {
		b.WriteString("  dropped\n")
	}
	for _, o := range r.Outputs {
		fmt.Fprintf(&b, "  → port %d\n", o.Port)
	}
	return b.String()
}

// maxSteps ends what goes round for ever, as the real one's limit on resubmits does.
const maxSteps = 256

// Inject sends a packet in by a port. It counts in the flows that it meets, and conntrack remembers it.
func (s *Switch) Inject(port uint32, p Packet) *Result {
	r := &Result{Packet: p, InPort: port}
	s.run(&state{Packet: p, place: place{inPort: port}}, 0, r)
	return r
}

func (s *Switch) run(st *state, table uint8, r *Result) {
	if len(r.Steps) >= maxSteps {
		return
	}
	f := s.lookup(table, st)
	r.Steps = append(r.Steps, Step{Table: table, Flow: f})
	if f == nil {
		return
	}
	f.Packets++
	for i := range f.Actions {
		if f.Actions[i].Kind == ofctl.Ct && f.Actions[i].Table != ofctl.NoTable && st.Pieces > 1 {
			s.hold(&f.Actions[i], st, r)
			return
		}
		s.act(&f.Actions[i], st, r)
	}
}

func (s *Switch) act(a *ofctl.Action, st *state, r *Result) {
	switch a.Kind {
	case ofctl.Output:
		s.output(a.Port, st, r)
	case ofctl.GotoTable, ofctl.Resubmit:
		s.run(st, a.Table, r)
	case ofctl.SetReg:
		st.regs[a.Reg] = a.Value
	case ofctl.SetEthSrc:
		st.EthSrc = a.MAC
	case ofctl.SetEthDst:
		st.EthDst = a.MAC
	case ofctl.SetTunSrc:
		st.TunSrc = a.Addr.Value()
	case ofctl.SetTunDst:
		st.TunDst = a.Addr.Value()
	case ofctl.Controller:
		r.Told++
	case ofctl.Ct:
		s.track(a, st, r)
	}
}

// output sends the packet to a port. It is sent to its input port only by IN_PORT.
func (s *Switch) output(port uint32, st *state, r *Result) {
	switch port {
	case st.inPort:
		return
	case ofctl.PortInPort:
		port = st.inPort
	}
	r.Outputs = append(r.Outputs, Output{port, st.Packet})
}

// track commits, and sends a tracked copy on where the action names a table; what follows the action goes on untracked.
func (s *Switch) track(a *ofctl.Action, st *state, r *Result) {
	found := s.conntrack.visit(a, &st.Packet)
	if a.Table == ofctl.NoTable {
		return
	}
	again := *st
	again.ct = found
	again.back = visitOf(a, st)
	s.run(&again, a.Table, r)
	s.leave(a, st, r)
}
