package vswitch

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/flowkeep/flowkeep/ofctl/appctl"
	"golang.org/x/sys/unix"
)

// configure says in the database what Open vSwitch's own scripts say when they start it.
func (r *runner) configure(ctx context.Context) error {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", r.socket())
	if err != nil {
		return fmt.Errorf("ovsdb-server does not answer yet: %w", err)
	}
	conn.Close()
	schema, err := r.tool(ctx, "ovsdb-tool", "schema-version", r.Schema)
	if err != nil {
		return err
	}
	version, err := r.tool(ctx, "ovs-vswitchd", "--version")
	if err != nil {
		return err
	}
	id, err := r.systemID()
	if err != nil {
		return err
	}
	first, _, _ := strings.Cut(version, "\n")
	_, err = r.vsctl(ctx, "--", "init", "--", "set", "Open_vSwitch", ".", "db-version="+schema, "ovs-version="+first[strings.LastIndex(first, " ")+1:],
		"external_ids:system-id="+id, "external_ids:rundir="+r.RunDir)
	return err
}

// systemID returns the ID of this switch, which is kept in a file and so survives a loss of the database.
func (r *runner) systemID() (string, error) {
	file := filepath.Join(filepath.Dir(r.Database), "system-id")
	if text, err := os.ReadFile(file); err == nil && len(strings.TrimSpace(string(text))) > 0 {
		return strings.TrimSpace(string(text)), nil
	} else if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	id := fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
	return id, os.WriteFile(file, []byte(id+"\n"), 0o600)
}

// isUp: it has a control socket and answers there.
func (r *runner) isUp(ctx context.Context, _ bool) error {
	socket, err := appctl.Socket(r.RunDir)
	if err == nil {
		_, err = appctl.Call(ctx, socket, "version")
	}
	return err
}

// countsProcessors is how old the kernel's monotonic clock is when ovs-vswitchd before 3.1.1 counts processors at first. Started before, it finds none,
// opens no socket for the kernel's datapath, and none later, when it has found them: all packets that the kernel has no flow for are lost until it is
// started again (Open vSwitch, "ovs-thread: Fix cpus not read for the first 10s.").
const countsProcessors = 10 * time.Second

// awaitProcessors lets a kernel become old enough that ovs-vswitchd can be started.
func (r *runner) awaitProcessors(ctx context.Context) error {
	enough := countsProcessors + time.Second
	if r.oldEnough != 0 {
		enough = r.oldEnough
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return err
	}
	wait := enough - time.Duration(now.Nano())
	if wait <= 0 {
		return nil
	}
	r.Health.SetReady("ovs-vswitchd", "the kernel has just been started, and Open vSwitch is not started in its first ten seconds")
	r.Logger.Info("waiting to start ovs-vswitchd: in the kernel's first ten seconds some versions find no processors", "for", wait)
	select {
	case <-time.After(wait):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// restoring is the key by which ovs-vswitchd, when it starts, neither forgets the flows that the kernel has nor takes packets from it.
const restoring = "flow-restore-wait"

// holdFlows lets the kernel keep its flows until netplugin has sent ovs-vswitchd its flows again, if there were any.
func (r *runner) holdFlows(ctx context.Context, before bool) error {
	if r.endHold != nil { // of the last life
		r.endHold()
		r.hold.Wait()
	}
	bridges, err := r.vsctl(ctx, "--bare", "--columns=name", "find", "Bridge", "external_ids:owner=flowkeep")
	if err != nil {
		return err
	}
	if !before || bridges == "" || r.HoldFlows == 0 {
		return r.letGo(ctx)
	}
	if _, err := r.vsctl(ctx, "set", "Open_vSwitch", ".", "other_config:"+restoring+"=true"); err != nil {
		return err
	}
	r.Logger.Info("the kernel forwards by the flows it has until the switch has its own again", "bridges", strings.Fields(bridges), "at most", r.HoldFlows)
	ctx, r.endHold = context.WithCancel(ctx)
	r.hold.Go(func() { r.awaitFlows(ctx, strings.Fields(bridges)) })
	return nil
}

// awaitFlows ends the hold when each of the bridges has flows, which netplugin sends all at once, or when it has lasted too long.
func (r *runner) awaitFlows(ctx context.Context, bridges []string) {
	began := time.Now()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	held := true
	for held && time.Since(began) < r.HoldFlows {
		select {
		case <-tick.C:
			held = !r.haveFlows(ctx, bridges)
		case <-ctx.Done():
			return // the next one decides
		}
	}
	for ctx.Err() == nil {
		err := r.letGo(ctx)
		if err == nil && held {
			r.Logger.Warn("netplugin has not installed its flows; deleting the kernel's former flows, and no packet passes until it does", "after", r.HoldFlows)
		} else if err == nil {
			r.Logger.Info("the switch has its flows", "after", time.Since(began))
		}
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

func (r *runner) letGo(ctx context.Context) error {
	_, err := r.vsctl(ctx, "remove", "Open_vSwitch", ".", "other_config", restoring)
	return err
}

func (r *runner) haveFlows(ctx context.Context, bridges []string) bool {
	for _, name := range bridges {
		out, err := r.tool(ctx, "ovs-ofctl", "-OOpenFlow13", "dump-aggregate", "unix:"+filepath.Join(r.RunDir, name+".mgmt"))
		if err != nil || !strings.Contains(out, "flow_count=") || strings.HasSuffix(out, "flow_count=0") {
			return false
		}
	}
	return true
}
