package agent

import (
	"context"
	"log/slog"
	"time"

	"github.com/flowkeep/flowkeep/ofctl/appctl"
	"github.com/flowkeep/flowkeep/ofctl/dptype"
)

// controlTime bounds how long the owner waits for an answer on ovs-vswitchd's control socket.
const controlTime = 2 * time.Second

// vswitchd sends commands to ovs-vswitchd's control socket. It is safe for concurrent use.
type vswitchd struct {
	cfg    *Config
	log    *slog.Logger
	purged chan struct{} // has an element while another purge is due
}

func newVswitchd(cfg *Config, log *slog.Logger) *vswitchd {
	return &vswitchd{cfg: cfg, log: log, purged: make(chan struct{}, 1)}
}

// control runs a command of ovs-vswitchd, in bounded time.
func (v *vswitchd) control(ctx context.Context, command string, args ...string) error {
	_, err := v.askSwitch(ctx, command, args...)
	return err
}

func (v *vswitchd) askSwitch(ctx context.Context, command string, args ...string) (string, error) {
	answer, err := v.ask(ctx, command, args...)
	if err != nil {
		return "", err
	}
	return answer()
}

// ask sends ovs-vswitchd a command. It returns a function that waits a bounded time for the response; call it once.
func (v *vswitchd) ask(ctx context.Context, command string, args ...string) (func() (string, error), error) {
	socket, err := v.cfg.controlSocket()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, controlTime)
	answer, err := appctl.Ask(ctx, socket, command, args...)
	if err != nil {
		cancel()
		return nil, err
	}
	return func() (string, error) {
		defer cancel()
		return answer()
	}, nil
}

// controlSocket returns the path of ovs-vswitchd's control socket.
func (c *Config) controlSocket() (string, error) {
	if c.OVSControl != "" {
		return c.OVSControl, nil
	}
	return appctl.Socket(c.OVSRunDir)
}

// trackHalves has the userspace datapath's conntrack accept TCP segments in any order. Of a connection to a Service
// that the node's own programs answer it sees one direction only, because the responses are translated when it sees
// them (docs/decisions/002): by the windows it knows of, a stream is invalid after 64 KiB. hostnet sets the same for the
// kernel's conntrack.
func (v *vswitchd) trackHalves(ctx context.Context) {
	if v.cfg.DatapathType != dptype.Netdev {
		return
	}
	if err := v.control(ctx, "dpctl/ct-disable-tcp-seq-chk", v.cfg.datapath()); err != nil {
		v.log.Error("could not turn off the check of TCP windows; long transfers to Services of other nodes' pods will stall",
			"error", err)
	}
}

// heldFragments is how many fragments, of all the node's pods, the userspace datapath may hold for reassembly: as many
// as Open vSwitch 3.1 allows (IPF_NFRAG_UBOUND), about 10 MB. Those behind a denied first fragment are among them, for
// 15 s.
const heldFragments = "5000"

// holdFragments leaves room for pods that send what is fragmented and denied: by default 1000 fragments are held, and no
// fragment of any other pod passes then.
func (v *vswitchd) holdFragments(ctx context.Context) {
	if v.cfg.DatapathType != dptype.Netdev {
		return
	}
	if err := v.control(ctx, "dpctl/ipf-set-max-nfrags", v.cfg.datapath(), heldFragments); err != nil {
		v.log.Error("could not raise the limit of fragments that wait for the rest of their datagram; "+
			"a pod that sends many keeps those of others from passing", "error", err)
	}
}
