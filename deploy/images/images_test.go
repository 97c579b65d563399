package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

const sumA = "ba4f88f73dbc3ae9055f3c20f4523bfdbaf1ad13ff95e258924f77d20b4fbedf"

func TestLock(t *testing.T) {
	l, err := parseLock(strings.NewReader("# a comment\n\ngo 1.26.8\ndeb amd64 libc6 2:2.36-9+deb12u14~x " + sumA + "\ndeb arm64 libc6 1 " + sumA + "\n"))
	if err != nil || l.golang != "1.26.8" || len(l.debian) != 2 || l.debian["amd64 libc6"] != (locked{"2:2.36-9+deb12u14~x", sumA}) {
		t.Errorf("%+v, %v", l, err)
	}
	for _, bad := range []string{
		"go", "go 1 2", "go 1\ngo 2", "deb amd64 libc6 1", "deb amd64 libc6 1 " + sumA[1:], "deb amd64 libc6 1 " + strings.ToUpper(sumA),
		"deb amd64 ../libc6 1 " + sumA, "deb amd64 libc6 1;reboot " + sumA, "deb amd64 a1 1 " + sumA + "\ndeb amd64 a1 2 " + sumA, "rpm x", "go 1 # why",
	} {
		if _, err := parseLock(strings.NewReader(bad)); err == nil {
			t.Errorf("%q passed", bad)
		}
	}
}

func FuzzLock(f *testing.F) {
	f.Add("go 1.26.8\ndeb amd64 libc6 1 " + sumA)
	f.Fuzz(func(t *testing.T, text string) {
		l, err := parseLock(strings.NewReader(text))
		if err != nil {
			return
		}
		var again strings.Builder
		if l.golang != "" {
			again.WriteString("go " + l.golang + "\n")
		}
		for key, p := range l.debian {
			again.WriteString("deb " + key + " " + p.version + " " + p.sum + "\n")
		}
		if l2, err := parseLock(strings.NewReader(again.String())); err != nil || l2.golang != l.golang || !maps.Equal(l2.debian, l.debian) {
			t.Errorf("%q came back as %+v (%v), was %+v", text, l2, err, l)
		}
	})
}

// What is in the repository names what the recipes need, all of it, and nothing else.
func TestTheLockHasWhatTheRecipesNeed(t *testing.T) {
	l, err := readLock("lock")
	if err != nil {
		t.Fatal(err)
	}
	if l.golang == "" {
		t.Error("the lock names no Go")
	}
	needed := packagesOf(recipes)
	for _, name := range needed {
		for _, arch := range []string{"amd64", "arm64"} {
			if _, there := l.debian[arch+" "+name]; !there {
				t.Errorf("the lock has no %s: ARCH=%s scripts/images --lock", name, arch)
			}
		}
	}
	for key := range l.debian {
		if _, name, _ := strings.Cut(key, " "); !slices.Contains(needed, name) {
			t.Errorf("the lock has %s, which no image needs: scripts/images --lock", key)
		}
	}
}

func TestTags(t *testing.T) {
	for tag, want := range map[string]bool{"v1.2.3-4-gabc-dirty": true, "47c815e8b5b7": true, "": false, "-a": false, ".a": false, "a b": false, "a/b": false,
		"a:b": false, strings.Repeat("x", 128): true, strings.Repeat("x", 129): false} {
		if isTag(tag) != want {
			t.Errorf("%q: %t", tag, !want)
		}
	}
}

// The names of maps' keys have an order in Go that changes from one loop to the next: layers must not.
func TestALayerIsTheSameEachTime(t *testing.T) {
	layer := tree{"tmp": directory(0o1777), "var/run": symlink("/run")}
	for _, name := range strings.Fields("z a m usr/bin/b usr/bin/a usr/lib/x/y") {
		layer[name] = text(name)
	}
	first, err := new(build).pack(layer)
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		if again, err := new(build).pack(maps.Clone(layer)); err != nil || !bytes.Equal(again.data, first.data) || again.diffID != first.diffID {
			t.Fatalf("another layer of the same files (%v)", err)
		}
	}
	z, err := gzip.NewReader(bytes.NewReader(first.data))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if h.Uid != 0 || h.Gid != 0 || h.Uname != "" || !h.ModTime.Equal(time.Unix(0, 0)) {
			t.Errorf("%s: %+v", h.Name, h)
		}
		if dir := path.Dir(path.Clean(h.Name)); dir != "." && !slices.Contains(names, dir+"/") {
			t.Errorf("%s comes before its directory", h.Name)
		}
		if h.Name == "tmp/" && h.Mode != 0o1777 {
			t.Errorf("/tmp has mode %o", h.Mode)
		}
		names = append(names, h.Name)
	}
	if want := "a m tmp/ usr/ usr/bin/ usr/bin/a usr/bin/b usr/lib/ usr/lib/x/ usr/lib/x/y var/ var/run z"; strings.Join(names, " ") != want {
		t.Errorf("the layer has %v", names)
	}
}

func TestImages_MissingDependency(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	needs, err := neededBy(program)
	if err != nil {
		t.Fatal(err)
	}
	all := tree{"bin/test": executable(program), "a": symlink("b"), "b": symlink("/bin/test"), "dir": symlink("bin")}
	for _, need := range needs { // with the race detector this is a program of C's too
		if at := need; strings.Contains(need, "/") {
			all[at] = text("the linker")
		} else {
			all["usr/lib/x86_64-linux-gnu/"+need] = text("a library")
		}
	}
	if err := complete(all); err != nil {
		t.Error(err)
	}
	for at := range all {
		less := maps.Clone(all)
		delete(less, at)
		if err := complete(less); (err == nil) != (at == "a" || at == "dir") {
			t.Errorf("without %s: %v", at, err)
		}
	}
	if _, err := neededBy([]byte("\x7fELF nonsense")); err == nil {
		t.Error("nonsense passed for a program")
	}
}

// fakes are packages by name: their files by path.
func fakes(list map[string]tree) *packages {
	p := &packages{byName: map[string]*debianPackage{}}
	for name, files := range list {
		p.byName[name] = &debianPackage{name: name, files: files, control: []byte("Package: " + name + "\n")}
	}
	return p
}

func TestPick(t *testing.T) {
	p := fakes(map[string]tree{
		"tool":     {"usr/bin/tool": text("x"), "usr/bin/other": text("x"), "usr/lib/x86_64-linux-gnu/libt.so.1": symlink("libt.so.1.2"), "usr/share/doc/tool/copyright": text("©")},
		"lib":      {"usr/lib/x86_64-linux-gnu/libt.so.1.2": text("x"), "usr/share/doc/lib": symlink("lib-base")},
		"lib-base": {"usr/share/doc/lib-base/copyright": text("© too")},
		"useless":  {"usr/bin/useless": text("x")},
	})
	all := []string{"tool", "lib", "lib-base"}
	layer := tree{}
	if err := p.pick(all, []string{"usr/bin/tool", "usr/lib/*/libt.so.1"}, tree{}, layer); err != nil {
		t.Fatal(err)
	}
	want := strings.Fields(`usr/bin/tool usr/lib/x86_64-linux-gnu/libt.so.1 usr/lib/x86_64-linux-gnu/libt.so.1.2 usr/share/doc/lib usr/share/doc/lib-base/copyright
		usr/share/doc/tool/copyright var/lib/dpkg/status.d/lib var/lib/dpkg/status.d/lib-base var/lib/dpkg/status.d/tool`)
	if got := slices.Sorted(maps.Keys(layer)); !slices.Equal(got, want) {
		t.Errorf("picked %v", got)
	}
	more := tree{}
	if err := p.pick(all, []string{"usr/bin/o*"}, layer, more); err != nil || !maps.EqualFunc(more, tree{"usr/bin/other": text("x")}, func(a, b file) bool { return string(a.data) == string(b.data) }) {
		t.Errorf("upon the first layer: %v (%v)", slices.Sorted(maps.Keys(more)), err)
	}
	for name, c := range map[string]struct{ names, wanted []string }{
		"no such file":         {all, []string{"usr/bin/missing"}},
		"a link to nothing":    {[]string{"tool"}, []string{"usr/lib/*/libt.so.1"}},
		"a package for naught": {append(slices.Clone(all), "useless"), []string{"usr/bin/tool", "usr/lib/*/libt.so.1"}},
	} {
		if err := p.pick(c.names, c.wanted, tree{}, tree{}); err == nil {
			t.Errorf("%s passed", name)
		}
	}
}

func TestPackagesThatAreNotTheLocks(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.deb")
	if err := os.WriteFile(file, []byte("whatever"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openPackage(file, "a", locked{"1", sumA}); err == nil || !strings.Contains(err.Error(), "the lock says") {
		t.Errorf("another sum: %v", err)
	}
	if _, err := openPackage(file, "a", locked{"1", sumOf([]byte("whatever"))}); err == nil {
		t.Error("no package at all passed")
	}
}

// readArchive is an archive's files.
func readArchive(t *testing.T, archive []byte) tree {
	t.Helper()
	files, err := unpack(bytes.NewReader(archive))
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func TestTheArchiveIsALayout(t *testing.T) {
	layer, err := new(build).pack(root)
	if err != nil {
		t.Fatal(err)
	}
	img := image{name: "example.org/a/b:v1", arch: "arm64", created: time.Unix(1e9, 0).UTC(), config: config{User: "65532:65532"}, layers: []*packed{layer, layer}}
	digest, archive, err := img.archive()
	if err != nil {
		t.Fatal(err)
	}
	files := readArchive(t, archive)
	var list index
	get := func(d descriptor, v any) {
		t.Helper()
		data := files["blobs/"+strings.Replace(d.Digest, ":", "/", 1)].data
		if digestOf(data) != d.Digest || len(data) != d.Size {
			t.Errorf("%s is %s of %d bytes", d.Digest, digestOf(data), len(data))
		}
		if v != nil && json.Unmarshal(data, v) != nil {
			t.Errorf("%s is no JSON", d.Digest)
		}
	}
	if err := json.Unmarshal(files["index.json"].data, &list); err != nil || len(list.Manifests) != 1 || list.Manifests[0].Digest != digest {
		t.Fatalf("%v: %s", err, files["index.json"].data)
	}
	if a := list.Manifests[0].Annotations; a["io.containerd.image.name"] != "example.org/a/b:v1" || a["org.opencontainers.image.ref.name"] != "v1" {
		t.Errorf("it is called %v", a)
	}
	var m manifest
	get(list.Manifests[0], &m)
	var c imageConfig
	get(m.Config, &c)
	if c.Created != "2001-09-09T01:46:40Z" || c.Architecture != "arm64" || c.OS != "linux" || c.Config.User != "65532:65532" || len(c.RootFS.DiffIDs) != len(m.Layers) {
		t.Errorf("%+v", c)
	}
	for i, l := range m.Layers {
		get(l, nil)
		if c.RootFS.DiffIDs[i] != layer.diffID {
			t.Errorf("layer %d is %s", i, c.RootFS.DiffIDs[i])
		}
	}
	if again, same, _ := img.archive(); again != digest || !bytes.Equal(same, archive) {
		t.Error("another archive of the same image")
	}
}
