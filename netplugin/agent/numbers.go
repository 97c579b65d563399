package agent

import (
	"errors"
	"fmt"
	"strings"

	"github.com/flowkeep/flowkeep/netplugin/hostnet"
	"github.com/flowkeep/flowkeep/netplugin/ipam"
)

// numberCheck is what is known about numbers that other programs use.
type numberCheck struct {
	taken     []string // of hostnet.Config.Taken, of the comparison that runs
	installed bool     // the host's network was set up before, or no other program had a number
	recorded  bool     // the record was written, or that was tried
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

// isInstalled reports whether netplugin has set up the host's network on this node before. A version that recorded
// nothing left allocated addresses, also after a reboot. The rule set on disk shows nothing: it is there also while an
// installation is refused.
func (h *hostKeeper) isInstalled() (bool, error) {
	if dir := h.cfg.StateDir; dir != "" {
		_, recorded, err := hostnet.ReadRecord(dir)
		allocated, allocatedErr := ipam.HasAllocated(dir)
		if recorded || allocated {
			return true, nil
		}
		if err := errors.Join(err, allocatedErr); err != nil {
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
	if err := hostnet.WriteRecord(h.cfg.StateDir, h.cfg.Numbers.OrDefault()); err != nil {
		h.log.Warn("a start after a reboot may refuse numbers that another program uses", "error", err)
	}
}
