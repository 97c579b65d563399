package nodestate

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "github.com/flowkeep/flowkeep/nodestate/api/v1"
	"github.com/flowkeep/flowkeep/nodestate/nmstate"
)

// played runs a test in a bubble whose clock stands still while anything can be done.
func played(t *testing.T, play func(r *rig, dir string)) {
	t.Helper()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) { play(newRig(t), dir) })
}

// after lets time go by, and all that happens meanwhile.
func after(d time.Duration) { time.Sleep(d); synctest.Wait() }

func TestNoObjectIsCreatedWithCurrentStateOnly(t *testing.T) {
	played(t, func(r *rig, dir string) {
		defer r.start(dir)()
		synctest.Wait()
		o, _ := r.api.Get(r.Context())
		if o == nil || o.Desired != nil || !o.Managed || !strings.Contains(string(o.Status.CurrentState.Raw), "dummy0") {
			r.Fatalf("%+v", o)
		}
		r.is("True InSync")
		if r.node.attempts() != 0 {
			r.Error("without a desire the node was changed")
		}
	})
}

func TestDesireIsEnforcedThenReported(t *testing.T) {
	played(t, func(r *rig, dir string) {
		r.desire(mtu1450)
		defer r.start(dir)()
		synctest.Wait()
		r.is("True InSync")
		s := r.api.status()
		if r.node.mtu(r.T, "dummy0") != 1450 || !strings.Contains(string(s.CurrentState.Raw), "1450") {
			r.Errorf("%s", s.CurrentState.Raw)
		}
		if len(s.History) != 1 || s.History[0].Outcome != v1.OutcomeApplied || len(s.History[0].Changes) != 1 || s.LastSuccess == nil || s.Backend != "fake" {
			r.Errorf("%+v", s)
		}
		if first := r.api.told[0].Conditions[0]; first.Reason != v1.ReasonApplying || !strings.Contains(first.Message, "mtu") {
			r.Errorf("while it was applied, the status said %+v", first)
		}
		if r.node.committed.Load() != 1 {
			r.Error("not committed")
		}
		r.desire(`{interfaces: [{name: dummy0, mtu: 1400}]}`)
		synctest.Wait()
		if r.node.mtu(r.T, "dummy0") != 1400 {
			r.Error("an edit was not enforced at once")
		}
	})
}

func TestOrder_HasTheNodesAddresses(t *testing.T) {
	played(t, func(r *rig, dir string) {
		want := []netip.Addr{netip.MustParseAddr("192.0.2.11")}
		r.cfg.Addresses = func(context.Context) []netip.Addr { return want }
		r.desire(mtu1450)
		defer r.start(dir)()
		synctest.Wait()
		if !slices.Equal(r.node.addresses, want) {
			r.Errorf("the backend has %v", r.node.addresses)
		}
	})
}

func TestIdleWritesNothing(t *testing.T) {
	played(t, func(r *rig, dir string) {
		after(123456789) // the API server keeps whole seconds
		r.desire(mtu1450)
		stop := r.start(dir)
		synctest.Wait()
		before, shown := r.api.written(), r.node.shown.Load()
		after(5 * time.Minute)
		if r.api.written() != before {
			r.Errorf("%d writes while nothing happened", r.api.written()-before)
		}
		if r.node.shown.Load() < shown+9 {
			r.Errorf("the node was read %d times in 5 minutes", r.node.shown.Load()-shown)
		}
		stop()
		defer r.start(dir)()
		after(time.Minute)
		if r.api.written() != before {
			r.Errorf("%d writes because the agent was started again", r.api.written()-before)
		}
	})
}

func TestDriftIsMended(t *testing.T) {
	played(t, func(r *rig, dir string) {
		r.desire(mtu1450)
		defer r.start(dir)()
		after(5 * time.Minute)
		drift := func() {
			r.node.set(func() {
				r.node.state = nmstate.Overlay(r.node.state, parse(r.T, `{interfaces: [{name: dummy0, mtu: 1500}]}`))
			})
		}
		drift()
		r.moved <- struct{}{}
		after(quiet)
		if r.node.mtu(r.T, "dummy0") != 1450 {
			r.Error("the kernel told of drift, and it is there still")
		}
		after(5 * time.Minute)
		drift() // and nothing tells
		after(r.cfg.Poll)
		if r.node.mtu(r.T, "dummy0") != 1450 {
			r.Error("a poll did not find the drift")
		}
		r.is("True InSync")
		if h := r.api.status().History; len(h) != 3 {
			r.Errorf("history: %+v", h)
		}
	})
}

// Whoever sets it back each time does not make the node busy.
func TestTugOfWarBecomesSlow(t *testing.T) {
	played(t, func(r *rig, dir string) {
		r.desire(mtu1450)
		defer r.start(dir)()
		for range 3600 {
			after(time.Second)
			r.node.set(func() {
				r.node.state = nmstate.Overlay(r.node.state, parse(r.T, `{interfaces: [{name: dummy0, mtu: 1500}]}`))
			})
			signal(r.moved)
		}
		if n := r.node.attempts(); n < 30 || n > 120 {
			r.Errorf("%d attempts in an hour", n)
		}
		if n := len(r.api.status().History); n != v1.HistoryLimit {
			r.Errorf("history of %d", n)
		}
	})
}

func TestFailureIsRetriedEverMoreSeldom(t *testing.T) {
	played(t, func(r *rig, dir string) {
		r.node.applyErr = errors.New("device or resource busy")
		r.desire(mtu1450)
		defer r.start(dir)()
		after(time.Minute)
		r.is("False Retrying")
		s := r.api.status()
		if s.Attempt < 3 || s.NextAttempt == nil || !strings.Contains(s.Conditions[0].Message, "busy") {
			r.Errorf("%+v", s)
		}
		after(time.Hour)
		applied := r.node.times()
		for i := 2; i < len(applied); i++ {
			earlier, gap := applied[i-1].Sub(applied[i-2]), applied[i].Sub(applied[i-1])
			if gap > 6*time.Minute || gap < 4*time.Second || gap < earlier*11/10 && gap < 4*time.Minute {
				r.Errorf("attempt %d came %v after the one before, which came after %v", i, gap, earlier)
			}
		}
		if len(s.History) != 1 {
			r.Errorf("equal failures fill the history: %d", len(s.History))
		}
		before := r.node.attempts()
		r.node.set(func() { r.node.applyErr = nil })
		r.desire(`{interfaces: [{name: dummy0, mtu: 1400}]}`)
		synctest.Wait()
		if r.node.attempts() != before+1 || r.node.mtu(r.T, "dummy0") != 1400 {
			r.Error("another desire did not start afresh")
		}
		r.is("True InSync")
		if s := r.api.status(); s.Attempt != 0 || s.NextAttempt != nil {
			r.Errorf("%+v", s)
		}
	})
}

func TestStatus_ImpossibleDesiredState(t *testing.T) {
	played(t, func(r *rig, dir string) {
		r.node.applyErr = Refuse("interfaces[x]: type infiniband is not one this node can do")
		r.desire(`{interfaces: [{name: x, type: infiniband, state: up}]}`)
		defer r.start(dir)()
		synctest.Wait()
		r.is("False Failing")
		if len(r.api.events) != 1 || !strings.Contains(r.api.events[0], "infiniband") {
			r.Errorf("events: %q", r.api.events)
		}
		if r.node.rolled.Load() != 0 {
			r.Error("nothing was to be rolled back")
		}
	})
}

// A backend that sees nothing to change on a node that differs has failed, and is asked ever more seldom.
func TestBackendThatSeesNothingToChange(t *testing.T) {
	played(t, func(r *rig, dir string) {
		r.node.blind = true
		r.desire(mtu1450)
		defer r.start(dir)()
		after(time.Hour)
		r.is("False Retrying")
		if m := r.api.status().Conditions[0].Message; !strings.Contains(m, "interfaces[dummy0].mtu") || r.node.attempts() > 30 {
			r.Errorf("%d attempts: %s", r.node.attempts(), m)
		}
	})
}

func TestStatus_UnreadableDesiredState(t *testing.T) {
	played(t, func(r *rig, dir string) {
		r.desire(mtu1450)
		r.api.edit(func() { r.api.object.DesiredErr = errors.New("interfaces[dummy0].mtu: not a number") })
		defer r.start(dir)()
		after(10 * time.Minute)
		r.is("False Failing")
		if r.node.attempts() != 0 || r.api.written() != 1 {
			r.Errorf("%d attempts, %d writes", r.node.attempts(), r.api.written())
		}
	})
}

func TestUnmanagedInTheMiddleOfARetry(t *testing.T) {
	played(t, func(r *rig, dir string) {
		r.node.applyErr = errors.New("busy")
		r.desire(mtu1450)
		defer r.start(dir)()
		after(12 * time.Second)
		attempts, writes, shown := r.node.attempts(), r.api.written(), r.node.shown.Load()
		r.api.edit(func() { r.api.object.Managed = false })
		synctest.Wait()
		r.node.set(func() { r.node.applyErr = nil })
		signal(r.moved)
		after(time.Hour)
		if r.node.attempts() != attempts || r.api.written() != writes || r.node.shown.Load() != shown {
			r.Errorf("unmanaged: %d attempts, %d writes, %d readings", r.node.attempts()-attempts, r.api.written()-writes, r.node.shown.Load()-shown)
		}
		r.api.edit(func() { r.api.object.Managed = true })
		synctest.Wait()
		r.is("True InSync")
	})
}

func TestUnmanagedInTheMiddleOfAChange(t *testing.T) {
	for name, end := range map[string]func(a *fakeAPI){
		"unmanaged": func(a *fakeAPI) { a.object.Managed = false },
		"deleted":   func(a *fakeAPI) { a.object = nil },
	} {
		t.Run(name, func(t *testing.T) {
			played(t, func(r *rig, dir string) {
				r.node.slow = 20 * time.Second
				r.desire(mtu1450)
				defer r.start(dir)()
				after(5 * time.Second)
				writes := r.api.written()
				r.api.edit(func() { end(r.api) })
				synctest.Wait()
				if r.node.rolled.Load() != 1 || r.node.mtu(r.T, "dummy0") != 1500 {
					r.Error("a change went on")
				}
				if name == "unmanaged" && r.api.written() != writes {
					r.Error("it was reported")
				}
				after(time.Hour)
				if r.node.attempts() != 1 {
					r.Errorf("%d attempts", r.node.attempts())
				}
			})
		})
	}
}

func TestDeletedIsCreatedAgainWithoutTheOldDesire(t *testing.T) {
	played(t, func(r *rig, dir string) {
		r.node.applyErr = errors.New("busy")
		r.desire(mtu1450)
		defer r.start(dir)()
		synctest.Wait()
		r.node.set(func() { r.node.applyErr = nil })
		r.api.edit(func() { r.api.object = nil })
		after(time.Hour)
		o, _ := r.api.Get(r.Context())
		if o == nil || o.Desired != nil || r.node.attempts() != 1 || len(o.Status.History) != 0 {
			r.Errorf("%+v, %d attempts", o, r.node.attempts())
		}
		r.is("True InSync")
	})
}

func TestWhatIsReadBackOtherwiseIsRolledBack(t *testing.T) {
	played(t, func(r *rig, dir string) {
		r.node.ignores = true
		r.desire(mtu1450)
		defer r.start(dir)()
		after(r.cfg.Revert)
		r.is("False RolledBack")
		if r.node.rolled.Load() != 1 || r.node.committed.Load() != 0 {
			r.Error(r.node.rolled.Load(), r.node.committed.Load())
		}
		if m := r.api.status().Conditions[0].Message; !strings.Contains(m, "interfaces[dummy0].mtu") || !strings.Contains(m, "revert time") {
			r.Error(m)
		}
	})
}

// TestSuccessIsWhatTheBackendReports: a backend that compares the node itself, in its own spelling, is believed, and is
// not called again for what it left.
func TestSuccessIsWhatTheBackendReports(t *testing.T) {
	played(t, func(r *rig, dir string) {
		r.node.ignores, r.node.verifies = true, true
		r.desire(mtu1450)
		defer r.start(dir)()
		after(time.Hour)
		r.is("True InSync")
		if r.node.rolled.Load() != 0 || r.node.committed.Load() != 1 || r.node.attempts() != 1 {
			r.Error(r.node.rolled.Load(), r.node.committed.Load(), r.node.attempts())
		}
		r.node.set(func() { // another program: that was not accepted
			r.node.state = nmstate.Overlay(r.node.state, parse(r.T, `{interfaces: [{name: dummy0, mtu: 1300}]}`))
		})
		after(time.Hour)
		if r.node.attempts() < 2 {
			r.Error("a later change was taken for an accepted difference")
		}
	})
}

func TestOneImpossibleOfThreeRollsAllBack(t *testing.T) {
	played(t, func(r *rig, dir string) {
		r.node.halfway = errors.New("set mtu of c to 99999: invalid argument")
		r.desire(`{interfaces: [{name: a, type: dummy}, {name: b, type: dummy}, {name: c, type: dummy, mtu: 99999}]}`)
		defer r.start(dir)()
		synctest.Wait()
		r.is("False RolledBack")
		if r.node.has("a") || r.node.rolled.Load() != 1 {
			r.Error("something is left")
		}
	})
}

func TestOnlyProbesThatHeldCount(t *testing.T) {
	played(t, func(r *rig, dir string) {
		reachable := func(context.Context, nmstate.State) error {
			if r.node.mtu(r.T, "dummy0") != 1500 {
				return errors.New("no route to host")
			}
			return nil
		}
		r.cfg.Probes = []Probe{
			{Name: "the default gateway", Check: func(context.Context, nmstate.State) error { return errors.New("there is none") }},
			{Name: "the API server", Check: reachable},
		}
		r.desire(`{interfaces: [{name: eth0, mtu: 1400}]}`)
		defer r.start(dir)()
		synctest.Wait()
		r.is("True InSync")
		r.desire(mtu1450)
		after(r.cfg.Revert)
		r.is("False RolledBack")
		if m := r.api.status().Conditions[0].Message; !strings.Contains(m, "the API server: no route to host") || strings.Contains(m, "gateway") {
			r.Error(m)
		}
		if r.node.mtu(r.T, "dummy0") != 1500 {
			r.Error("not as before")
		}
	})
}

// While the change is open the API server is away, for a while longer too, and the agent ends before it could tell.
func TestRollBack_ReportedWhenAPIServerReturns(t *testing.T) {
	for name, restarted := range map[string]bool{"same agent": false, "next agent": true} {
		t.Run(name, func(t *testing.T) {
			played(t, func(r *rig, dir string) {
				r.desire(mtu1450)
				r.node.ignores = true
				r.api.edit(func() { r.api.away = errors.New("no route to host") })
				stop := r.start(dir)
				after(r.cfg.Revert + time.Second)
				if r.node.rolled.Load() != 1 {
					r.Error("not rolled back")
				}
				if restarted {
					stop()
					stop = r.start(dir)
				}
				defer stop()
				r.node.set(func() { r.node.ignores = false })
				r.api.edit(func() { r.api.away = nil })
				after(time.Hour)
				r.is("True InSync")
				h := r.api.status().History
				if len(h) != 2 || h[1].Outcome != v1.OutcomeRolledBack {
					r.Errorf("%+v", h)
				}
			})
		})
	}
}

func TestDeathWithinAChange(t *testing.T) {
	for name, boot := range map[string]string{"same boot": "boot1", "rebooted": "boot2"} {
		t.Run(name, func(t *testing.T) {
			played(t, func(r *rig, dir string) {
				r.desire(mtu1450)
				dead := r.open(dir)
				o, err := dead.observe(r.Context())
				if err != nil {
					r.Fatal(err)
				}
				gone := &attempt{Agent: dead, object: *o.Object}
				if _, err := r.node.Apply(r.Context(), o.Object.Desired, Order{Journal: gone.begin}); err != nil { // and then signal 9
					r.Fatal(err)
				}
				_ = dead.cfg.Journal.Close()
				r.cfg.Boot = boot
				defer r.start(dir)()
				synctest.Wait()
				if boot == "boot2" {
					r.is("True InSync")
					return
				}
				r.is("False RolledBack")
				if len(r.api.events) != 1 || !strings.Contains(r.api.events[0], "Recovered") {
					r.Errorf("events: %q", r.api.events)
				}
				if h := r.api.status().History; r.node.rolled.Load() != 1 || len(h) != 1 || h[0].Outcome != v1.OutcomeRecovered || len(h[0].Changes) != 1 {
					r.Errorf("%d rolled back: %+v", r.node.rolled.Load(), h)
				}
				after(time.Minute)
				r.is("True InSync")
				if _, err := os.Stat(filepath.Join(dir, "change.json")); err == nil {
					r.Error("the journal still holds it")
				}
			})
		})
	}
}

func TestTornJournalIsSetAside(t *testing.T) {
	played(t, func(r *rig, dir string) {
		if err := os.WriteFile(filepath.Join(dir, "change.json"), []byte("0123\n{"), 0o600); err != nil {
			r.Fatal(err)
		}
		r.desire(mtu1450)
		defer r.start(dir)()
		synctest.Wait()
		r.is("True InSync")
		if _, err := os.Stat(filepath.Join(dir, "change.json.torn")); err != nil || r.node.rolled.Load() != 0 {
			r.Error(err, r.node.rolled.Load())
		}
	})
}

func TestRollBackThatFailsIsTriedAgainBeforeAnythingElse(t *testing.T) {
	played(t, func(r *rig, dir string) {
		r.node.halfway, r.node.rollErr = errors.New("busy"), errors.New("eth9 is gone")
		r.desire(mtu1450)
		stop := r.start(dir)
		after(time.Minute)
		r.is("False Failing")
		if h := r.api.status().History; h[0].Outcome != v1.OutcomePartial || !strings.Contains(h[0].Message, "eth9") || !strings.Contains(h[0].Message, "busy") {
			r.Errorf("%+v", h)
		}
		if r.node.attempts() != 1 {
			r.Errorf("%d attempts over what is half undone", r.node.attempts())
		}
		r.api.edit(func() { r.api.object.Managed = false }) // what is half done is undone all the same, and nobody hears of it
		synctest.Wait()
		writes := r.api.written()
		r.node.set(func() { r.node.rollErr, r.node.halfway = nil, nil })
		after(10 * time.Minute)
		if r.node.rolled.Load() != 1 || r.api.written() != writes {
			r.Error(r.node.rolled.Load(), r.api.written()-writes)
		}
		stop()
		r.api.edit(func() { r.api.object.Managed = true })
		defer r.start(dir)()
		after(time.Minute)
		r.is("True InSync")
	})
}

func TestStatus_UnreadableNode(t *testing.T) {
	played(t, func(r *rig, dir string) {
		r.desire(mtu1450)
		defer r.start(dir)()
		synctest.Wait()
		r.node.set(func() { r.node.showErr = errors.New("netlink: no buffer space") })
		after(time.Minute)
		r.is("Unknown Retrying")
		if !strings.Contains(string(r.api.status().CurrentState.Raw), "dummy0") {
			r.Error("what was known is forgotten")
		}
		r.node.set(func() { r.node.showErr = nil })
		after(time.Minute)
		r.is("True InSync")
	})
}

func TestStopRollsBack(t *testing.T) {
	played(t, func(r *rig, dir string) {
		r.node.slow = 20 * time.Second
		r.desire(mtu1450)
		stop := r.start(dir)
		after(5 * time.Second)
		stop()
		if r.node.rolled.Load() != 1 {
			r.Error("a change was left open")
		}
	})
}

func TestOncePasses(t *testing.T) {
	played(t, func(r *rig, dir string) {
		r.desire(mtu1450)
		if err := r.open(dir).Once(r.Context()); err != nil {
			r.Error(err)
		}
		r.is("True InSync")
		if r.api.written() != 2 { // applying, in sync
			r.Errorf("%d writes", r.api.written())
		}
	})
	played(t, func(r *rig, dir string) {
		r.node.applyErr = errors.New("busy")
		r.desire(mtu1450)
		if err := r.open(dir).Once(r.Context()); err == nil || !strings.Contains(err.Error(), "busy") {
			r.Error(err)
		}
		r.is("False Retrying")
	})
	played(t, func(r *rig, dir string) {
		r.api.away = errors.New("connection refused")
		if err := r.open(dir).Once(r.Context()); err == nil || !strings.Contains(err.Error(), "refused") {
			r.Error(err)
		}
	})
}

// What the journal keeps to be told is told once, also when the desire, or the object, is another by then.
func TestRollBack_ReportedOnce(t *testing.T) {
	for name, edit := range map[string]func(r *rig){
		"another desire":  func(r *rig) { r.desire(`{interfaces: [{name: dummy0, mtu: 1500}]}`) }, // which is in place
		"no desire":       func(r *rig) { r.api.edit(func() { r.api.desire(nil) }) },
		"another object":  func(r *rig) { r.api.edit(func() { r.api.object = nil }) },
		"unmanaged first": func(r *rig) { r.api.edit(func() { r.api.object.Managed = false }) },
	} {
		t.Run(name, func(t *testing.T) {
			played(t, func(r *rig, dir string) {
				r.desire(mtu1450)
				r.node.ignores = true
				r.api.edit(func() { r.api.away = errors.New("no route to host") })
				stop := r.start(dir)
				after(r.cfg.Revert + time.Second)
				stop()
				r.node.set(func() { r.node.ignores = false })
				r.api.edit(func() { r.api.away = nil })
				edit(r)
				for range 3 {
					stop = r.start(dir)
					after(time.Minute)
					r.api.edit(func() { r.api.object.Managed = true })
					after(time.Minute)
					stop()
				}
				told := 0
				for _, h := range r.api.status().History {
					if h.Outcome == v1.OutcomeRolledBack {
						told++
					}
				}
				if told != 1 && (told != 0 || name != "another object") { // of one that is gone nobody is told
					r.Errorf("told %d times: %+v", told, r.api.status().History)
				}
			})
		})
	}
}

// A server that is away is asked ever more seldom.
func TestUnknownObjectIsAskedForEverMoreSeldom(t *testing.T) {
	played(t, func(r *rig, dir string) {
		r.api.away = errors.New("connection refused")
		defer r.start(dir)()
		after(time.Hour)
		r.api.mu.Lock()
		defer r.api.mu.Unlock()
		if r.api.asked < 100 || r.api.asked > 200 {
			r.Errorf("asked %d times in an hour", r.api.asked)
		}
	})
}

func TestOnceTellsOfANodeThatCannotBeRead(t *testing.T) {
	for name, desired := range map[string]string{"object": mtu1450, "none": ""} {
		t.Run(name, func(t *testing.T) {
			played(t, func(r *rig, dir string) {
				if desired != "" {
					r.desire(desired)
				}
				r.node.showErr = errors.New("netlink: no buffer space")
				if err := r.open(dir).Once(r.Context()); err == nil || !strings.Contains(err.Error(), "no buffer space") {
					r.Error(err)
				}
				r.is("Unknown Retrying")
			})
		})
	}
}

func TestNodeThatDoesNotAnswerIsTold(t *testing.T) {
	played(t, func(r *rig, dir string) {
		r.desire(mtu1450)
		defer r.start(dir)()
		synctest.Wait()
		r.node.set(func() { r.node.hangs = true })
		after(r.cfg.Poll + 2*showLimit)
		r.is("Unknown Retrying")
		r.node.set(func() { r.node.hangs = false })
		after(r.cfg.Poll + 2*showLimit)
		r.is("True InSync")
	})
}

// A server that is slow before a change, and away after it, is one that the change cut off.
func TestProbeThatHoldsSlowly(t *testing.T) {
	played(t, func(r *rig, dir string) {
		r.cfg.Probes = []Probe{{Name: "the API server", Check: func(ctx context.Context, _ nmstate.State) error {
			if r.node.mtu(r.T, "dummy0") != 1500 {
				return errors.New("no route to host")
			}
			select {
			case <-ctx.Done():
			case <-time.After(6 * time.Second):
			}
			return ctx.Err()
		}}}
		r.desire(mtu1450)
		defer r.start(dir)()
		after(r.cfg.Revert + 10*time.Second)
		r.is("False RolledBack")
	})
}
