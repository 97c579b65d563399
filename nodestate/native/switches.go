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

	"github.com/flowkeep/flowkeep/ofctl/dptype"
	"github.com/flowkeep/flowkeep/ofctl/ovsdb"
)

// switches is Open vSwitch, where it runs.
type switches struct {
	endpoint string // of ovsdb-server, such as unix:/run/openvswitch/db.sock; "": none
	own      Own
	ports    *ports
	log      *slog.Logger

	open   *ovsdb.Topology
	silent time.Time // until then it is not asked again: it was, and did not answer
	why    error     // that it did not answer for
	said   string    // of it in the log
}

var errNoSwitch = errors.New("Open vSwitch does not run here: start openvswitch-switch, or leave out interfaces of types ovs-bridge and ovs-interface")

// Time limits of ovsdb-server: for all its content, for one change, and the pause after a time-out. All else goes on
// meanwhile as if there were no Open vSwitch.
const (
	openLimit   = 8 * time.Second
	answerLimit = 5 * time.Second
	silence     = 30 * time.Second
)

// topology is Open vSwitch's, or an error that says why it can't be asked.
func (s *switches) topology(ctx context.Context) (*ovsdb.Topology, error) {
	if s == nil || s.endpoint == "" {
		return nil, errNoSwitch
	}
	if s.open != nil && s.open.Connected() {
		return s.open, nil
	}
	s.close()
	if err := s.absence(); err != nil {
		return nil, err
	}
	limited, cancel := context.WithTimeoutCause(ctx, openLimit, fmt.Errorf("no answer within %v", openLimit))
	defer cancel()
	t, err := ovsdb.OpenTopology(limited, s.endpoint)
	switch {
	case err == nil:
		s.open, s.silent = t, time.Time{}
		return t, nil
	case ctx.Err() != nil: // it was not given its time
		return nil, err
	}
	return nil, s.silenced(limited, err)
}

// absence is why Open vSwitch can't be asked, as far as is known without asking it; nil: it may be asked.
func (s *switches) absence() error {
	switch {
	case s == nil || s.endpoint == "":
		return errNoSwitch
	case s.open != nil && s.open.Connected():
		return nil
	case time.Now().Before(s.silent):
		return s.why
	case !s.listens():
		return errNoSwitch
	}
	return nil
}

// silenced starts the pause after a time-out.
func (s *switches) silenced(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	s.close()
	s.silent, s.why = time.Now().Add(silence), fmt.Errorf("ovsdb-server does not answer at %s: %w", s.endpoint, err)
	return s.why
}

// ask does one thing with it, within answerLimit.
func (s *switches) ask(ctx context.Context, do func(context.Context, *ovsdb.Topology) error) error {
	t, err := s.topology(ctx)
	if err != nil {
		return err
	}
	limited, cancel := context.WithTimeoutCause(ctx, answerLimit, fmt.Errorf("no answer within %v", answerLimit))
	defer cancel()
	if err = do(limited, t); err != nil && ctx.Err() == nil && limited.Err() != nil {
		return s.silenced(limited, err)
	}
	return err
}

// listens reports whether a server accepts connections at the endpoint: a server that was killed leaves its socket
// behind.
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

// show adds bridges, and marks interfaces that are ports. If ovsdb-server does not respond, the network has the
// reason.
func (s *switches) show(ctx context.Context, n *network) error {
	if s == nil || s.endpoint == "" {
		return nil
	}
	var bridges []ovsdb.Bridge
	err := s.ask(ctx, func(ctx context.Context, t *ovsdb.Topology) (err error) {
		bridges, err = t.Bridges(ctx)
		return err
	})
	if err != nil && ctx.Err() != nil {
		return err
	}
	if n.Away = err; err != nil {
		s.say(err.Error())
		return nil
	}
	s.say("")
	if err := s.ports.learn(s.own.Bridge, s.ownPorts(bridges)); err != nil {
		s.log.Warn("an agent that is started while ovsdb-server is away does not know Flowkeep's ports", "err", err)
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

// say logs once that ovsdb-server does not respond, or does again.
func (s *switches) say(what string) {
	if what == s.said {
		return
	}
	switch s.said = what; what {
	case "":
		s.log.Info("ovsdb-server responds again")
	case errNoSwitch.Error():
		s.log.Info("no process listens at ovsdb-server's endpoint", "endpoint", s.endpoint)
	default:
		s.log.Warn("Open vSwitch is left out until ovsdb-server answers", "err", what)
	}
}

// ownPorts are the ports of Flowkeep's bridge that are not known by their names.
func (s *switches) ownPorts(bridges []ovsdb.Bridge) (names []string) {
	for _, b := range bridges {
		for _, p := range b.Ports {
			for _, name := range append(p.Interfaces, p.Name) {
				if b.Name == s.own.Bridge && s.own.why(name) == "" && !slices.Contains(names, name) {
					names = append(names, name)
				}
			}
		}
	}
	return names
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
	row := l.bridgeRow()
	if row.Datapath == "" {
		var err error
		if row.Datapath, err = dptype.Choose(dptype.Auto, slog.New(slog.DiscardHandler)); err != nil {
			return err
		}
	}
	return s.ask(ctx, func(ctx context.Context, t *ovsdb.Topology) error { return t.SetBridge(ctx, row) })
}

func (s *switches) deleteBridge(ctx context.Context, name string) error {
	return s.ask(ctx, func(ctx context.Context, t *ovsdb.Topology) error { return t.DeleteBridge(ctx, name) })
}

func (s *switches) addPort(ctx context.Context, l *link, bridge string) error {
	t, err := s.topology(ctx)
	if err != nil {
		return err
	}
	if err := t.AddPort(ctx, shown(bridge), l.portRow(), l.MAC); err != nil { // which waits for ovs-vswitchd too, as long as ctx says
		return errors.Join(err, s.deletePort(context.WithoutCancel(ctx), l.Name)) // nothing half made
	}
	return nil
}

func (s *switches) deletePort(ctx context.Context, name string) error {
	return s.ask(ctx, func(ctx context.Context, t *ovsdb.Topology) error { return t.DeletePort(ctx, name) })
}

func (s *switches) setPort(ctx context.Context, l *link) error {
	return s.ask(ctx, func(ctx context.Context, t *ovsdb.Topology) error { return t.SetPort(ctx, l.portRow()) })
}

// request has Open vSwitch set what it would set back if anybody else did.
func (s *switches) request(ctx context.Context, name string, mtu int, mac string) error {
	return s.ask(ctx, func(ctx context.Context, t *ovsdb.Topology) error { return t.Request(ctx, name, mtu, mac) })
}

// runs reports whether Open vSwitch can be queried.
func (s *switches) runs() bool { return s.absence() == nil }

// needsSwitch reports whether a plan needs Open vSwitch.
func needsSwitch(steps []Step) bool {
	return slices.ContainsFunc(steps, func(s Step) bool {
		return strings.HasSuffix(s.name, keySuffix) || strings.HasSuffix(s.text, keySuffix) || s.link != nil && s.link.Type == typeOVSInterface
	})
}
