package ofctl

import (
	"context"
	"errors"
	"fmt"
)

// UpdateKind is what an Update reports.
type UpdateKind uint8

// Kinds of updates.
const (
	// FlowAdded reports a flow that was added, or replaced one of its table, priority and match.
	FlowAdded UpdateKind = iota
	// FlowRemoved reports a flow that was deleted, or ended by a timeout.
	FlowRemoved
	// FlowModified reports a flow with other actions or another cookie.
	FlowModified
	// OwnChange reports changes of flows by the session itself: one update for all changes of a bundle.
	OwnChange
	// UpdatesPaused reports that the session reads more slowly than flows change. Until UpdatesResumed, the session's
	// own changes are reported like those of others.
	UpdatesPaused
	// UpdatesResumed follows the updates that were left out since UpdatesPaused. A flow that was replaced and then
	// deleted meanwhile is not reported (Open vSwitch 3.1).
	UpdatesResumed
	// GroupChanged reports a change of a group.
	GroupChanged
	// MeterChanged reports a change of a meter.
	MeterChanged
	// UpdateUnreadable reports an update that could not be decoded.
	UpdateUnreadable
)

// Update is a change of a switch that its flow monitor reports.
type Update struct {
	Kind UpdateKind
	// Flow is the flow after the change, or the deleted one. It has no counters.
	Flow Flow
	// Unknown is an *UnknownError where the flow has what this package never sends, as with Session.Dump.
	Unknown error
}

// The flow monitor of OpenFlow 1.3 is an ONF extension (EXT-187; Open vSwitch 3.0: openflow-1.3.h, nicira-ext.h).
const (
	multipartExperimenter = 0xffff
	onfFlowMonitor        = 1870
	onfMonitorPaused      = 1871
	onfMonitorResumed     = 1872

	monitorAdd     = 1 << 1
	monitorDelete  = 1 << 2
	monitorModify  = 1 << 3
	monitorActions = 1 << 4

	updateAdded    = 0
	updateDeleted  = 1
	updateModified = 2
	updateAbbrev   = 3

	updateHeader = 4  // bytes of an update's length and event
	updateFields = 24 // bytes before the match of a flow
)

// The forwarding of requests that change groups and meters is OpenFlow 1.4's, with an ONF extension for 1.3. Nicira's
// extension sets which asynchronous messages a connection gets (OpenFlow 1.4.1, 7.3.10; Open vSwitch ofp-msgs.h).
const (
	onfRequestForward     = 2350
	niciraSetAsyncConfig2 = 27

	asyncPacketIn    = 1
	asyncPortStatus  = 3
	asyncFlowRemoved = 5
	asyncForward     = 11

	forwardGroupsAndMeters = 3
)

// MonitorFlows requests a report of each change of a flow of any table, and of each change of a group or a meter by
// another connection. The session's goroutine calls handle with the updates of a message, in order; handle must not
// block and must not keep the slice. Changes are reported from the return of MonitorFlows until the session ends. Call
// it at most once. The error is a *SwitchError where Open vSwitch is older than 3.0. With the monitor the session gets
// no packets and no other asynchronous messages.
func MonitorFlows(ctx context.Context, s *Session, handle func([]Update)) error {
	s.monitor.Store(&handle)
	err := s.command(ctx, "subscribe to changes of groups and meters", func(xid uint32) []byte {
		return appendAsyncConfig(appendSetConfig(nil, xid, 1), xid)
	})
	if err != nil {
		return err
	}
	return s.multipart(ctx, multipartExperimenter, appendMonitorRequest(nil), func(b []byte) error {
		if !isONF(b, onfFlowMonitor) {
			return fmt.Errorf("reply to a flow monitor request: %w", errShort)
		}
		return nil
	})
}

// appendMonitorRequest appends the body of a request for a monitor of all flows.
func appendMonitorRequest(b []byte) []byte {
	b = be.AppendUint32(b, onfExperimenter)
	b = be.AppendUint32(b, onfFlowMonitor)
	b = be.AppendUint32(b, 1) // number of the monitor
	b = be.AppendUint16(b, monitorAdd|monitorDelete|monitorModify|monitorActions)
	b = be.AppendUint16(b, 4)          // the match without its padding
	b = be.AppendUint32(b, 0xffffffff) // any port
	b = append(b, AllTables, 0, 0, 0)
	return appendMatch(b, &Match{})
}

// appendAsyncConfig appends NXT_SET_ASYNC_CONFIG2: changes of groups and meters, and nothing else.
func appendAsyncConfig(b []byte, xid uint32) []byte {
	start := len(b)
	b = appendHeader(b, typeExperimenter, xid)
	b = be.AppendUint32(b, niciraVendor)
	b = be.AppendUint32(b, niciraSetAsyncConfig2)
	for _, p := range []struct {
		property uint16
		reasons  uint32
	}{{asyncPacketIn, 0}, {asyncPortStatus, 0}, {asyncFlowRemoved, 0}, {asyncForward, forwardGroupsAndMeters}} {
		b = be.AppendUint16(b, p.property)
		b = be.AppendUint16(b, 8)
		b = be.AppendUint32(b, p.reasons)
	}
	endMessage(b, start)
	return b
}

// isONF reports whether a body begins with the ONF's experimenter number and a type.
func isONF(b []byte, kind uint32) bool {
	return len(b) >= 8 && be.Uint32(b) == onfExperimenter && be.Uint32(b[4:]) == kind
}

// updatesOf returns the updates that a message has. It returns false for a message that answers a request.
func updatesOf(m message) ([]Update, bool) {
	switch {
	case m.xid == 0 && m.kind == typeMultipartRep && len(m.body) >= 8 && isONF(m.body[8:], onfFlowMonitor):
		return decodeUpdates(m.body[16:]), true
	case m.kind != typeExperimenter:
		return nil, false
	case isONF(m.body, onfMonitorPaused):
		return []Update{{Kind: UpdatesPaused}}, true
	case isONF(m.body, onfMonitorResumed):
		return []Update{{Kind: UpdatesResumed}}, true
	case isONF(m.body, onfRequestForward):
		return []Update{{Kind: forwardedKind(m.body[8:])}}, true
	}
	return nil, false
}

// forwardedKind returns the kind of a forwarded request.
func forwardedKind(b []byte) UpdateKind {
	if len(b) < 8 {
		return UpdateUnreadable
	}
	switch b[1] {
	case typeGroupMod:
		return GroupChanged
	case typeMeterMod:
		return MeterChanged
	}
	return UpdateUnreadable
}

// decodeUpdates decodes the updates of a message. Where one is malformed, UpdateUnreadable takes the place of the rest.
func decodeUpdates(b []byte) (list []Update) {
	for len(b) > 0 {
		size := 0
		if len(b) >= updateHeader {
			size = int(be.Uint16(b))
		}
		if size < 8 || size > len(b) {
			return append(list, Update{Kind: UpdateUnreadable})
		}
		u, err := decodeUpdate(b[:size])
		if err != nil {
			return append(list, Update{Kind: UpdateUnreadable})
		}
		list, b = append(list, u), b[size:]
	}
	return list
}

// decodeUpdate decodes one update, of 8 bytes or more.
func decodeUpdate(b []byte) (u Update, err error) {
	switch be.Uint16(b[2:]) {
	case updateAbbrev:
		return Update{Kind: OwnChange}, nil
	case updateAdded:
		u.Kind = FlowAdded
	case updateDeleted:
		u.Kind = FlowRemoved
	case updateModified:
		u.Kind = FlowModified
	default:
		return u, errShort
	}
	if len(b) < updateFields+8 {
		return u, errShort
	}
	u.Flow = Flow{Table: b[14], Priority: be.Uint16(b[6:]), Cookie: be.Uint64(b[16:])}
	err = decodeBody(&u.Flow, b[updateFields:], be.Uint32(b[8:]) != 0)
	if _, unknown := errors.AsType[*UnknownError](err); unknown {
		u.Unknown, err = err, nil
	}
	return u, err
}
