// Package appctl asks ovs-vswitchd on its control socket, as ovs-appctl(8) does: what OpenFlow has no message for.
package appctl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Socket is ovs-vswitchd's control socket in its run directory: named after the pid in its pid file.
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

// Call runs one command and returns what it prints. What ovs-vswitchd refuses is an error with its words. The connection is
// closed when ctx ends.
func Call(ctx context.Context, socket, command string, args ...string) (string, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return "", fmt.Errorf("ask ovs-vswitchd: %w", err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if args == nil {
		args = []string{}
	}
	request := map[string]any{"id": 0, "method": command, "params": args}
	if err := json.NewEncoder(conn).Encode(request); err != nil {
		return "", errors.Join(fmt.Errorf("ask ovs-vswitchd: %s: %w", command, err), ctx.Err())
	}
	var reply struct {
		Result *string `json:"result"`
		Error  *string `json:"error"`
	}
	if err := json.NewDecoder(conn).Decode(&reply); err != nil {
		return "", errors.Join(fmt.Errorf("ask ovs-vswitchd: %s: %w", command, err), ctx.Err())
	}
	if reply.Error != nil {
		return "", fmt.Errorf("ovs-vswitchd refused %s: %s", command, strings.TrimSpace(*reply.Error))
	}
	if reply.Result == nil {
		return "", fmt.Errorf("ask ovs-vswitchd: %s: no answer", command)
	}
	return *reply.Result, nil
}
