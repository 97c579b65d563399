package install

import (
	"context"
	"encoding/json"
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

// Configuration is the network of pods as container runtimes read it: netplugin, at that socket, wires them, and then ports of the node that
// pods ask for lead to them.
func Configuration(socket string) []byte {
	type plugin struct {
		Type         string          `json:"type"`
		Socket       string          `json:"socket,omitempty"`
		Capabilities map[string]bool `json:"capabilities,omitempty"`
		SNAT         bool            `json:"snat,omitempty"`
	}
	out, err := json.MarshalIndent(struct {
		CNIVersion string   `json:"cniVersion"`
		Name       string   `json:"name"`
		Plugins    []plugin `json:"plugins"`
	}{"1.0.0", "flowkeep", []plugin{
		{Type: Plugin, Socket: socket},
		{Type: Portmap, Capabilities: map[string]bool{"portMappings": true}, SNAT: true},
	}}, "", "  ")
	if err != nil {
		panic(err) // strings and booleans
	}
	return append(out, '\n')
}

// Config says where the configuration goes and when.
type Config struct {
	Dir, Socket string
	Ready       func() bool
	Changes     func() <-chan struct{} // closed when Ready may say something else
	Logger      *slog.Logger
}

// again is the time between two comparisons of the file with what it should be: reading one small file costs nothing.
const again = 500 * time.Millisecond

// Keep writes the configuration when the node is ready for the first time, and from then on again whenever it is gone or another: until ctx ends,
// and it stays. While netplugin is away or not ready, its socket has runtimes try again.
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
	said    string // of what is before
	problem string
}

func (k *keeper) look() {
	if k.begun = k.begun || k.Ready(); !k.begun {
		return
	}
	changed, err := replace(filepath.Join(k.Dir, ConfigurationFile), Configuration(k.Socket), 0o644)
	switch {
	case err != nil && err.Error() != k.problem:
		k.Logger.Error("could not write the CNI configuration; the node takes no pods without it", "error", err)
	case changed:
		k.Logger.Info("wrote the CNI configuration", "file", filepath.Join(k.Dir, ConfigurationFile))
	}
	k.problem = ""
	if err != nil {
		k.problem = err.Error()
	}
	if before, err := Before(k.Dir); err == nil {
		if text := strings.Join(before, " "); text != k.said && text != "" {
			k.Logger.Warn("the container runtime takes another CNI configuration, whose name is before Flowkeep's: new pods have that network, and no policies; remove it",
				"dir", k.Dir, "files", text)
		}
		k.said = strings.Join(before, " ")
	}
}

// Before are the configurations that a container runtime takes instead of Flowkeep's.
func Before(dir string) (names []string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list CNI configurations: %w", err)
	}
	for _, e := range entries {
		if name := e.Name(); !e.IsDir() && name < ConfigurationFile && slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(name)) {
			names = append(names, name)
		}
	}
	return names, nil
}
