package nodestate

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "github.com/flowkeep/flowkeep/nodestate/api/v1"
	"github.com/flowkeep/flowkeep/nodestate/nmstate"
)

// cutsOff is a probe that holds as long as dummy0 has no MTU below 1400.
func (r *rig) cutsOff() []Probe {
	return []Probe{{Name: "the default gateway", Check: func(context.Context, nmstate.State) error {
		if mtu := r.node.mtu(r.T, "dummy0"); mtu != 0 && mtu < 1400 {
			return errors.New("no answer")
		}
		return nil
	}}}
}

func desireMTU(mtu int) string { return fmt.Sprintf(`{interfaces: [{name: dummy0, mtu: %d}]}`, mtu) }

// An edit does not wait until the change before it has spent its revert time.
func TestEditEndsTheWaitForProbes(t *testing.T) {
	played(t, func(r *rig, dir string) {
		r.cfg.Probes = r.cutsOff()
		r.desire(desireMTU(1300))
		defer r.start(dir)()
		after(5 * time.Second)
		if r.node.mtu(r.T, "dummy0") != 1300 || r.node.rolled.Load() != 0 {
			r.Fatal("the change is not under way")
		}
		r.desire(desireMTU(1450))
		after(supersededLimit + time.Millisecond)
		r.is("True InSync")
		if r.node.mtu(r.T, "dummy0") != 1450 || r.node.rolled.Load() != 1 || r.node.committed.Load() != 1 {
			r.Error(r.node.mtu(r.T, "dummy0"), r.node.rolled.Load(), r.node.committed.Load())
		}
		h := r.api.status().History
		if len(h) != 2 || h[1].Outcome != v1.OutcomeRolledBack || !strings.Contains(h[1].Message, "another desire") {
			r.Errorf("%+v", h)
		}
		if len(r.api.events) != 0 {
			r.Errorf("a warning of what somebody wanted: %q", r.api.events)
		}
	})
}

// What is good by then stays, and the next desire begins where it left off.
func TestEditLetsAGoodChangeEnd(t *testing.T) {
	played(t, func(r *rig, dir string) {
		r.node.slow = time.Second
		r.desire(desireMTU(1450))
		defer r.start(dir)()
		after(500 * time.Millisecond)
		r.desire(desireMTU(1460))
		after(2 * time.Second)
		r.is("True InSync")
		if r.node.committed.Load() != 2 || r.node.rolled.Load() != 0 || r.node.mtu(r.T, "dummy0") != 1460 {
			r.Error(r.node.committed.Load(), r.node.rolled.Load())
		}
	})
}

// A change that hangs is not waited for either, nor probes before it.
func TestEditEndsAChangeThatHangs(t *testing.T) {
	played(t, func(r *rig, dir string) {
		r.node.slow = 50 * time.Second
		r.desire(desireMTU(1450))
		defer r.start(dir)()
		after(time.Second)
		r.node.set(func() { r.node.slow = 0 })
		r.desire(desireMTU(1460))
		after(supersededLimit + time.Millisecond)
		r.is("True InSync")
		if r.node.rolled.Load() != 1 || r.node.mtu(r.T, "dummy0") != 1460 {
			r.Error(r.node.rolled.Load(), r.node.mtu(r.T, "dummy0"))
		}
	})
	played(t, func(r *rig, dir string) {
		hangs := make(chan struct{})
		r.cfg.Probes = []Probe{{Name: "slow", Check: func(ctx context.Context, _ nmstate.State) error {
			select {
			case <-ctx.Done():
			case <-hangs:
			}
			return ctx.Err()
		}}}
		r.desire(desireMTU(1450))
		defer r.start(dir)()
		after(time.Second)
		r.desire(desireMTU(1460))
		after(supersededLimit + time.Millisecond)
		close(hangs)
		synctest.Wait()
		if n := r.node.attempts(); n != 1 || r.node.mtu(r.T, "dummy0") != 1460 {
			r.Errorf("the first desire was begun with nobody knowing what held: %d attempts", n)
		}
	})
}

// Who takes an edit back has changed nothing.
func TestEditTakenBackChangesNothing(t *testing.T) {
	played(t, func(r *rig, dir string) {
		r.node.slow = 10 * time.Second
		r.desire(desireMTU(1450))
		defer r.start(dir)()
		after(time.Second)
		r.desire(desireMTU(1460))
		after(supersededLimit / 2)
		r.desire(desireMTU(1450))
		after(time.Minute)
		r.is("True InSync")
		if r.node.attempts() != 1 || r.node.rolled.Load() != 0 {
			r.Error(r.node.attempts(), r.node.rolled.Load())
		}
	})
}

// Whatever is edited, and whenever: soon after the last edit a desire that can be had is enforced, without one that was given up being
// waited for, and of one that cannot be had nothing is left. An unmanaged node is never touched, but to be rolled back.
func TestRandomHistoriesOfEdits(t *testing.T) {
	for seed := range uint64(150) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			played(t, func(r *rig, dir string) {
				d := rand.New(rand.NewPCG(seed, 7))
				r.cfg.Probes = r.cutsOff()
				r.node.slow = time.Duration(d.IntN(3)) * time.Second
				r.desire(desireMTU(1450))
				defer r.start(dir)()
				managed, last := true, 1450
				for range 12 {
					after(time.Duration(d.IntN(4000)) * time.Millisecond)
					switch d.IntN(5) {
					case 0:
						managed = !managed
						r.api.edit(func() { r.api.object.Managed = managed })
					default:
						last = 1200 + 100*d.IntN(8)
						r.desire(desireMTU(last))
					}
					synctest.Wait()
					if changing := r.node.has("dummy0") && r.node.open.Load(); changing && !managed {
						t.Fatal("unmanaged, and a change is open")
					}
				}
				r.api.edit(func() { r.api.object.Managed = true })
				began := time.Now()
				for r.node.mtu(t, "dummy0") != int64(last) && time.Since(began) < time.Minute {
					after(100 * time.Millisecond)
				}
				if took := time.Since(began); took > supersededLimit+2*r.node.slow+100*time.Millisecond {
					t.Errorf("the last desire was begun after %v", took)
				}
				after(r.cfg.Revert + 5*time.Second)
				if last >= 1400 {
					r.is("True InSync")
				} else if got := r.node.mtu(t, "dummy0"); got < 1400 && !r.node.open.Load() {
					t.Errorf("mtu %d, which cuts off, is left", got)
				}
			})
		})
	}
}

// What a backend learns as it makes a change, such as the name of a checkpoint, is what its roll-back gets, here and after a crash.
func TestWhatApplyLearnsIsKept(t *testing.T) {
	played(t, func(r *rig, dir string) {
		r.node.learns, r.node.ignores = true, true
		r.desire(desireMTU(1450))
		defer r.start(dir)()
		after(time.Second)
		text, err := os.ReadFile(filepath.Join(dir, "change.json"))
		if err != nil {
			r.Fatal(err)
		}
		e, err := decodeEntry(text)
		if err != nil || !strings.Contains(string(e.Change.Before), "learned") {
			r.Errorf("%v: %s", err, e.Change.Before)
		}
		after(r.cfg.Revert)
		if !strings.Contains(string(r.node.undone), "learned") {
			r.Errorf("rolled back by %s", r.node.undone)
		}
	})
}

// The exit status of one pass tells whether the node is as desired.
func TestOnceTellsHowTheNodeIs(t *testing.T) {
	once := func(name string, prepare func(r *rig), says string) {
		t.Run(name, func(t *testing.T) {
			played(t, func(r *rig, dir string) {
				prepare(r)
				err := r.open(dir).Once(r.Context())
				if says == "" && err != nil || says != "" && (err == nil || !strings.Contains(err.Error(), says)) {
					r.Errorf("%v, not %q", err, says)
				}
			})
		})
	}
	once("no object", func(*rig) {}, "")
	once("nothing desired", func(r *rig) { r.api.edit(func() { r.api.make(nil) }) }, "")
	once("enforced", func(r *rig) { r.desire(mtu1450) }, "")
	once("unmanaged, and not as desired", func(r *rig) {
		r.desire(mtu1450)
		r.api.edit(func() { r.api.object.Managed = false })
	}, "")
	once("rolled back", func(r *rig) { r.node.ignores = true; r.desire(mtu1450) }, "interfaces[dummy0].mtu")
	once("refused", func(r *rig) { r.node.applyErr = Refuse("no such type"); r.desire(mtu1450) }, "no such type")
	once("half undone", func(r *rig) {
		r.node.halfway, r.node.rollErr = errors.New("busy"), errors.New("eth9 is gone")
		r.desire(mtu1450)
	}, "eth9 is gone")
	once("no API server", func(r *rig) { r.api.away = errors.New("connection refused") }, "refused")
	once("no API server for the report", func(r *rig) {
		r.desire(mtu1450)
		r.api.edit(func() { r.api.away = errors.New("connection refused") })
	}, "report the state: connection refused")
	once("unreadable", func(r *rig) {
		r.desire(mtu1450)
		r.api.edit(func() { r.api.object.DesiredErr = errors.New("not a number") })
	}, "not a number")
	once("changed back at once", func(r *rig) {
		r.node.afterCommit = func() { r.node.state = nmstate.Overlay(r.node.state, parse(r.T, desireMTU(1500))) }
		r.desire(mtu1450)
	}, "not as desired again: interfaces[dummy0].mtu")
}
