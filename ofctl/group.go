package ofctl

import (
	"context"
	"fmt"
	"slices"
)

// Groups, of OpenFlow 1.3 (TS-006, 7.3.4.2 and 7.3.5.8).
const (
	typeGroupMod = 15

	groupAdd    = 0
	groupModify = 1
	groupDelete = 2

	groupSelect = 1
	bucketSize  = 16 // without actions

	multipartGroupDesc = 7
)

// SelectGroup is a group of the type select: of its buckets, all of the same weight, one is executed for a packet.
// Open vSwitch chooses it by a hash that is the same for all packets of a connection.
type SelectGroup struct {
	ID      uint32
	Buckets [][]Action
}

// Equal reports whether two groups have the same ID and buckets.
func (g SelectGroup) Equal(o SelectGroup) bool {
	return g.ID == o.ID && slices.EqualFunc(g.Buckets, o.Buckets, slices.Equal[[]Action])
}

// String returns the group in ovs-ofctl's syntax.
func (g SelectGroup) String() string {
	text := fmt.Sprintf("group_id=%d,type=select", g.ID)
	for _, actions := range g.Buckets {
		text += ",bucket=actions=" + ActionsString(actions)
	}
	return text
}

// GroupMod is one change of the group table.
type GroupMod struct {
	Command Command // Add, Modify or Delete
	Group   SelectGroup
}

// appendGroupMod appends an encoded group mod to b.
func appendGroupMod(b []byte, xid uint32, m *GroupMod) ([]byte, error) {
	start := len(b)
	b = appendHeader(b, typeGroupMod, xid)
	command := uint16(groupAdd)
	switch m.Command {
	case Modify:
		command = groupModify
	case Delete:
		command = groupDelete
	}
	b = be.AppendUint16(b, command)
	b = append(b, groupSelect, 0)
	b = be.AppendUint32(b, m.Group.ID)
	if m.Command != Delete {
		for _, actions := range m.Group.Buckets {
			b = appendBucket(b, actions)
		}
	}
	if len(b)-start > MaxFlowMod-bundleAddOverhead {
		return b[:start], fmt.Errorf("group %d with %d buckets: %w", m.Group.ID, len(m.Group.Buckets), ErrTooLarge)
	}
	endMessage(b, start)
	return b, nil
}

func appendBucket(b []byte, actions []Action) []byte {
	start := len(b)
	b = append(b, 0, 0, 0, 1)          // weight 1
	b = be.AppendUint32(b, 0xffffffff) // no watched port
	b = be.AppendUint32(b, 0xffffffff) // no watched group
	b = append(b, make([]byte, 4)...)  // padding
	for i := range actions {
		b = appendAction(b, &actions[i])
	}
	be.PutUint16(b[start:], uint16(len(b)-start))
	return b
}

// decodeGroups visits the groups of one part of a reply. A group that this package does not send comes with an
// *UnknownError.
func decodeGroups(b []byte, visit func(SelectGroup, error) error) error {
	for len(b) > 0 {
		if len(b) < 8 {
			return errShort
		}
		size := int(be.Uint16(b))
		if size < 8 || size > len(b) {
			return errShort
		}
		g := SelectGroup{ID: be.Uint32(b[4:])}
		err := decodeBuckets(&g, b[8:size])
		if b[2] != groupSelect {
			err = &UnknownError{What: fmt.Sprintf("group type %d", b[2])}
		}
		if err := visit(g, err); err != nil {
			return err
		}
		b = b[size:]
	}
	return nil
}

func decodeBuckets(g *SelectGroup, b []byte) error {
	for len(b) > 0 {
		if len(b) < bucketSize {
			return errShort
		}
		size := int(be.Uint16(b))
		if size < bucketSize || size > len(b) {
			return errShort
		}
		if be.Uint16(b[2:]) != 1 || be.Uint64(b[4:]) != 1<<64-1 {
			return &UnknownError{What: "bucket with a weight or something to watch"}
		}
		actions, err := decodeActions(nil, b[bucketSize:size])
		if err != nil {
			return err
		}
		g.Buckets = append(g.Buckets, actions)
		b = b[size:]
	}
	return nil
}

// Groups visits all groups of the bridge. One that this package does not send comes with an error and its ID.
func (s *Session) Groups(ctx context.Context, visit func(SelectGroup, error) error) error {
	decode := func(b []byte) error { return decodeGroups(b, visit) }
	return s.multipart(ctx, multipartGroupDesc, nil, decode)
}

// EnsureGroups changes the bridge to have exactly these groups, in one bundle. With a group, the switch removes the
// flows that name it.
func (s *Session) EnsureGroups(ctx context.Context, want []SelectGroup) error {
	have := map[uint32]*SelectGroup{} // nil: unknown
	note := func(g SelectGroup, err error) error {
		have[g.ID] = &g
		if err != nil {
			have[g.ID] = nil
		}
		return nil
	}
	err := s.Groups(ctx, note)
	if err != nil {
		return err
	}
	var mods []GroupMod
	for _, g := range want {
		switch is, found := have[g.ID]; {
		case !found:
			mods = append(mods, GroupMod{Add, g})
		case is == nil || !is.Equal(g):
			mods = append(mods, GroupMod{Modify, g})
		}
		delete(have, g.ID)
	}
	for id := range have {
		mods = append(mods, GroupMod{Delete, SelectGroup{ID: id}})
	}
	return s.CommitWithGroups(ctx, mods, nil)
}
