package agent

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/flowkeep/flowkeep/netplugin/hostnet"
	"github.com/flowkeep/flowkeep/netplugin/ipam"
)

// numberCheck is what is known about numbers that other programs use. Its fields but table belong to the goroutine of
// keepNetwork.
type numberCheck struct {
	taken    []string        // of hostnet.Config.Taken, of the comparison that runs
	inUse    hostnet.Numbers // zero: not yet chosen
	table    atomic.Int64    // of inUse; 0: not yet chosen
	kept     string          // why inUse are not the configured ones; empty if they are
	recorded bool            // the record was written, or that was tried
}

// maxTaken is the number of objects of other programs in a text.
const maxTaken = 3

// chooseNumbers sets the numbers to use until the next start, and returns an error if another program has one of the
// configured ones and netplugin has never set up the host's network on this node. On a node that has other numbers from
// before, it keeps those: pods of the node need the network.
func (h *hostKeeper) chooseNumbers() error {
	if h.numbers.inUse != (hostnet.Numbers{}) {
		return nil
	}
	before, installed, err := h.numbersBefore()
	if err != nil {
		return err
	}
	wanted := h.cfg.Numbers.OrDefault()
	switch {
	case !installed:
		taken, err := hostnet.Taken(wanted)
		if err != nil {
			return err
		}
		if len(taken) > 0 {
			return fmt.Errorf("this first installation on the node needs numbers that another program uses: %s",
				textOf(taken))
		}
	case before != wanted:
		taken, err := hostnet.TakenLater(wanted)
		if err != nil {
			return err
		}
		if len(taken) > 0 {
			h.numbers.kept = fmt.Sprintf("netplugin keeps table %d and first priority %d until it restarts, not %d and "+
				"%d as configured: %s", before.Table, before.Priority, wanted.Table, wanted.Priority, textOf(taken))
			wanted = before
		}
	}
	h.numbers.inUse = wanted
	h.numbers.table.Store(int64(wanted.Table))
	return nil
}

func textOf(taken []string) string { return strings.Join(taken[:min(len(taken), maxTaken)], "; ") }

// serviceTable returns the routing table of Services in use. It is safe for concurrent use.
func (h *hostKeeper) serviceTable() int {
	return int(cmp.Or(h.numbers.table.Load(), int64(h.cfg.Numbers.OrDefault().Table)))
}

// numbersBefore returns the numbers with which netplugin has set up the host's network on this node before, and reports
// whether it has. A version that recorded nothing left allocated addresses, also after a reboot. The rule set on disk
// shows nothing: it is there also while an installation is refused.
func (h *hostKeeper) numbersBefore() (n hostnet.Numbers, installed bool, err error) {
	var recorded, allocated bool
	if dir := h.cfg.StateDir; dir != "" {
		var recordErr, storeErr error
		n, recorded, recordErr = hostnet.ReadRecord(dir)
		allocated, storeErr = ipam.HasAllocated(dir)
		if err := errors.Join(recordErr, storeErr); err != nil {
			h.log.Warn("could not read whether the host's network was set up before", "error", err)
		}
	}
	if n != (hostnet.Numbers{}) {
		return n, true, nil
	}
	n, installed, err = hostnet.Installed()
	if n == (hostnet.Numbers{}) {
		n = hostnet.FormerNumbers
	}
	return n, installed || recorded || allocated, err
}

// recordInstalled records once that the host's network has been set up.
func (h *hostKeeper) recordInstalled() {
	if h.numbers.recorded || h.cfg.StateDir == "" {
		return
	}
	h.numbers.recorded = true
	if err := hostnet.WriteRecord(h.cfg.StateDir, h.numbers.inUse); err != nil {
		h.log.Warn("a start after a reboot may refuse numbers that another program uses", "error", err)
	}
}
