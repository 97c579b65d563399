package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/flowkeep/flowkeep/netplugin/hostnet"
)

// installedFile is in the state directory of a node on which netplugin has set up the host's network.
const installedFile = "host-network"

// numberCheck is what is known about numbers that other programs use.
type numberCheck struct {
	taken     []string // of hostnet.Config.Taken, of the comparison that runs
	installed bool     // the host's network was set up before, or no other program had a number
	recorded  bool     // installedFile was written, or that was tried
}

// checkNumbers returns an error if another program has one of Flowkeep's numbers and netplugin has never set up the
// host's network on this node. Later it goes on: pods of the node need the network, and the problem is reported.
func (h *hostKeeper) checkNumbers() error {
	if h.numbers.installed {
		return nil
	}
	before, err := h.isInstalled()
	if err != nil {
		return err
	}
	if !before {
		taken, err := hostnet.Taken(h.cfg.Numbers)
		if err != nil {
			return err
		}
		if len(taken) > 0 {
			const most = 3
			return fmt.Errorf("this first installation on the node needs numbers that another program uses: %s",
				strings.Join(taken[:min(len(taken), most)], "; "))
		}
	}
	h.numbers.installed = true
	return nil
}

func (h *hostKeeper) isInstalled() (bool, error) {
	if h.cfg.StateDir != "" {
		_, err := os.Stat(filepath.Join(h.cfg.StateDir, installedFile))
		if err == nil {
			return true, nil
		}
		if !errors.Is(err, os.ErrNotExist) {
			h.log.Warn("could not read whether the host's network was set up before", "error", err)
		}
	}
	return hostnet.Installed()
}

// recordInstalled records once that the host's network has been set up.
func (h *hostKeeper) recordInstalled() {
	if h.numbers.recorded || h.cfg.StateDir == "" {
		return
	}
	h.numbers.recorded = true
	n := h.cfg.Numbers.OrDefault()
	text := fmt.Sprintf("table %d, first priority %d\n", n.Table, n.Priority)
	if err := os.WriteFile(filepath.Join(h.cfg.StateDir, installedFile), []byte(text), 0o600); err != nil {
		h.log.Warn("could not record that the host's network was set up; a start after a reboot refuses numbers that "+
			"another program uses", "error", err)
	}
}
