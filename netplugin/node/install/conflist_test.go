package install

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/flowkeep/flowkeep/internal/process"
)

// chain appends a plugin to the configuration in dir as the installer of istio-cni does: with an indentation of its own.
func chain(t *testing.T, file, plugin string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var conf map[string]any
	var entry any
	if err := json.Unmarshal(text, &conf); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(plugin), &entry); err != nil {
		t.Fatal(err)
	}
	conf["plugins"] = append(conf["plugins"].([]any), entry)
	out, err := json.MarshalIndent(conf, "", "    ")
	if err != nil {
		t.Fatal(err)
	}
	put(t, file, string(out), 0o600)
	return string(out)
}

func typesIn(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(pluginTypes(text), " ")
}

func TestMerge(t *testing.T) {
	const socket = "/run/s"
	own := func(i int) string { return string(encode(ownPlugins(socket, "")[i])) }
	conf := func(head string, plugins ...string) string {
		return fmt.Sprintf(`{%s"plugins": [%s]}`, head, strings.Join(plugins, ", "))
	}
	const head = `"cniVersion": "1.0.0", "name": "flowkeep", `
	const alone = head + `"cniVersions": ["1.0.0", "1.1.0"], `
	const istio, tuning = `{"type": "istio-cni", "kubernetes": {"n": [1.5]}}`, `{"type":"tuning","sysctl":{"a<b":"1"}}`
	for _, c := range []struct {
		name, have, want string
		changed          bool
	}{
		{"no plugins", `{}`, conf(alone, own(0), own(1)), true},
		{"as it should be", conf(alone, own(0), own(1)), conf(alone, own(0), own(1)), false},
		{"of an earlier version", conf(head, own(0), own(1)), conf(alone, own(0), own(1)), true},
		{"another's is chained", conf(alone, own(0), own(1), istio), conf(head, own(0), own(1), istio), true},
		{"not read by the runtime", conf(alone, own(0), own(1)), conf(head, own(0), own(1)), true},
		{"versions of another's", conf(head+`"cniVersions": ["0.4.0"], `, own(0), own(1)),
			conf(alone, own(0), own(1)), true},
		{"another's behind", conf(head, own(0), own(1), istio), conf(head, own(0), own(1), istio), false},
		{"another's between", conf(head, own(0), tuning, own(1)), conf(head, own(0), tuning, own(1)), false},
		{"another's first", conf(head, istio, own(0), own(1)), conf(head, own(0), istio, own(1)), true},
		{"own first missing", conf(head, own(1), istio), conf(head, own(0), own(1), istio), true},
		{"own second missing", conf(head, own(0), tuning, istio), conf(head, own(0), own(1), tuning, istio), true},
		{"own changed", conf(head, `{"type":"flowkeep-cni","socket":"/x","mtu":9}`, istio, own(1)),
			conf(head, own(0), istio, own(1)), true},
		{"own twice", conf(head, own(0), own(1), own(0), istio, own(1)), conf(head, own(0), own(1), istio), true},
		{"another's twice", conf(head, own(0), own(1), istio, istio), conf(head, own(0), own(1), istio, istio), false},
		{"name and version changed", conf(`"cniVersion": "0.3.1", "name": "x", `, own(0), own(1), istio),
			conf(head, own(0), own(1), istio), true},
		{"a field of another's", conf(alone+`"disableCheck": true, `, own(0), own(1)),
			conf(alone+`"disableCheck": true, `, own(0), own(1)), false},
		{"plugins is null", `{"plugins": null}`, conf(alone, own(0), own(1)), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			isRead := !strings.Contains(c.name, "not read")
			got, changed, err := Merge([]byte(c.have), socket, "", isRead)
			if err != nil || changed != c.changed || !sameJSON(got, []byte(c.want)) {
				t.Errorf("changed %v, %v:\n%s\nwant %v:\n%s", changed, err, got, c.changed, c.want)
			}
			if again, changed, err := Merge(got, socket, "", isRead); err != nil || changed || string(again) != string(got) {
				t.Errorf("merged again: changed %v, %v:\n%s", changed, err, again)
			}
		})
	}
	for _, broken := range []string{``, `null x`, `[]`, `{"plugins": {}}`, `{"plugins": [1]}`, `{"plugins": [{}]}`, `{"plu`} {
		if got, _, err := Merge([]byte(broken), socket, "", true); err == nil {
			t.Errorf("%q is accepted: %s", broken, got)
		}
	}
}

// keepIn runs Keep for a directory until the returned function is called. It logs to log.
func keepIn(t *testing.T, dir string, countWrite func(string) bool) (log *process.Ring, stop func()) {
	t.Helper()
	var health process.Health
	log = process.NewRing(process.KeptLog)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		Keep(ctx, &Config{
			Dir:        dir,
			Socket:     "/run/s",
			Ready:      func() bool { return true },
			Changes:    health.Changes,
			CountWrite: countWrite,
			Logger:     slog.New(slog.NewTextHandler(log, nil)),
		})
	}()
	synctest.Wait()
	return log, func() { cancel(); <-done }
}

// A plugin that another program chains stays, own entries come back without it being lost, and a file that is as it
// should be is not written, so that two programs do not write it in turns.
func TestChainedPluginsStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		file := filepath.Join(dir, ConfigurationFile)
		log, stop := keepIn(t, dir, nil)
		chain(t, file, `{"type": "istio-cni", "log_level": "info"}`)
		<-afterAgain()
		synctest.Wait()
		text, err := os.ReadFile(file)
		if err != nil || strings.Contains(string(text), "cniVersions") {
			t.Fatalf("CNI 1.1 is listed for a plugin that may not know it: %s (%v)", text, err)
		}
		chained := string(text)
		for range 3 {
			<-afterAgain()
			synctest.Wait()
			if text, err := os.ReadFile(file); err != nil || string(text) != chained {
				t.Fatalf("the file was written: %s (%v)", text, err)
			}
		}
		put(t, file, `{"cniVersion": "1.0.0", "name": "flowkeep", "plugins": [{"type": "istio-cni", "log_level": "info"}]}`, 0o600)
		<-afterAgain()
		synctest.Wait()
		if got := typesIn(t, file); got != "flowkeep-cni flowkeep-portmap istio-cni" {
			t.Errorf("plugins: %s", got)
		}
		put(t, file, string(Configuration("/run/s", "")), 0o644)
		<-afterAgain()
		put(t, file, "half of a fi", 0o644)
		<-afterAgain()
		synctest.Wait()
		if got := typesIn(t, file); got != "flowkeep-cni flowkeep-portmap" {
			t.Errorf("after a broken file: %s", got)
		}
		if n := strings.Count(log.Text(), "have changed"); n != 2 || !strings.Contains(log.Text(), "plugins=istio-cni") {
			t.Errorf("logged %d times: %s", n, log.Text())
		}
		stop()
	})
}

// TestKeep_CountsWrites: each write of the file is counted, and logged only if the counter says so.
func TestKeep_CountsWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir, counted := t.TempDir(), 0
		file := filepath.Join(dir, ConfigurationFile)
		log, stop := keepIn(t, dir, func(name string) bool {
			if name != file {
				t.Errorf("counted %s", name)
			}
			counted++
			return counted == 1
		})
		for range 3 {
			put(t, file, "{}", 0o644)
			<-afterAgain()
		}
		stop()
		if n := strings.Count(log.Text(), "wrote the CNI configuration"); counted != 4 || n != 1 {
			t.Errorf("%d writes counted, want 4; %d logged, want 1: %s", counted, n, log.Text())
		}
	})
}

// A configuration before Flowkeep's that another program made of it is Flowkeep's network.
func TestBefore_ChainedCopy(t *testing.T) {
	dir := t.TempDir()
	text, _, err := Merge([]byte(`{"plugins": [{"type": "istio-cni"}]}`), "/run/s", "", true)
	if err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(dir, "02-istio-cni.conflist"), string(text), 0o600)
	put(t, filepath.Join(dir, "03-other.conflist"), `{"plugins": [{"type": "bridge"}, {"type": "flowkeep-cni"}]}`, 0o600)
	put(t, filepath.Join(dir, "04-broken.conflist"), `{`, 0o600)
	names, err := Before(dir)
	if err != nil || !slices.Equal(names, []string{"03-other.conflist", "04-broken.conflist"}) {
		t.Errorf("%v (%v)", names, err)
	}
}
