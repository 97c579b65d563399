package cluster

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
)

// ErrNoHistory is returned where this clone lacks a commit.
var ErrNoHistory = errors.New("this clone's history lacks the commit: run git fetch --unshallow, and repeat")

// Earlier builds netmaster, netplugin and flowkeep-cni of an earlier commit, once, and returns the directory that they are in.
func (c *Cluster) Earlier(ctx context.Context, commit string) (programs string, err error) {
	text, err := output(exec.CommandContext(ctx, filepath.Join(c.source, "earlier"), commit))
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == 3 {
		return "", fmt.Errorf("%w (%s)", ErrNoHistory, commit)
	}
	return strings.TrimSpace(text), err
}

// Keep copies the programs that the sandbox runs to a directory.
func (c *Cluster) Keep(ctx context.Context, to string) error {
	_, err := c.script(ctx, fmt.Sprintf(`cp "$RUN"/flowkeep/bin/net{master,plugin} "$RUN"/node1/cni/bin/flowkeep-cni %q/`, to))
	return err
}

// replaceMaster and replaceNode put other programs in place of those that run, as an upgrade does: what runs is stopped,
// and starts again with the same flags and files. A netplugin without --portmap or --services starts without them.
const (
	replaceMaster = `cp %[1]q/netmaster "$RUN/flowkeep/bin/netmaster.new"; mv "$RUN/flowkeep/bin/netmaster.new" "$RUN/flowkeep/bin/netmaster"
		stop netmaster; restart netmaster`
	replaceNode = `for at in flowkeep/bin/netplugin %[2]s/cni/bin/flowkeep-cni; do cp %[1]q/"${at##*/}" "$RUN/$at.new"; mv "$RUN/$at.new" "$RUN/$at"; done
		command="$RUN/pids/.%[2]s-netplugin.command"
		for flag in --portmap --services; do
			kept="$command$flag"
			if "$RUN/flowkeep/bin/netplugin" --help | grep -e "$flag " >/dev/null; then
				[ ! -e "$kept" ] || { sed -i "s|\$| $(cat "$kept")|" "$command"; rm "$kept"; }
			elif grep -oe "$flag [^ ]*" "$command" >"$command.found"; then
				mv "$command.found" "$kept"; sed -i "s| $flag [^ ]*||" "$command"
			fi
		done
		stop %[2]s-netplugin; restart %[2]s-netplugin`
)

// ReplaceMaster runs the netmaster of a directory of programs.
func (c *Cluster) ReplaceMaster(ctx context.Context, programs string) error {
	_, err := c.script(ctx, fmt.Sprintf(replaceMaster, programs))
	return err
}

// ReplaceNode runs the netplugin and the CNI program of a directory of programs on a node.
func (c *Cluster) ReplaceNode(ctx context.Context, node, programs string) error {
	_, err := c.script(ctx, fmt.Sprintf(replaceNode, programs, node))
	return err
}
