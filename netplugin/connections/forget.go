package connections

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
	ErrCannot = errors.New("the switch cannot forget connections")
)

// passes is how many times at the most the switch is asked at once for what it has missed, and blindly how many times where it does not tell what it has missed.
const (
	passes  = 3
	blindly = 2
)

// patience is how long the switch is asked in vain for an address until the pods that wait for it go on without.
const patience = time.Minute

var (
	errUnread    = errors.New("a connection that cannot be read")
	errOvertaken = errors.New("a pod waits for another address")
	errMissed    = errors.New("it was asked to, and still knows some")
)

// Gone returns when the connections of a pod whose port is shut are counted and forgotten, or with ctx: its address may not be
// given to another before. Where the switch does not answer they are forgotten as soon as it does.
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

// Had is told of addresses whose pods go on from before the start: what conntrack holds of them is their own.
func (c *Counter) Had(addrs []netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, a := range addrs {
		c.since[a] = true
	}
}

// Free returns when none of the addresses has connections of a pod that is gone: forgotten later, those of whoever has the address by
// then would go with them. What an address was owed before the start is not known: where it has connections its first pod waits until they are forgotten, once.
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
			return fmt.Errorf("the switch has not forgotten the connections of the pod that had %v before: %w", addrs, ctx.Err())
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
			}
		}
	}
	add(1)
	return func() { add(-1) }
}

// oweUnknown has the connections of addresses forgotten that nobody has had since the start, where there are any or it is not known yet.
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

// owes is called with the lock.
func (c *Counter) owes(a netip.Addr) bool {
	return slices.Contains(c.owed, a) || slices.ContainsFunc(c.waiting, func(ch Change) bool { return slices.Contains(ch.Gone, a) })
}

// batch are the addresses whose connections are to be forgotten next: those that pods wait for, else all that are owed.
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

// forget makes the switch forget the connections of pods that are gone, however long it takes: a switch that is cut short in its answer is lost to the
// owner too, and begins anew the next time. What fails is tried again in a second.
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

// forgetThem lists what the switch knows of the addresses and has that forgotten, until the list shows that it is: Open vSwitch may miss some, where its table shrinks
// while it looks for them. Where they cannot be listed, whatever there may be of one address at a time is forgotten, twice.
func (c *Counter) forgetThem(ctx context.Context, addrs []netip.Addr, awaited bool) error {
	if err := c.settled(ctx); err != nil {
		return err
	}
	for pass := range passes {
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

// settled fails while the switch is away. Nobody's patience ends meanwhile: it has not been asked, and no pod starts without it.
func (c *Counter) settled(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	err := c.cfg.Conntrack.Settled(ctx)
	if err != nil {
		clear(c.tried)
	}
	return err
}

// known are the connections of the addresses that the switch may be asked to forget; blind says that they are not to be had, and these are all that there can be.
func (c *Counter) known(ctx context.Context, addrs []netip.Addr) (_ map[netip.Addr][]ofctl.Connections, blind bool, _ error) {
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
			c.cfg.Logger.Info("which connections there are of pods that are gone is not known; whatever there may be is forgotten", "error", err)
			return c.everything(addrs), true, nil
		}
		if err != nil {
			return nil, false, err
		}
	}
	c.remember(seen)
	return have, false, nil
}

// list tells what a zone holds that the switch may be asked to forget, of either end.
func (c *Counter) list(ctx context.Context, zone uint16, tell func(ofctl.Connections)) error {
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
			tell(ofctl.Connections{Zone: zone, Protocol: uint8(t.Protocol), Addr: t.Src, From: true})
			tell(ofctl.Connections{Zone: zone, Protocol: uint8(t.Protocol), Addr: t.Dst})
		}
	}
	return nil
}

// everything is all that the switch could be asked to forget of the addresses.
func (c *Counter) everything(addrs []netip.Addr) map[netip.Addr][]ofctl.Connections {
	all := map[netip.Addr][]ofctl.Connections{}
	for _, a := range addrs {
		for _, zone := range c.cfg.Zones {
			for protocol := range c.cfg.Forgettable {
				all[a] = append(all[a], ofctl.Connections{Zone: zone, Protocol: protocol, Addr: a, From: true}, ofctl.Connections{Zone: zone, Protocol: protocol, Addr: a})
			}
		}
	}
	return all
}

// remember keeps the addresses of the first list, which is of all: what a pod opens after the start, it opens from an address that is known from then on, and
// first pods of addresses that are not in it need not wait.
func (c *Counter) remember(seen map[netip.Addr]bool) {
	if c.left != nil {
		return
	}
	c.mu.Lock()
	c.left = seen
	c.mu.Unlock()
}

// release takes those out of the addresses of which nothing is left. After the switch was asked, only what such an address itself has opened counts, and what is
// forgotten for sure: peers open connections to it for as long as they like.
func (c *Counter) release(addrs []netip.Addr, have map[netip.Addr][]ofctl.Connections, pass int) (left []netip.Addr) {
	var done []netip.Addr
	for _, a := range addrs {
		if slices.ContainsFunc(have[a], func(k ofctl.Connections) bool { return pass == 0 || k.From && c.cfg.Forgettable[k.Protocol] }) {
			left = append(left, a)
		} else {
			done = append(done, a)
		}
	}
	c.forgotten(done)
	return left
}

// ask has the switch forget what it has of the addresses, one after another: it takes seconds each where the switch knows many connections. Who waits for none of
// them lets those go first who wait.
func (c *Counter) ask(ctx context.Context, addrs []netip.Addr, have map[netip.Addr][]ofctl.Connections, awaited bool) error {
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
		c.cfg.Logger.Error("what is left of dead pods' connections may pass for those of the next pods of their addresses; Open vSwitch can forget them since 3.1", "error", err)
	}
	c.refused = true
}

// trying notes when the switch was first asked for the addresses.
func (c *Counter) trying(addrs []netip.Addr) {
	for _, a := range addrs {
		if _, before := c.tried[a]; !before {
			c.tried[a] = time.Now()
		}
	}
}

// keep goes on to owe what the switch did not forget, but to pods that have waited for too long.
func (c *Counter) keep(why error) {
	if !c.failing {
		c.cfg.Logger.Warn("the switch keeps connections of pods that are gone; trying again", "error", why)
	}
	c.failing = true
	late, awaited := c.batch()
	late = slices.DeleteFunc(late, func(a netip.Addr) bool {
		began, tried := c.tried[a]
		return !awaited || !tried || time.Since(began) < patience
	})
	if len(late) > 0 {
		c.cfg.Logger.Error("the switch could not be brought to forget the connections of dead pods; what is left of them may pass for those of the next pods of these addresses, which wait no longer",
			"addresses", late, "error", why)
		c.forgotten(late)
	}
}

// forgotten are owed no more.
func (c *Counter) forgotten(addrs []netip.Addr) {
	for _, a := range addrs {
		delete(c.tried, a)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.owed = slices.DeleteFunc(c.owed, func(owed netip.Addr) bool { return slices.Contains(addrs, owed) })
	close(c.freed)
	c.freed = make(chan struct{})
}
