package install

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"

	"github.com/flowkeep/flowkeep/internal/process"
)

func TestIsUsable(t *testing.T) {
	for text, want := range map[string]bool{
		"nftables v1.0.6 (Lester Gooch #5)\n":   true,
		"nftables v1.0.1 (Fearless Fosdick #3)": true,
		"nftables v1.0.0 (Fearless Fosdick #2)": false,
		"nftables v0.9.8 (E.D.S.)":              false,
		"usage: busybox":                        false,
		"":                                      false,
	} {
		if got := isUsable(text); got != want {
			t.Errorf("isUsable(%q) = %v", text, got)
		}
	}
}

// Backend runs the node's program: the one on the path, or the one below the mount of the node's root.
func TestBackend(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	if got := Backend(t.Context(), "/"); got != "" {
		t.Errorf("without nft: %q", got)
	}
	put(t, filepath.Join(dir, "nft"), "#!/bin/sh\necho 'nftables v0.9.8 (E.D.S.)'\n", 0o755)
	if got := Backend(t.Context(), "/"); got != "" {
		t.Errorf("with an old nft: %q", got)
	}
	put(t, filepath.Join(dir, "nft"), "#!/bin/sh\necho 'nftables v1.0.6 (Lester Gooch #5)'\n", 0o755)
	if got := Backend(t.Context(), "/"); got != BackendNftables {
		t.Errorf("with nft 1.0.6: %q", got)
	}
	if got := Backend(t.Context(), t.TempDir()); got != "" {
		t.Errorf("the node's root has no nft, and the container's was taken: %q", got)
	}
}

// The backend is chosen once, when the node has no pods: a pod's DEL needs the backend of its ADD.
func TestKeep_Backend(t *testing.T) {
	const none = "none"
	for name, c := range map[string]struct {
		before   string // backend in the file that is there; none: no file
		attached bool
		node     string
		want     string
	}{
		"a new node with nft":                       {none, false, BackendNftables, BackendNftables},
		"a new node without nft":                    {none, false, "", ""},
		"an earlier version's file, pods":           {"", true, BackendNftables, ""},
		"an earlier version's file, after a reboot": {"", false, BackendNftables, BackendNftables},
		"nft was removed, pods":                     {BackendNftables, true, "", BackendNftables},
		"nft was removed, no pods":                  {BackendNftables, false, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir := t.TempDir()
				file := filepath.Join(dir, ConfigurationFile)
				if c.before != none {
					put(t, file, string(Configuration("/run/s", c.before)), 0o644)
				}
				var health process.Health
				ctx, stop := context.WithCancel(t.Context())
				done := make(chan struct{})
				attached := c.attached
				go func() {
					defer close(done)
					Keep(ctx, &Config{
						Dir:      dir,
						Socket:   "/run/s",
						Ready:    func() bool { return true },
						Changes:  health.Changes,
						Backend:  func() string { return c.node },
						Attached: func() bool { return attached },
						Logger:   slog.New(slog.DiscardHandler),
					})
				}()
				synctest.Wait()
				isBackend(t, file, c.want)
				attached = !attached // later changes of it have no effect
				<-afterAgain()
				synctest.Wait()
				isBackend(t, file, c.want)
				stop()
				<-done
			})
		})
	}
}

// isBackend compares portmap's entry, and whether netplugin is sent the pods' port mappings.
func isBackend(t *testing.T, file, want string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var conf struct{ Plugins []ownPlugin }
	if err := json.Unmarshal(text, &conf); err != nil || len(conf.Plugins) != 2 {
		t.Fatalf("%s (%v)", text, err)
	}
	if conf.Plugins[1].Backend != want || conf.Plugins[0].Capabilities[portMappings] != (want != "") {
		t.Errorf("backend %q wanted:\n%s", want, text)
	}
}
