package conntrack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/flowkeep/flowkeep/ofctl"
)

// What Conntrack may say.
var (
	// ErrTooMany is wrapped by Dump's error where there are more connections than may be listed.
	ErrTooMany = errors.New("too many connections to be listed")
	// ErrCannot is wrapped by Forget's where the switch has no such thing.
	ErrCannot = errors.New("the switch cannot delete conntrack entries")
)

// passes is the maximum number of deletions in a row for entries that were added meanwhile, and blindly the number of
// deletions if the entries cannot be listed. Connections that peers opened are deleted at most twice, no matter how
// many they open meanwhile.
const (
	passes     = 3
	blindly    = 2
	peerPasses = 2
)

// secondLook is the time between the first deletion of connections and the next list. A packet that the switch was
// forwarding during the deletion may create an entry after it.
const secondLook = 100 * time.Millisecond

// patience is how long the pods that wait for an address wait altogether, while deletions fail, until they go on
// without. Time without a waiting pod does not count.
const patience = time.Minute

var (
	errUnread    = errors.New("unknown form of a conntrack entry")
	errOvertaken = errors.New("a pod waits for another address")
	errMissed    = errors.New("entries remain after their deletion")
)

// Gone returns when the connections of a pod whose port is shut are counted and forgotten, or with ctx: its address
// may not be given to another before. Where the switch does not answer they are forgotten as soon as it does.
func (c *Counter) Gone(ctx context.Context, endpoint string, addrs []netip.Addr) {
	if len(addrs) == 0 {
		return
	}
	done := make(chan struct{})
	c.push(Change{Endpoint: endpoint, Gone: addrs, done: done})
	c.Had(addrs) // all that they are owed is known now
	signal(c.urgent)
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// Had registers addresses of pods that exist since before the start: the conntrack entries of these addresses are
// theirs.
func (c *Counter) Had(addrs []netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, a := range addrs {
		c.since[a] = true
	}
}

// Free returns when conntrack has no entries of earlier pods for the addresses. If they were deleted later, the new
// pod's entries would be deleted too. After a start it is unknown which deletions are due, so the first pod of an
// address with entries waits until they have been deleted once.
func (c *Counter) Free(ctx context.Context, addrs []netip.Addr) error {
	defer c.await(addrs)()
	c.oweUnknown(addrs)
	for {
		c.mu.Lock()
		freed, owes := c.freed, slices.ContainsFunc(addrs, c.owes)
		c.mu.Unlock()
		if !owes {
			return nil
		}
		select {
		case <-freed:
		case <-ctx.Done():
			return fmt.Errorf("conntrack entries of the previous pod with %v are not deleted yet: %w", addrs, ctx.Err())
		}
	}
}

// await notes that a pod waits for the addresses, until the function that it returns is called.
func (c *Counter) await(addrs []netip.Addr) (end func()) {
	add := func(n int) {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, a := range addrs {
			if c.awaited[a] += n; c.awaited[a] == 0 {
				delete(c.awaited, a)
				c.tried.pause(a, time.Now())
			}
		}
	}
	add(1)
	return func() { add(-1) }
}

// oweUnknown schedules a deletion for each address that had no pod since the start, unless it is known to have no
// entries.
func (c *Counter) oweUnknown(addrs []netip.Addr) {
	c.mu.Lock()
	before := len(c.owed)
	for _, a := range addrs {
		if !c.since[a] && !c.owes(a) && (c.left == nil || c.left[a]) {
			c.owed = append(c.owed, a)
		}
		c.since[a] = true
	}
	more := len(c.owed) > before
	c.mu.Unlock()
	if more {
		signal(c.wake)
		signal(c.urgent)
	}
}

// owes reports whether a deletion is due for the address. The caller holds the lock.
func (c *Counter) owes(a netip.Addr) bool {
	return slices.Contains(c.owed, a) ||
		slices.ContainsFunc(c.waiting, func(ch Change) bool { return slices.Contains(ch.Gone, a) })
}

// batch returns the addresses whose entries are to be deleted next: those that pods wait for, or else all that are
// due.
func (c *Counter) batch() (addrs []netip.Addr, awaited bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, a := range c.owed {
		if c.awaited[a] > 0 {
			addrs = append(addrs, a)
		}
	}
	if len(addrs) > 0 {
		return addrs, true
	}
	return slices.Clone(c.owed), false
}

// forget deletes the conntrack entries of pods that have ended, without a timeout: a request that is aborted breaks
// the session for the owner too, and would restart from the beginning. Errors are retried after a second.
func (c *Counter) forget(ctx context.Context) {
	for {
		batch, awaited := c.batch()
		if len(batch) == 0 {
			c.failing = false
			return
		}
		switch err := c.forgetThem(ctx, batch, awaited); {
		case ctx.Err() != nil:
			return
		case err != nil && !errors.Is(err, errOvertaken):
			c.keep(err)
			return
		}
	}
}

// forgetThem lists what the switch knows of the addresses and has that forgotten, until the list shows that it is:
// Open vSwitch may miss some, where its table shrinks while it looks for them. Where they cannot be listed, whatever
// there may be of one address at a time is forgotten, twice.
func (c *Counter) forgetThem(ctx context.Context, addrs []netip.Addr, awaited bool) error {
	if err := c.settled(ctx); err != nil {
		return err
	}
	for pass := range passes {
		if err := rested(ctx, pass); err != nil {
			return err
		}
		have, blind, err := c.known(ctx, addrs)
		if blind {
			addrs = addrs[:1]
		}
		c.trying(addrs)
		if err != nil {
			return err
		}
		if blind && pass == blindly {
			have = nil
		}
		if addrs = c.release(addrs, have, pass); len(addrs) == 0 {
			return nil
		}
		if err := c.ask(ctx, addrs, have, awaited); errors.Is(err, ErrCannot) {
			c.forgotten(addrs)
			return nil
		} else if err != nil {
			return err
		}
	}
	return errMissed
}

// rested waits for secondLook before the second pass.
func rested(ctx context.Context, pass int) error {
	if pass != 1 {
		return nil
	}
	select {
	case <-time.After(secondLook):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// settled returns an error while the switch is unavailable. The attempts for each address are reset then, because the
// switch got no request, and no pod starts without it.
func (c *Counter) settled(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	err := c.cfg.Conntrack.Settled(ctx)
	if err != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		clear(c.tried)
	}
	return err
}

// known returns the entries of the addresses whose deletion can be requested. If they cannot be listed, blind is true
// and the result has every kind of entry that may exist.
func (c *Counter) known(
	ctx context.Context, addrs []netip.Addr,
) (_ map[netip.Addr][]ofctl.Connections, blind bool, _ error) {
	have, seen := make(map[netip.Addr][]ofctl.Connections, len(addrs)), map[netip.Addr]bool{}
	for _, a := range addrs {
		have[a] = nil
	}
	for _, zone := range c.cfg.Zones {
		err := c.list(ctx, zone, func(k ofctl.Connections) {
			if c.left == nil {
				seen[k.Addr] = true
			}
			if those, wanted := have[k.Addr]; wanted && !slices.Contains(those, k) {
				have[k.Addr] = append(those, k)
			}
		})
		if errors.Is(err, ErrTooMany) || errors.Is(err, errUnread) {
			c.cfg.Logger.Info(
				"could not list the conntrack entries of ended pods; all entries that may exist are deleted", "error",
				err)
			return c.everything(addrs), true, nil
		}
		if err != nil {
			return nil, false, err
		}
	}
	c.remember(seen)
	return have, false, nil
}

// list calls visit for the entries of a zone whose deletion can be requested, once for each end.
func (c *Counter) list(ctx context.Context, zone uint16, visit func(ofctl.Connections)) error {
	text, err := c.dump(ctx, zone)
	if err != nil {
		return err
	}
	for line := range strings.Lines(text) {
		t, _, err := ParseLine(strings.TrimSpace(line))
		if err != nil {
			return fmt.Errorf("%w: %w", errUnread, err)
		}
		if _, can := c.cfg.Forgettable[uint8(t.Protocol)]; can {
			visit(ofctl.Connections{Zone: zone, Protocol: uint8(t.Protocol), Addr: t.Src, From: true})
			visit(ofctl.Connections{Zone: zone, Protocol: uint8(t.Protocol), Addr: t.Dst})
			if from, err := replySource(line); zone == c.cfg.Translated && err == nil {
				visit(byService(uint8(t.Protocol), zone, from.Addr()))
			}
		}
	}
	return nil
}

// byService returns the connections that were translated to an endpoint: those of which it sends the replies.
func byService(protocol uint8, zone uint16, endpoint netip.Addr) ofctl.Connections {
	return ofctl.Connections{Zone: zone, Protocol: protocol, Addr: endpoint, From: true, Reply: true}
}

// everything returns every deletion that can be requested for the addresses.
func (c *Counter) everything(addrs []netip.Addr) map[netip.Addr][]ofctl.Connections {
	all := map[netip.Addr][]ofctl.Connections{}
	for _, a := range addrs {
		for _, zone := range c.cfg.Zones {
			for protocol := range c.cfg.Forgettable {
				to := ofctl.Connections{Zone: zone, Protocol: protocol, Addr: a}
				from := to
				from.From = true
				all[a] = append(all[a], from, to)
				if zone == c.cfg.Translated {
					all[a] = append(all[a], byService(protocol, zone, a))
				}
			}
		}
	}
	return all
}

// remember keeps the addresses of the first list, which is of all: what a pod opens after the start, it opens from an
// address that is known from then on, and first pods of addresses that are not in it need not wait.
func (c *Counter) remember(seen map[netip.Addr]bool) {
	if c.left != nil {
		return
	}
	c.mu.Lock()
	c.left = seen
	c.mu.Unlock()
}

// release takes those out of the addresses of which nothing is left.
func (c *Counter) release(addrs []netip.Addr, have map[netip.Addr][]ofctl.Connections, pass int) (left []netip.Addr) {
	var done []netip.Addr
	for _, a := range addrs {
		if slices.ContainsFunc(have[a], func(k ofctl.Connections) bool { return c.counts(k, pass) }) {
			left = append(left, a)
		} else {
			done = append(done, a)
		}
	}
	c.forgotten(done)
	return left
}

// counts reports whether connections that the switch lists in a pass keep their address from being free. After the
// first deletion only those count that the switch deletes for sure; after peerPasses only those that the address
// itself opened.
func (c *Counter) counts(k ofctl.Connections, pass int) bool {
	return pass == 0 || (k.From && !k.Reply || pass < peerPasses) && c.cfg.Forgettable[k.Protocol]
}

// ask requests the deletion of the entries of the addresses, one address after another; each takes seconds if
// conntrack has many entries. If no pod waits for these addresses, addresses that pods wait for are deleted first.
func (c *Counter) ask(
	ctx context.Context, addrs []netip.Addr, have map[netip.Addr][]ofctl.Connections, awaited bool,
) error {
	for i, a := range addrs {
		if _, others := c.batch(); i > 0 && others && !awaited {
			return errOvertaken
		}
		if err := c.cfg.Conntrack.Forget(ctx, have[a]); err != nil {
			c.cannot(err)
			return err
		}
		c.refused = false
	}
	return nil
}

// cannot says, once, that the switch has no such thing.
func (c *Counter) cannot(err error) {
	if !errors.Is(err, ErrCannot) {
		return
	}
	if !c.refused {
		c.cfg.Logger.Error(
			"the switch cannot delete conntrack entries of ended pods; later pods with these addresses may be affected; "+
				"Open vSwitch 3.1 and later can", "error", err)
	}
	c.refused = true
}

// trials are the addresses that pods wait for while the switch deletes their connections.
type trials map[netip.Addr]trial

// trial is the time that pods have waited for an address.
type trial struct {
	since  time.Time     // of the first attempt with the pods that wait now; zero: none waits, or no attempt yet
	before time.Duration // that earlier pods have waited
}

// begin notes an attempt for an address that a pod waits for.
func (t trials) begin(a netip.Addr, now time.Time) {
	if of := t[a]; of.since.IsZero() {
		of.since = now
		t[a] = of
	}
}

// pause notes that no pod waits for the address any more.
func (t trials) pause(a netip.Addr, now time.Time) {
	if of, ok := t[a]; ok {
		t[a] = trial{before: of.waited(now)}
	}
}

// waited returns how long pods have waited, of the time since the first attempt.
func (t trial) waited(now time.Time) time.Duration {
	if t.since.IsZero() {
		return t.before
	}
	return t.before + now.Sub(t.since)
}

// trying notes an attempt for those of the addresses that pods wait for.
func (c *Counter) trying(addrs []netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, a := range addrs {
		if c.awaited[a] > 0 {
			c.tried.begin(a, time.Now())
		}
	}
}

// late returns the addresses whose pods have waited for long enough.
func (c *Counter) late() (addrs []netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, a := range c.owed {
		if c.awaited[a] > 0 && c.tried[a].waited(time.Now()) >= patience {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

// keep goes on to owe what the switch did not forget, but to pods that have waited for too long.
func (c *Counter) keep(why error) {
	if !c.failing {
		c.cfg.Logger.Warn("conntrack entries of ended pods were not deleted; retrying", "error", why)
	}
	c.failing = true
	if late := c.late(); len(late) > 0 {
		c.cfg.Logger.Error(
			"could not delete the conntrack entries of ended pods; new pods with these addresses start without waiting, "+
				"and old entries may match their connections",
			"addresses", late, "error", why)
		c.forgotten(late)
	}
}

// forgotten removes the addresses from those with a deletion that is due.
func (c *Counter) forgotten(addrs []netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, a := range addrs {
		delete(c.tried, a)
	}
	c.owed = slices.DeleteFunc(c.owed, func(owed netip.Addr) bool { return slices.Contains(addrs, owed) })
	close(c.freed)
	c.freed = make(chan struct{})
}
