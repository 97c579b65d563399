package pipeline

import (
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// clientReopens commits a connection again if the client of a Service sends a packet that conntrack takes for a reply:
// conntrack had no entry of the connection when a datagram of the endpoint came. The client becomes the opener. Without
// this, responses would reach it untranslated for as long as any are sent.
func (l *flowList) clientReopens() {
	for _, etherType := range families {
		m := answer(sourceIs(valid(etherType), fromService), 0)
		m.CtState.Mask |= ofctl.CtInv | ofctl.CtRel
		m.IPFrag = ofctl.Unfragmented
		m.Reg[regCommit] = exactReg(0)
		opened := commitWith(serviceMark)
		opened[len(opened)-1].Force = true
		l.static(TableState, 58, m, opened...)
	}
}

// reusedPorts gives a connection another mark if its client now sends the other way: directly to the pod after a
// Service, or the reverse. Both have the same addresses and ports here, and the mark decides the way of responses.
// Connections without a response get their mark in TableCommit. Only UDP needs it: a TCP segment that opens a connection
// in place of an open one is not valid, and in place of a closed one is new.
func (l *flowList) reusedPorts(cfg *Config) {
	for _, etherType := range families {
		direct := openerSends(etherType, fromPod)
		direct.CtMark = exactReg(serviceMark)
		l.static(TableState, 54, direct, commitWith(0)...)
		if !cfg.Services.Translated {
			byService := openerSends(etherType, fromService)
			byService.CtMark.Mask = serviceMark
			l.static(TableState, 54, byService, commitWith(serviceMark)...)
			continue
		}
		direct.CtMark = exactReg(translatedMark)
		l.static(TableState, 54, direct, commitWith(0)...)
		translated := openerSends(etherType, fromPod)
		translated.EthSrc = translatedMAC
		l.static(TableState, 55, translated, commitWith(translatedMark)...)
		translated.CtMark = exactReg(translatedMark)
		l.static(TableState, 56, translated, goTo(TablePorts))
	}
}

// openerSends matches the client's UDP packets of connections with a response.
func openerSends(etherType uint16, source uint32) ofctl.Match {
	m := sourceIs(valid(etherType), source)
	m.CtState.Value |= ofctl.CtEst
	m.CtState.Mask |= ofctl.CtEst | ofctl.CtRpl | ofctl.CtRel
	m.IPProto, m.IPFrag = uint8(policy.UDP), ofctl.Unfragmented
	m.Reg[regCommit] = exactReg(0)
	return m
}
