package native

import (
	_ "embed"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/flowkeep/flowkeep/internal/testkit/netns"
	"github.com/flowkeep/flowkeep/nodestate"
	"github.com/flowkeep/flowkeep/nodestate/nmstate"
	"sigs.k8s.io/yaml"
)

//go:embed testdata/edges.yaml
var edges []byte

// refusedOrInSync applies documents at the limits of what a kernel accepts. Each is refused before anything changes, or
// applied, read back and in sync with nothing left to do; a roll-back restores the former state.
func (b *bench) refusedOrInSync() {
	b.t.Helper()
	var documents []string
	if err := yaml.UnmarshalStrict(edges, &documents); err != nil {
		b.t.Fatal(err)
	}
	refused := 0
	for _, document := range documents {
		desired, err := nmstate.Parse([]byte(document))
		if err != nil {
			refused++
			continue
		}
		before := b.show()
		change, err := b.Apply(b.t.Context(), desired, volatile)
		if errors.Is(err, nodestate.ErrRefused) {
			refused++
		} else if err != nil {
			b.t.Errorf("%s: neither refused nor applied: %v", document, err)
		} else {
			b.noDifference(document, desired)
		}
		if err := b.Rollback(b.t.Context(), change); change.Before != nil && err != nil {
			b.t.Errorf("%s: roll back: %v", document, err)
		}
		if now := b.show(); !nmstate.Equal(before, now) {
			b.t.Errorf("%s: not as before: %v, %v", document, nmstate.Diff(before, now), nmstate.Diff(now, before))
		}
	}
	b.t.Logf("%d documents, of which %d are refused", len(documents), refused)
}

func (b *bench) noDifference(document string, desired nmstate.State) {
	b.t.Helper()
	if d := nmstate.Diff(desired, b.show()); len(d) > 0 {
		b.t.Errorf("%s: %v", document, d)
	}
	if again, err := b.Plan(b.t.Context(), desired); err != nil || len(again) > 0 {
		b.t.Errorf("%s: a second plan is to %s, %v", document, texts(again), err)
	}
}

func TestRefusedOrInSync(t *testing.T) {
	(&bench{onFake(newFake()), t}).refusedOrInSync()
}

// TestKernelRefusedOrInSync applies them to the real kernel, which keeps each that is not refused.
func TestKernelRefusedOrInSync(t *testing.T) {
	netns.New(t).Enter(t)
	cfg := Config{ResolvConf: filepath.Join(t.TempDir(), "resolv.conf"), OVSDB: openVSwitch(t)}
	if err := os.WriteFile(cfg.ResolvConf, []byte("nameserver 192.0.2.99\nsearch example.org\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	b := newBench(t, cfg)
	b.apply(devices)
	b.refusedOrInSync()
}
