package native

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/flowkeep/flowkeep/netplugin/hostnet"
	"github.com/flowkeep/flowkeep/ofctl/ovsdb"
)

// switches is Open vSwitch, where it runs.
type switches struct {
	endpoint string // of ovsdb-server, such as unix:/run/openvswitch/db.sock; "": none
	open     *ovsdb.Topology
}

var errNoSwitch = errors.New("Open vSwitch does not run here: start openvswitch-switch, or leave out interfaces of types ovs-bridge and ovs-interface")

// topology is nil where no ovsdb-server listens.
func (s *switches) topology(ctx context.Context) (*ovsdb.Topology, error) {
	if s == nil || s.endpoint == "" {
		return nil, nil
	}
	if s.open != nil && s.open.Connected() {
		return s.open, nil
	}
	s.close()
	if !s.listens() {
		return nil, nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, openLimit, fmt.Errorf("no answer within %v", openLimit))
	defer cancel()
	t, err := ovsdb.OpenTopology(ctx, s.endpoint)
	if err != nil {
		return nil, err
	}
	s.open = t
	return t, nil
}

// openLimit is how long ovsdb-server may take to tell all it has.
const openLimit = 20 * time.Second

// listens tells whether anybody is at the endpoint: a server that was killed leaves its socket behind.
func (s *switches) listens() bool {
	path, isPath := strings.CutPrefix(s.endpoint, "unix:")
	if !isPath {
		return true
	}
	conn, err := net.Dial("unix", path)
	if err != nil {
		return !errors.Is(err, os.ErrNotExist) && !errors.Is(err, syscall.ECONNREFUSED)
	}
	conn.Close()
	return true
}

func (s *switches) close() {
	if s != nil && s.open != nil {
		s.open.Close()
		s.open = nil
	}
}

func (s *switches) must(ctx context.Context) (*ovsdb.Topology, error) {
	t, err := s.topology(ctx)
	if err == nil && t == nil {
		err = errNoSwitch
	}
	return t, err
}

// show adds bridges, and tells of interfaces that they are ports.
func (s *switches) show(ctx context.Context, n *network) error {
	t, err := s.topology(ctx)
	if err != nil || t == nil {
		return err
	}
	bridges, err := t.Bridges(ctx)
	if err != nil {
		return err
	}
	for _, b := range bridges {
		l := &link{Name: b.Name, Type: typeOVSBridge, Up: true, OVSBridge: &ovsBridgeSpec{
			Datapath: orText(b.Datapath, "system"), FailMode: orText(b.FailMode, "standalone"), STP: b.STP, RSTP: b.RSTP, MulticastSnooping: b.McastSnoop,
		}}
		n.Links[l.key()] = l
		for _, p := range b.Ports {
			port := n.Links[p.Name]
			if port == nil || len(p.Interfaces) != 1 {
				continue // a tunnel, say, which no interface stands for
			}
			if p.Type == "internal" {
				port.Type = typeOVSInterface
			}
			port.Controller, port.OVSPort = l.key(), &ovsPortSpec{Mode: p.Mode, Tag: p.Tag, Trunks: p.Trunks}
		}
	}
	return nil
}

func orText(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}

func (l *link) bridgeRow() ovsdb.Bridge {
	s := l.OVSBridge
	return ovsdb.Bridge{Name: l.Name, Datapath: s.Datapath, FailMode: s.FailMode, STP: s.STP, RSTP: s.RSTP, McastSnoop: s.MulticastSnooping}
}

func (l *link) portRow() ovsdb.BridgePort {
	row := ovsdb.BridgePort{Name: l.Name}
	if l.Type == typeOVSInterface {
		row.Type = "internal"
	}
	if s := l.OVSPort; s != nil {
		row.Mode, row.Tag, row.Trunks = s.Mode, s.Tag, s.Trunks
	}
	return row
}

// setBridge makes or changes a bridge; a new one has the kernel's datapath where the kernel has it.
func (s *switches) setBridge(ctx context.Context, l *link) error {
	t, err := s.must(ctx)
	if err != nil {
		return err
	}
	row := l.bridgeRow()
	if row.Datapath == "" {
		if row.Datapath, err = hostnet.Datapath(hostnet.DatapathAuto, slog.New(slog.DiscardHandler)); err != nil {
			return err
		}
	}
	return t.SetBridge(ctx, row)
}

func (s *switches) deleteBridge(ctx context.Context, name string) error {
	t, err := s.must(ctx)
	if err != nil {
		return err
	}
	return t.DeleteBridge(ctx, name)
}

func (s *switches) addPort(ctx context.Context, l *link, bridge string) error {
	t, err := s.must(ctx)
	if err != nil {
		return err
	}
	if err := t.AddPort(ctx, shown(bridge), l.portRow(), l.MAC); err != nil {
		return errors.Join(err, t.DeletePort(ctx, l.Name)) // nothing half made
	}
	return nil
}

func (s *switches) deletePort(ctx context.Context, name string) error {
	t, err := s.must(ctx)
	if err != nil {
		return err
	}
	return t.DeletePort(ctx, name)
}

func (s *switches) setPort(ctx context.Context, l *link) error {
	t, err := s.must(ctx)
	if err != nil {
		return err
	}
	return t.SetPort(ctx, l.portRow())
}

// request has Open vSwitch set what it would set back if anybody else did.
func (s *switches) request(ctx context.Context, name string, mtu int, mac string) error {
	t, err := s.must(ctx)
	if err != nil {
		return err
	}
	return t.Request(ctx, name, mtu, mac)
}

// runs tells whether Open vSwitch can be asked.
func (s *switches) runs() bool {
	if s == nil || s.endpoint == "" {
		return false
	}
	return s.open != nil && s.open.Connected() || s.listens()
}

// needsSwitch tells whether a plan needs Open vSwitch.
func needsSwitch(steps []Step) bool {
	return slices.ContainsFunc(steps, func(s Step) bool {
		return strings.HasSuffix(s.name, keySuffix) || strings.HasSuffix(s.text, keySuffix) || s.link != nil && s.link.Type == typeOVSInterface
	})
}
