package install

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// BackendNftables is the value of portmap's option backend by which it writes rules of nftables, in tables of its own.
const BackendNftables = "nftables"

const nftTimeout = 10 * time.Second

// chooseBackend returns the backend for portmap's entry. While pods are attached it is the one of the file that is
// there: a pod's DEL has to use the backend of its ADD.
func (k *keeper) chooseBackend(file string) string {
	if k.Attached != nil && k.Attached() {
		if have, err := os.ReadFile(file); err == nil {
			own := func(p ownPlugin) bool { return p.Type == Portmap }
			if plugins := pluginsOf(have); slices.ContainsFunc(plugins, own) {
				return plugins[slices.IndexFunc(plugins, own)].Backend
			}
		}
	}
	if k.Backend == nil {
		return ""
	}
	return k.Backend()
}

// Backend returns nftables if the node has an nft(8) that portmap can use, else "": portmap then takes iptables if the
// node has it. Root is the node's root directory, a mount in a container. Portmap is run by the container runtime, with
// the node's programs.
func Backend(ctx context.Context, root string) string {
	ctx, cancel := context.WithTimeout(ctx, nftTimeout)
	defer cancel()
	dirs := []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}
	if filepath.Clean(root) == "/" {
		dirs = filepath.SplitList(os.Getenv("PATH"))
	}
	for _, dir := range dirs {
		path := filepath.Join(dir, "nft")
		cmd := exec.CommandContext(ctx, path, "--version")
		if cmd.Dir = "/"; filepath.Clean(root) != "/" {
			cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
		}
		if out, err := cmd.Output(); err == nil {
			if isUsable(string(out)) {
				return BackendNftables
			}
			return ""
		}
	}
	return ""
}

// isUsable reports whether portmap takes a version of nft: the library knftables has 1.0.1 as the first.
func isUsable(version string) bool {
	return strings.HasPrefix(version, "nftables v") && !strings.HasPrefix(version, "nftables v0.") &&
		!strings.HasPrefix(version, "nftables v1.0.0 ")
}
