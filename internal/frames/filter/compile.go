package filter

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/net/bpf"
)

// Places in an Ethernet frame, in bytes.
const (
	atEtherType = 12
	atIP        = 14
	atFragment  = atIP + 6
	atProtocol4 = atIP + 9
	atSource4   = atIP + 12
	atDest4     = atIP + 16
	atProtocol6 = atIP + 6
	atSource6   = atIP + 8
	atDest6     = atIP + 24
	atPorts6    = atIP + 40
	atSourceARP = atIP + 14
	atDestARP   = atIP + 24
)

const laterFragment = 0x1fff

// mostInstructions is the kernel's BPF_MAXINSNS.
const mostInstructions = 4096

// label is a place that is jumped to; its instruction is known when it is placed.
type label int

// program is made in order. Conditional jumps of BPF reach no further than 255 instructions, so each goes to one of
// two jumps that do.
type program struct {
	code   []bpf.Instruction
	jumps  map[int]label // by instruction
	labels []int         // by label: the instruction
	base   uint32        // where the Ethernet frame begins that is looked at
}

func (p *program) label() label {
	p.labels = append(p.labels, -1)
	return label(len(p.labels) - 1)
}

func (p *program) place(l label) { p.labels[l] = len(p.code) }

// add takes what is loaded from the frame that is looked at.
func (p *program) add(list ...bpf.Instruction) {
	for _, i := range list {
		switch v := i.(type) {
		case bpf.LoadAbsolute:
			v.Off += p.base
			i = v
		case bpf.LoadIndirect:
			v.Off += p.base
			i = v
		case bpf.LoadMemShift:
			v.Off += p.base
			i = v
		}
		p.code = append(p.code, i)
	}
}

func (p *program) jump(l label) {
	p.jumps[len(p.code)] = l
	p.add(bpf.Jump{})
}

// test goes on at yes or no.
func (p *program) test(cond bpf.JumpTest, val uint32, yes, no label) {
	p.add(bpf.JumpIf{Cond: cond, Val: val, SkipFalse: 1})
	p.jump(yes)
	p.jump(no)
}

func (p *program) resolve() {
	for at, l := range p.jumps {
		p.code[at] = bpf.Jump{Skip: uint32(p.labels[l] - at - 1)}
	}
}

// Compile gives a program for a socket that takes Ethernet frames: of those that match, snap bytes at the most.
func (f *Filter) Compile(snap int) ([]bpf.RawInstruction, error) {
	code, err := f.instructions(snap)
	if err != nil {
		return nil, err
	}
	return bpf.Assemble(code)
}

func (f *Filter) instructions(snap int) ([]bpf.Instruction, error) {
	if snap <= 0 {
		return nil, errors.New("a filter that lets nothing of a packet through")
	}
	p := &program{jumps: map[int]label{}}
	yes, no := p.label(), p.label()
	if f.root != nil {
		f.root.emit(p, yes, no)
	}
	p.place(yes)
	p.add(bpf.RetConstant{Val: uint32(snap)})
	p.place(no)
	p.add(bpf.RetConstant{})
	if len(p.code) > mostInstructions {
		return nil, fmt.Errorf("the filter is too long: %d instructions, no more than %d", len(p.code),
			mostInstructions)
	}
	p.resolve()
	return p.code, nil
}

func (n both) emit(p *program, yes, no label) {
	second := p.label()
	n.a.emit(p, second, no)
	p.place(second)
	n.b.emit(p, yes, no)
}

func (n either) emit(p *program, yes, no label) {
	second := p.label()
	n.a.emit(p, yes, second)
	p.place(second)
	n.b.emit(p, yes, no)
}

func (n not) emit(p *program, yes, no label) { n.a.emit(p, no, yes) }

func (n etherIs) emit(p *program, yes, no label) {
	p.add(bpf.LoadAbsolute{Off: atEtherType, Size: 2})
	p.test(bpf.JumpEqual, uint32(n), yes, no)
}

func (n protoIs) emit(p *program, yes, no label) {
	four, six := p.families(no)
	p.place(four)
	p.add(bpf.LoadAbsolute{Off: atProtocol4, Size: 1})
	p.test(bpf.JumpEqual, uint32(n), yes, no)
	p.place(six)
	p.add(bpf.LoadAbsolute{Off: atProtocol6, Size: 1})
	p.test(bpf.JumpEqual, uint32(n), yes, no)
}

// families goes on at one of two labels that are placed later; what is no IP goes to other.
func (p *program) families(other label) (four, six label) {
	four, six = p.label(), p.label()
	not4 := p.label()
	etherIs(0x0800).emit(p, four, not4)
	p.place(not4)
	p.test(bpf.JumpEqual, 0x86dd, six, other)
	return four, six
}

func (n netMatch) emit(p *program, yes, no label) {
	if n.prefix.Addr().Is4() {
		ip, arp, other := p.label(), p.label(), p.label()
		etherIs(0x0800).emit(p, ip, other)
		p.place(other)
		p.test(bpf.JumpEqual, 0x0806, arp, no)
		p.place(ip)
		n.sides(p, atSource4, atDest4, yes, no)
		p.place(arp)
		n.sides(p, atSourceARP, atDestARP, yes, no)
		return
	}
	ip := p.label()
	etherIs(0x86dd).emit(p, ip, no)
	p.place(ip)
	n.sides(p, atSource6, atDest6, yes, no)
}

func (n netMatch) sides(p *program, src, dst uint32, yes, no label) {
	switch n.side {
	case source:
		n.at(p, src, yes, no)
	case destination:
		n.at(p, dst, yes, no)
	default:
		second := p.label()
		n.at(p, src, yes, second)
		p.place(second)
		n.at(p, dst, yes, no)
	}
}

// at compares a word of an address after the other.
func (n netMatch) at(p *program, offset uint32, yes, no label) {
	address := n.prefix.Addr().AsSlice()
	bits := n.prefix.Bits()
	for i := 0; i < len(address) && bits > 0; i += 4 {
		mask := ^uint32(0) << max(32-bits, 0)
		p.add(bpf.LoadAbsolute{Off: offset + uint32(i), Size: 4})
		if bits < 32 {
			p.add(bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: mask})
		}
		next := p.label()
		p.test(bpf.JumpEqual, binary.BigEndian.Uint32(address[i:])&mask, next, no)
		p.place(next)
		bits -= 32
	}
	p.jump(yes)
}

// Places in a Geneve packet whose headers have no options, in bytes behind the outer IP header.
const (
	atUDPPort      = 2
	atGeneve       = 8
	atGeneveType   = atGeneve + 2
	behindGeneve   = atGeneve + 8
	genevePort     = 6081
	geneveEthernet = 0x6558
)

func (n tunnelled) emit(p *program, yes, no label) {
	outside, four, not4, six, udp4 := p.label(), p.label(), p.label(), p.label(), p.label()
	n.a.emit(p, yes, outside)
	p.place(outside)
	etherIs(0x0800).emit(p, four, not4)
	p.place(not4)
	p.test(bpf.JumpEqual, 0x86dd, six, no)
	p.place(four)
	p.add(bpf.LoadAbsolute{Off: atIP, Size: 1})
	p.test(bpf.JumpEqual, 0x45, udp4, no) // a header of 20 bytes
	p.place(udp4)
	n.inside(p, atProtocol4, atIP+20, yes, no)
	p.place(six)
	n.inside(p, atProtocol6, atPorts6, yes, no)
}

// inside goes on in the frame within the tunnel's, whose UDP header is at an offset.
func (n tunnelled) inside(p *program, protocol, udp uint32, yes, no label) {
	is := func(offset uint32, size int, value uint32) {
		next := p.label()
		p.add(bpf.LoadAbsolute{Off: offset, Size: size})
		p.test(bpf.JumpEqual, value, next, no)
		p.place(next)
	}
	is(protocol, 1, uint32(protocols["udp"]))
	is(udp+atUDPPort, 2, genevePort)
	is(udp+atGeneve, 1, 0)
	is(udp+atGeneveType, 2, geneveEthernet)
	p.base += udp + behindGeneve
	n.a.emit(p, yes, no)
	p.base -= udp + behindGeneve
}

func (n portMatch) emit(p *program, yes, no label) {
	four, six := p.families(no)
	p.place(four)
	p.add(bpf.LoadAbsolute{Off: atProtocol4, Size: 1})
	ports4, whole := p.label(), p.label()
	n.protocolIs(p, ports4, no)
	p.place(ports4)
	p.add(bpf.LoadAbsolute{Off: atFragment, Size: 2})
	p.test(bpf.JumpBitsSet, laterFragment, no, whole)
	p.place(whole)
	p.add(bpf.LoadMemShift{Off: atIP}) // X: the header's length
	n.sides(p, func(offset uint32) bpf.Instruction { return bpf.LoadIndirect{Off: atIP + offset, Size: 2} }, yes, no)
	p.place(six)
	p.add(bpf.LoadAbsolute{Off: atProtocol6, Size: 1})
	ports6 := p.label()
	n.protocolIs(p, ports6, no)
	p.place(ports6)
	n.sides(p, func(offset uint32) bpf.Instruction { return bpf.LoadAbsolute{Off: atPorts6 + offset, Size: 2} }, yes,
		no)
}

func (n portMatch) protocolIs(p *program, yes, no label) {
	if n.protocol != 0 {
		p.test(bpf.JumpEqual, uint32(n.protocol), yes, no)
		return
	}
	for _, name := range []string{"tcp", "udp", "sctp"} {
		next := p.label()
		p.test(bpf.JumpEqual, uint32(protocols[name]), yes, next)
		p.place(next)
	}
	p.jump(no)
}

func (n portMatch) sides(p *program, load func(offset uint32) bpf.Instruction, yes, no label) {
	const src, dst = 0, 2
	switch n.side {
	case source:
		p.add(load(src))
		n.inRange(p, yes, no)
	case destination:
		p.add(load(dst))
		n.inRange(p, yes, no)
	default:
		second := p.label()
		p.add(load(src))
		n.inRange(p, yes, second)
		p.place(second)
		p.add(load(dst))
		n.inRange(p, yes, no)
	}
}

func (n portMatch) inRange(p *program, yes, no label) {
	above := p.label()
	p.test(bpf.JumpGreaterOrEqual, uint32(n.first), above, no)
	p.place(above)
	p.test(bpf.JumpGreaterThan, uint32(n.last), no, yes)
}
