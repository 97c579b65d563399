package feed

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// sinceBoot returns the time since the boot. Its clock runs while the machine is suspended.
func sinceBoot() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic(fmt.Errorf("read the clock: %w", err)) // there is none without it
	}
	return time.Duration(ts.Nano())
}

// Times of a leader that is asked whether it still leads.
const (
	beatEvery = time.Second
	mostBeats = 64 // that wait for an answer; the oldest are forgotten first
)

// mayObey says why a node that has obeyed an epoch does not obey a netmaster of another; nil if it does. unelected has it obey one that
// takes no part in an election.
func mayObey(obeyed, offered uint64, unelected bool) error {
	switch {
	case offered == 0 && obeyed > 0 && !unelected:
		return fmt.Errorf("this netmaster takes part in no election, and this node has obeyed one that did (epoch %d): it may be one that was forgotten; give netmaster --leader-elect, or netplugin --obey-unelected", obeyed)
	case offered > 0 && offered < obeyed:
		return fmt.Errorf("this netmaster leads in epoch %d, and this node has obeyed epoch %d: another one leads", offered, obeyed)
	}
	return nil
}

// trust is for how long a leader is obeyed. Times are of the node's own clock: a promise counts from when the node asked for it, however
// long question and answer were on their way, or those asked stood still.
type trust struct {
	bounded bool // else the leader takes part in no election, and is obeyed as long as it is listened to
	until   time.Duration
	number  uint64
	asked   []beat
}

type beat struct {
	number uint64
	at     time.Duration
}

// welcomed begins with what a Welcome promises: asked is when the hello was sent.
func welcomed(epoch uint64, asked, valid time.Duration) trust {
	return trust{bounded: epoch > 0, until: asked + valid}
}

// ask returns the number of the next beat and records when it is sent.
func (t *trust) ask(now time.Duration) uint64 {
	t.number++
	if len(t.asked) == mostBeats {
		t.asked = t.asked[1:]
	}
	t.asked = append(t.asked, beat{t.number, now})
	return t.number
}

var errNeverAsked = errors.New("netmaster answers a beat that was never sent")

// answered takes a promise over. Of beats before the one that is answered no answer comes any more.
func (t *trust) answered(number uint64, valid time.Duration) error {
	if number == 0 || number > t.number {
		return errNeverAsked
	}
	for len(t.asked) > 0 && t.asked[0].number <= number {
		if t.asked[0].number == number {
			t.until = max(t.until, t.asked[0].at+valid)
		}
		t.asked = t.asked[1:]
	}
	return nil
}

// holds reports whether no other instance can lead.
func (t *trust) holds(now time.Duration) bool { return !t.bounded || now < t.until }
