// Package appctl asks ovs-vswitchd on its control socket, as ovs-appctl(8) does: what OpenFlow has no message for.
package appctl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Socket returns the path of ovs-vswitchd's control socket in its run directory; the pid file has the pid in its name.
func Socket(runDir string) (string, error) {
	text, err := os.ReadFile(filepath.Join(runDir, "ovs-vswitchd.pid"))
	if err != nil {
		return "", fmt.Errorf("find ovs-vswitchd's control socket: %w", err)
	}
	pid, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 31)
	if err != nil {
		return "", fmt.Errorf("find ovs-vswitchd's control socket: %s/ovs-vswitchd.pid holds no pid: %q", runDir, text)
	}
	return filepath.Join(runDir, fmt.Sprintf("ovs-vswitchd.%d.ctl", pid)), nil
}

// Call runs one command and returns what it prints. What ovs-vswitchd refuses is an error with its words. The
// connection is closed when ctx ends.
func Call(ctx context.Context, socket, command string, args ...string) (string, error) {
	answer, err := Ask(ctx, socket, command, args...)
	if err != nil {
		return "", err
	}
	return answer()
}

// Ask sends a command and returns without waiting for the response. The returned function waits for the response and
// closes the connection; call it exactly once.
func Ask(ctx context.Context, socket, command string, args ...string) (answer func() (string, error), err error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, fmt.Errorf("query ovs-vswitchd: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	if args == nil {
		args = []string{}
	}
	request := map[string]any{"id": 0, "method": command, "params": args}
	if err := json.NewEncoder(conn).Encode(request); err != nil {
		stop()
		return nil, errors.Join(fmt.Errorf("query ovs-vswitchd: %s: %w", command, err), ctx.Err(), conn.Close())
	}
	return func() (string, error) {
		defer conn.Close()
		defer stop()
		text, err := read(conn, command)
		if err != nil {
			err = errors.Join(err, ctx.Err())
		}
		return text, err
	}, nil
}

func read(r io.Reader, command string) (string, error) {
	var reply struct {
		Result *string `json:"result"`
		Error  *string `json:"error"`
	}
	switch err := json.NewDecoder(r).Decode(&reply); {
	case err != nil:
		return "", fmt.Errorf("query ovs-vswitchd: %s: %w", command, err)
	case reply.Error != nil:
		return "", fmt.Errorf("ovs-vswitchd refused %s: %s", command, strings.TrimSpace(*reply.Error))
	case reply.Result == nil:
		return "", fmt.Errorf("query ovs-vswitchd: %s: no response", command)
	}
	return *reply.Result, nil
}
