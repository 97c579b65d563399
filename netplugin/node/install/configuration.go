package install

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// ConfigurationFile is the CNI configuration's name. A container runtime takes the first name in its directory.
const ConfigurationFile = "10-flowkeep.conflist"

// Config says where the configuration goes and when.
type Config struct {
	Dir, Socket string
	Ready       func() bool
	Changes     func() <-chan struct{} // closed when Ready may say something else
	Backend     func() string          // of portmap on this node, "" if portmap is to choose; may be nil
	Attached    func() bool            // the node has pods; may be nil
	CountWrite  func(file string) bool // counts a write of the file, and returns whether to log it; nil: each is logged
	Logger      *slog.Logger
}

// again is the time between two comparisons of the file with what it should be: reading one small file costs nothing.
const again = 500 * time.Millisecond

// Keep writes the configuration when the node is ready for the first time. From then on it restores netplugin's entries
// whenever they are missing or different, and leaves entries of other programs in place. It returns when ctx ends; the
// file stays. While netplugin is away or not ready, its socket has runtimes try again.
func Keep(ctx context.Context, cfg *Config) {
	k := keeper{Config: cfg}
	tick := time.NewTicker(again)
	defer tick.Stop()
	for {
		changed := cfg.Changes()
		k.look()
		select {
		case <-changed:
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

type keeper struct {
	*Config
	begun   bool
	backend string // of portmap, from the first look on
	before  string // files before Flowkeep's, logged last
	chained string // types of other programs' plugins, logged last
	problem string // logged last
}

func (k *keeper) look() {
	file := filepath.Join(k.Dir, ConfigurationFile)
	if !k.begun && !k.Ready() {
		return
	}
	if !k.begun {
		k.begun, k.backend = true, k.chooseBackend(file)
	}
	before, err := Before(k.Dir)
	k.keepFile(file, err == nil && len(before) == 0)
	if text := strings.Join(before, " "); err == nil && text != k.before {
		if k.before = text; text != "" {
			k.Logger.Warn("the container runtime takes another CNI configuration, whose name is before Flowkeep's: "+
				"new pods have that network, and no policies; remove it", "dir", k.Dir, "files", text)
		}
	}
}

// keepFile restores netplugin's entries, and logs a failure once. The container runtime reads the file if isRead.
func (k *keeper) keepFile(name string, isRead bool) {
	list, changed, err := k.restore(name, isRead)
	switch {
	case err != nil && err.Error() != k.problem:
		k.Logger.Error("could not write the CNI configuration; the node takes no pods without it", "error", err)
	case changed && (k.CountWrite == nil || k.CountWrite(name)):
		k.Logger.Info("wrote the CNI configuration", "file", name)
	}
	k.problem = ""
	if err != nil {
		k.problem = err.Error()
		return
	}
	if text := strings.Join(others(list), " "); text != k.chained {
		k.Logger.Info("plugins of other programs in the CNI configuration have changed", "file", name, "plugins", text)
		k.chained = text
	}
}

// restore writes the file if netplugin's entries are not as they should be, and returns what the file has then. One
// that is no configuration is replaced.
func (k *keeper) restore(name string, isRead bool) (list []byte, changed bool, err error) {
	list, _, err = Merge(Configuration(k.Socket, k.backend), k.Socket, k.backend, isRead)
	if err != nil {
		return nil, false, err
	}
	if info, err := os.Lstat(name); err == nil && info.Mode().IsRegular() {
		have, err := os.ReadFile(name)
		if err != nil {
			return nil, false, err
		}
		switch merged, differs, err := Merge(have, k.Socket, k.backend, isRead); {
		case err == nil && !differs:
			return have, false, nil
		case err == nil:
			list = merged
		}
	}
	changed, err = replace(name, list, 0o644)
	return list, changed, err
}

// Before returns the names of configurations that a container runtime takes instead of Flowkeep's. One with Flowkeep's
// plugin as the first is Flowkeep's network, with plugins that another program has chained to it.
func Before(dir string) (names []string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list CNI configurations: %w", err)
	}
	for _, e := range entries {
		name := e.Name()
		if e.IsDir() || name >= ConfigurationFile || !slices.Contains(extensions, filepath.Ext(name)) {
			continue
		}
		if !attachesFirst(filepath.Join(dir, name)) {
			names = append(names, name)
		}
	}
	return names, nil
}

// extensions are those of the files that container runtimes read.
var extensions = []string{".conf", ".conflist", ".json"}

// attachesFirst reports whether a configuration has Flowkeep's plugin as the first.
func attachesFirst(name string) bool {
	if info, err := os.Stat(name); err != nil || !info.Mode().IsRegular() {
		return false
	}
	list, err := os.ReadFile(name)
	types := pluginTypes(list)
	return err == nil && len(types) > 0 && types[0] == Plugin
}
