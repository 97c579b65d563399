package endpoints

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// minCollectedAge is the age from which GC may remove the attachment of a pod that has not ended: the first process of
// a sandbox starts after the ADD. The kubelet gives up a sandbox after this time (runtimeRequestTimeout).
const minCollectedAge = 2 * time.Minute

// GC removes attachments that are not among the valid ones, each "container/ifname", and releases addresses that no
// endpoint has. An attachment that is not valid stays while its pod may live: another container runtime that uses the
// same CNI configuration lists other pods, and a client may list none. It goes if the pod has ended as Sweep defines
// it, or if it is old and no process is in its network namespace. That no process is seen there counts only while a
// process of a valid attachment is seen. One GC reads the node's processes once.
func (m *Manager) GC(ctx context.Context, valid []string) error {
	if err := m.cfg.inHost(); err != nil {
		return fmt.Errorf("collect attachments: %w", err)
	}
	isValid := make(map[string]bool, len(valid))
	for _, key := range valid {
		isValid[key] = true
	}
	all := m.List()
	left := slices.DeleteFunc(slices.Clone(all), func(e Endpoint) bool {
		return isValid[keyOf(e.ContainerID, e.IfName)] || m.unread.has(m.files.path(e.ContainerID, e.IfName))
	})
	var errs []error
	if len(left) > 0 {
		inUse, err := usedNamespaces(cmp.Or(m.cfg.Proc, "/proc"), all, isValid)
		errs = append(errs, err, collection{sweep{Manager: m}, inUse}.collect(ctx, left))
	}
	return errors.Join(append(errs, m.keepAddresses())...)
}

// collection is one GC. inUse has the network namespaces of the node's processes; nil: not known.
type collection struct {
	sweep
	inUse map[namespace]bool
}

// collect removes the attachments of pods that have ended, and those in whose network namespaces no process is. It
// logs the others.
func (m collection) collect(ctx context.Context, left []Endpoint) error {
	var errs []error
	var kept []string
	for i := range left {
		e := &left[i]
		if ctx.Err() != nil {
			return errors.Join(append(errs, ctx.Err())...)
		}
		remove := func(now *Endpoint) bool {
			return !now.Realised || hasEnded(now) || m.inUse != nil && m.isDeserted(now)
		}
		if !remove(e) {
			kept = append(kept, podName(e))
			continue
		}
		errs = append(errs, m.undoIf(ctx, e, "removing an attachment that the container runtime does not list", remove))
	}
	if len(kept) > 0 {
		slices.Sort(kept)
		m.cfg.Logger.Warn("the container runtime does not list these pods as attached; they are kept, because they "+
			"may be running: do two container runtimes use this CNI configuration?",
			"count", len(kept), "pods", strings.Join(kept[:min(len(kept), maxNamed)], ", "))
	}
	return errors.Join(errs...)
}

// isDeserted reports whether an attachment is old, and no process is in its network namespace.
func (m collection) isDeserted(e *Endpoint) bool {
	file, err := os.Stat(m.files.path(e.ContainerID, e.IfName))
	if err != nil || time.Since(file.ModTime()) < minCollectedAge {
		return false
	}
	n, err := namespaceAt(e.NetNS)
	return err == nil && !m.inUse[n]
}

// namespace identifies a network namespace by device and inode (namespaces(7)).
type namespace struct{ device, inode uint64 }

func namespaceAt(path string) (namespace, error) {
	var st syscall.Stat_t
	if err := syscall.Stat(path, &st); err != nil {
		return namespace{}, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	return namespace{st.Dev, st.Ino}, nil
}

// usedNamespaces returns the network namespaces of the node's processes. It returns nil if no process of a valid
// attachment is among them: the process directory may be that of another PID namespace than pods'.
func usedNamespaces(proc string, all []Endpoint, isValid map[string]bool) (map[namespace]bool, error) {
	entries, err := os.ReadDir(proc)
	if err != nil {
		return nil, fmt.Errorf("list the node's processes: %w", err)
	}
	used := map[namespace]bool{}
	for _, entry := range entries {
		if _, err := strconv.Atoi(entry.Name()); err != nil {
			continue
		}
		n, err := namespaceAt(filepath.Join(proc, entry.Name(), "ns", "net"))
		switch {
		case err == nil:
			used[n] = true
		case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ESRCH): // the process has not ended
			return nil, fmt.Errorf("find the network namespaces of processes: %w", err)
		}
	}
	for i := range all {
		n, err := namespaceAt(all[i].NetNS)
		if err == nil && used[n] && isValid[keyOf(all[i].ContainerID, all[i].IfName)] {
			return used, nil
		}
	}
	return nil, nil
}
