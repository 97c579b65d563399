package agent

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/netplugin/hostnet"
	"github.com/flowkeep/flowkeep/netplugin/ipam"
)

// numberCheck is what is known about numbers that other programs use. Its fields belong to the goroutine of
// keepNetwork.
type numberCheck struct {
	taken    []string          // of hostnet.Config.Taken, of the comparison that runs
	inUse    hostnet.Numbers   // zero: not yet chosen
	earlier  []hostnet.Numbers // of starts before this one
	kept     string            // why inUse are not the configured ones; empty if they are
	recorded bool              // the record was written, or that was tried
}

// maxTaken is the number of objects of other programs in a text.
const maxTaken = 3

// chooseNumbers sets the numbers to use until the next start, and returns an error if another program has one of the
// configured ones and netplugin has never set up the host's network on this node. On a node that has other numbers from
// before, it keeps those: pods of the node need the network.
func (h *hostKeeper) chooseNumbers(podCIDRs []netip.Prefix) error {
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
		taken, err := hostnet.Taken(wanted, podCIDRs)
		if err != nil {
			return err
		}
		if len(taken) > 0 {
			return fmt.Errorf("this first installation on the node needs numbers that another program uses: %s",
				textOf(taken))
		}
	case before != wanted:
		taken, err := hostnet.TakenLater(wanted, podCIDRs)
		if err != nil {
			return err
		}
		if len(taken) > 0 && before == (hostnet.Numbers{}) {
			return fmt.Errorf("%s has no numbers that are possible, and another program uses the configured ones: %s",
				hostnet.RecordPath(h.cfg.StateDir), textOf(taken))
		}
		if len(taken) > 0 {
			h.numbers.kept = fmt.Sprintf("netplugin keeps table %d and first priority %d until it restarts, not %d "+
				"and %d as configured: %s", before.Table, before.Priority, wanted.Table, wanted.Priority, textOf(taken))
			wanted = before
		}
	}
	h.numbers.inUse = wanted
	return nil
}

func textOf(taken []string) string { return strings.Join(taken[:min(len(taken), maxTaken)], "; ") }

// numbersBefore returns the numbers with which netplugin has set up the host's network on this node before, and reports
// whether it has. They are zero if those of the record and of the rules are not possible, as another version's may be:
// then Setup only removes these rules. A version that recorded nothing left allocated addresses, also after a reboot.
// The rule set on disk shows nothing: it is there also while an installation is refused.
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
	list, installed, err := hostnet.Installed()
	if n != (hostnet.Numbers{}) {
		list = append([]hostnet.Numbers{n}, list...)
	}
	h.numbers.earlier = list
	if recorded || allocated { // whatever else could not be read
		installed, err = true, nil
	}
	possible := slices.DeleteFunc(slices.Clone(list), func(n hostnet.Numbers) bool { return n.Check() != nil })
	if len(possible) == 0 && (recorded || len(list) > 0) {
		return hostnet.Numbers{}, installed, err
	}
	return append(possible, hostnet.FormerNumbers)[0], installed, err
}

// recordInstalled records once that the host's network has been set up.
func (h *hostKeeper) recordInstalled() {
	if h.numbers.recorded || h.cfg.StateDir == "" {
		return
	}
	h.numbers.recorded = true
	defer h.disk.writes.begin("the numbers of the host's network")()
	if err := hostnet.WriteRecord(h.cfg.StateDir, h.numbers.inUse); err != nil {
		h.log.Warn("a start after a reboot may refuse numbers that another program uses", "error", err)
	}
}
