package install

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/flowkeep/flowkeep/internal/process"
)

func put(t *testing.T, name, content string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(name, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(name, mode); err != nil {
		t.Fatal(err)
	}
}

// holds compares a directory's files with what it should have, hidden ones too.
func holds(t *testing.T, dir string, want map[string]string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if content, there := want[e.Name()]; err != nil || !there || string(data) != content {
			t.Errorf("%s has %s: %q (%v)", dir, e.Name(), data, err)
		}
	}
	if len(entries) != len(want) {
		t.Errorf("%s has %d files, not %d", dir, len(entries), len(want))
	}
}

func TestProgramsAreReplacedByOlderAndNewer(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	put(t, filepath.Join(from, "a"), "a1", 0o755)
	put(t, filepath.Join(from, "b"), "b1", 0o555)
	put(t, filepath.Join(from, "notes"), "not a program", 0o644)
	put(t, filepath.Join(to, "others"), "somebody else's", 0o755)
	put(t, filepath.Join(to, ".a.new"), "of a copy that was killed", 0o600)
	names, err := In(from)
	if err != nil || !slices.Equal(names, []string{"a", "b"}) {
		t.Fatalf("%v, %v", names, err)
	}
	check := func(wantChanged []string, a string) {
		t.Helper()
		changed, err := Programs(from, to, names)
		if err != nil || !slices.Equal(changed, wantChanged) {
			t.Errorf("changed %v (%v), want %v", changed, err, wantChanged)
		}
		holds(t, to, map[string]string{"a": a, "b": "b1", "others": "somebody else's"})
		for _, name := range names {
			if info, err := os.Stat(filepath.Join(to, name)); err != nil || info.Mode() != 0o755 {
				t.Errorf("%s: %v (%v)", name, info.Mode(), err)
			}
		}
	}
	check([]string{"a", "b"}, "a1")
	check(nil, "a1")
	put(t, filepath.Join(from, "a"), "a2", 0o755)
	check([]string{"a"}, "a2")
	put(t, filepath.Join(from, "a"), "a1", 0o755)
	check([]string{"a"}, "a1")
	put(t, filepath.Join(to, "b"), "b1", 0o644) // somebody's chmod
	check([]string{"b"}, "a1")
}

// A program that runs is replaced, and goes on.
func TestAProgramThatRuns(t *testing.T) {
	sleep, err := exec.LookPath("cat")
	if err != nil {
		t.Skip(err)
	}
	data, err := os.ReadFile(sleep)
	if err != nil {
		t.Fatal(err)
	}
	from, to := t.TempDir(), t.TempDir()
	put(t, filepath.Join(to, "p"), string(data), 0o755)
	put(t, filepath.Join(from, "p"), "the next version", 0o755)
	run := exec.Command(filepath.Join(to, "p"))
	in, err := run.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	run.Stdout = &out
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := Programs(from, to, []string{"p"}); err != nil {
		t.Error(err)
	}
	if _, err := in.Write([]byte("still here")); err != nil {
		t.Error(err)
	}
	in.Close()
	if err := run.Wait(); err != nil || out.String() != "still here" {
		t.Errorf("%v: %q", err, out.String())
	}
	holds(t, to, map[string]string{"p": "the next version"})
}

func TestWhatCannotBeInstalled(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	put(t, filepath.Join(from, "good"), "good", 0o755)
	put(t, filepath.Join(from, "dir"), "a program", 0o755)
	if err := os.MkdirAll(filepath.Join(to, "dir", "x"), 0o755); err != nil {
		t.Fatal(err)
	}
	changed, err := Programs(from, to, []string{"missing", "../up", "", ".hidden", "dir", "good"})
	if !slices.Equal(changed, []string{"good"}) || err == nil {
		t.Fatalf("%v, %v", changed, err)
	}
	for _, name := range []string{"install missing:", "install ../up: not the name", "install : not", "install .hidden: not", "install dir:"} {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("nothing of %q in %v", name, err)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(to, ".*.new")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	if _, err := Programs(from, filepath.Join(to, "nowhere"), []string{"good"}); err == nil {
		t.Error("a directory that is not there")
	}
}

func TestConfigurationIsTheSpecifications(t *testing.T) {
	var c struct {
		CNIVersion, Name string
		Plugins          []map[string]any
	}
	if err := json.Unmarshal(Configuration(`/run/a "strange" one.sock`, ""), &c); err != nil {
		t.Fatal(err)
	}
	if c.CNIVersion != "1.0.0" || c.Name != "flowkeep" || len(c.Plugins) != 2 || c.Plugins[0]["type"] != "flowkeep-cni" ||
		c.Plugins[0]["socket"] != `/run/a "strange" one.sock` || c.Plugins[1]["type"] != "flowkeep-portmap" || c.Plugins[1]["snat"] != true {
		t.Errorf("%+v", c)
	}
}

// The configuration is there when the node is ready and not before, stays when it is not ready any more, and comes again when it is gone.
func TestTheConfigurationWaitsForTheNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		file := filepath.Join(dir, ConfigurationFile)
		var health process.Health
		log := process.NewRing(process.KeptLog)
		health.SetReady("switch", "starting")
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			Keep(ctx, &Config{Dir: dir, Socket: "/run/s", Ready: func() bool { return health.NotReady() == "" }, Changes: health.Changes,
				Logger: slog.New(slog.NewTextHandler(log, nil))})
		}()
		is := func(want string) {
			t.Helper()
			synctest.Wait()
			if data, _ := os.ReadFile(file); string(data) != want {
				t.Errorf("got %q, want %q", data, want)
			}
		}
		written := string(Configuration("/run/s", ""))
		is("")
		health.SetReady("network", "starting")
		is("")
		health.SetReady("switch", "")
		is("")
		health.SetReady("network", "")
		is(written)
		health.SetReady("switch", "restarting")
		is(written)
		os.Remove(file)
		health.SetReady("switch", "") // any news will do
		is(written)
		put(t, file, "somebody else's", 0o644)
		is("somebody else's")
		<-afterAgain()
		is(written)
		put(t, filepath.Join(dir, "05-other.conflist"), "{}", 0o644)
		put(t, filepath.Join(dir, "05-other.conflist.bak"), "{}", 0o644)
		for range 3 {
			<-afterAgain()
		}
		synctest.Wait()
		if n := strings.Count(log.Text(), "05-other.conflist"); n != 1 || strings.Contains(log.Text(), ".bak") {
			t.Errorf("the other configuration is told of %d times: %s", n, log.Text())
		}
		stop()
		<-done
		read, _, err := Merge([]byte(written), "/run/s", "", false)
		if err != nil || string(read) == written {
			t.Errorf("read by another program: %s (%v)", read, err)
		}
		is(string(read))
	})
}

// What cannot be written is told once, and written as soon as it can be.
func TestADirectoryThatComesLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "net.d")
		var health process.Health
		log := process.NewRing(process.KeptLog)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			Keep(ctx, &Config{Dir: dir, Socket: "/run/s", Ready: func() bool { return true }, Changes: health.Changes, Logger: slog.New(slog.NewTextHandler(log, nil))})
		}()
		for range 3 {
			<-afterAgain()
		}
		synctest.Wait()
		if n := strings.Count(log.Text(), "could not write"); n != 1 {
			t.Errorf("told %d times: %s", n, log.Text())
		}
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		<-afterAgain()
		synctest.Wait()
		holds(t, dir, map[string]string{ConfigurationFile: string(Configuration("/run/s", ""))})
		stop()
		<-done
	})
}
