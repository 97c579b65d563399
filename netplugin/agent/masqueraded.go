package agent

import (
	"context"
	"slices"
	"time"

	"github.com/flowkeep/flowkeep/netplugin/hostnet"
)

// serveDeletions deletes, for each request until ctx ends, the connections that were opened as the node's own while the
// nftables tables were missing. It deletes twice: packets that were on their way during the repair can open one.
func (h *hostKeeper) serveDeletions(ctx context.Context) {
	for {
		var cfg hostnet.Config
		select {
		case cfg = <-h.deletions:
		case <-ctx.Done():
			return
		}
		for range 2 {
			h.deleteMasqueraded(ctx, &cfg)
			select {
			case <-time.After(retryEvery):
			case <-ctx.Done():
				return
			}
		}
	}
}

// deleteMasqueraded deletes the connections, and tries again after an error.
func (h *hostKeeper) deleteMasqueraded(ctx context.Context, cfg *hostnet.Config) {
	problem := ""
	for pause := retryEvery; ctx.Err() == nil; pause = min(2*pause, hostInterval) {
		n, err := hostnet.DeleteMasqueraded(cfg)
		if n > 0 {
			h.log.Warn("deleted connections that were opened as the node's own while nftables tables were missing; "+
				"their clients open them again", "connections", n)
		}
		if err == nil {
			return
		}
		if err.Error() != problem {
			problem = err.Error()
			h.log.Error("could not delete the connections that were opened while nftables tables were missing; "+
				"to policies they are the node's own", "error", err)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// requestDeletion requests the deletion of connections after the first comparison, and after one before which, or
// during which, a program has changed the nftables tables.
func (h *hostKeeper) requestDeletion(cfg *hostnet.Config) {
	repaired := slices.Contains(h.repaired[hostnet.ObjectNftables], hostnet.TableName)
	if touched := h.kept.Touched(); h.requested && !touched && !repaired {
		return
	}
	h.requested = true
	select {
	case h.deletions <- *cfg:
	default: // the deletion that is due comes after this comparison too
	}
}
