package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const testURL = "https://downloads.test/flowkeep/v1.2.3"

// runs runs a build whose compiler writes the platform's name, and returns its directory.
func runs(t *testing.T) string {
	t.Helper()
	t.Chdir("../..")
	b := build{version: "v1.2.3", url: testURL, out: filepath.Join(t.TempDir(), "krew")}
	err := b.run(func(p platform, version, file string) error {
		return os.WriteFile(file, []byte(p.os+"/"+p.arch+" "+version), 0o600)
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.out
}

// krewFaults returns what krew's validation (internal/index/validation of krew v0.5.0) refuses, and what its index
// requires beyond that.
func krewFaults(m *manifest) (list []string) {
	add := func(isWrong bool, format string, args ...any) {
		if isWrong {
			list = append(list, fmt.Sprintf(format, args...))
		}
	}
	add(m.APIVersion != "krew.googlecontainertools.github.com/v1alpha2", "apiVersion %s", m.APIVersion)
	add(m.Kind != "Plugin", "kind %s", m.Kind)
	add(!regexp.MustCompile(`^[\w-]+$`).MatchString(m.Metadata.Name), "name %q", m.Metadata.Name)
	add(!semver.MatchString(m.Spec.Version), "version %q", m.Spec.Version)
	short := m.Spec.ShortDescription
	add(short == "" || len(short) > 50 || strings.ContainsAny(short, "\r\n."), "shortDescription %q", short)
	add(m.Spec.Description == "", "no description")
	add(len(m.Spec.Platforms) == 0, "no platforms")
	for _, p := range m.Spec.Platforms {
		labels := p.Selector.MatchLabels
		add(len(labels) != 2 || labels["os"] == "" || labels["arch"] == "", "selector %v", labels)
		add(!strings.HasPrefix(p.URI, "https://"), "uri %q", p.URI)
		add(!regexp.MustCompile(`^[a-f0-9]{64}$`).MatchString(p.SHA256), "sha256 %q", p.SHA256)
		add(p.Bin == "", "no bin")
		add(len(p.Files) == 0, "no files")
		for _, f := range p.Files {
			add(f.From == "" || f.To == "", "file %v", f)
		}
	}
	return list
}

func TestRun_ManifestAndArchives(t *testing.T) {
	dir := runs(t)
	text, err := os.ReadFile(filepath.Join(dir, "flowkeep.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var m manifest
	if err := yaml.UnmarshalStrict(text, &m); err != nil {
		t.Fatal(err)
	}
	if faults := krewFaults(&m); len(faults) > 0 {
		t.Error(faults)
	}
	if m.Metadata.Name != "flowkeep" || m.Spec.Version != "v1.2.3" || len(m.Spec.Platforms) != len(platforms) {
		t.Errorf("%s", text)
	}
	for _, p := range m.Spec.Platforms {
		name, below := strings.CutPrefix(p.URI, testURL+"/")
		archive, err := os.ReadFile(filepath.Join(dir, name))
		if !below || err != nil || sumOf(archive) != p.SHA256 {
			t.Fatalf("%s: %v", p.URI, err)
		}
		files := unpack(t, name, archive)
		labels := p.Selector.MatchLabels
		if files[p.Bin] != "755 "+labels["os"]+"/"+labels["arch"]+" v1.2.3" {
			t.Errorf("%s: %q", name, files[p.Bin])
		}
		for _, f := range p.Files {
			if files[f.From] == "" {
				t.Errorf("%s has no %s", name, f.From)
			}
		}
		if !strings.HasPrefix(files["LICENSE"], "644 ") || len(files) != 2 {
			t.Errorf("%s: %d files", name, len(files))
		}
	}
}

// unpack returns mode and text of the files of an archive.
func unpack(t *testing.T, name string, archive []byte) map[string]string {
	t.Helper()
	out := map[string]string{}
	add := func(name string, mode os.FileMode, r io.Reader) {
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		out[name] = fmt.Sprintf("%o %s", mode.Perm(), text)
	}
	if strings.HasSuffix(name, ".zip") {
		files, err := zip.NewReader(bytes.NewReader(archive), int64(len(archive)))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files.File {
			r, err := f.Open()
			if err != nil {
				t.Fatal(err)
			}
			add(f.Name, f.Mode(), r)
		}
		return out
	}
	packed, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		t.Fatal(err)
	}
	files := tar.NewReader(packed)
	for {
		h, err := files.Next()
		if err == io.EOF {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		add(h.Name, h.FileInfo().Mode(), files)
	}
}

// Two builds of the same programs are the same bytes.
func TestRun_IsReproducible(t *testing.T) {
	var all [2]map[string]string
	for i := range all {
		all[i] = map[string]string{}
		t.Run("", func(t *testing.T) {
			dir := runs(t)
			list, err := os.ReadDir(dir)
			if err != nil || len(list) != len(platforms)+1 {
				t.Fatalf("%d files: %v", len(list), err)
			}
			for _, f := range list {
				text, err := os.ReadFile(filepath.Join(dir, f.Name()))
				if err != nil {
					t.Fatal(err)
				}
				all[i][f.Name()] = sumOf(text)
			}
		})
	}
	for name, sum := range all[0] {
		if all[1][name] != sum {
			t.Errorf("%s differs", name)
		}
	}
}

func TestKrewFaults_ReportsThem(t *testing.T) {
	for name, change := range map[string]func(*manifest){
		"version":     func(m *manifest) { m.Spec.Version = "0.1.0" },
		"sum":         func(m *manifest) { m.Spec.Platforms[0].SHA256 = "" },
		"platforms":   func(m *manifest) { m.Spec.Platforms = nil },
		"selector":    func(m *manifest) { delete(m.Spec.Platforms[1].Selector.MatchLabels, "arch") },
		"description": func(m *manifest) { m.Spec.ShortDescription = strings.Repeat("x", 51) },
		"uri":         func(m *manifest) { m.Spec.Platforms[2].URI = "http://x" },
		"file":        func(m *manifest) { m.Spec.Platforms[2].Files[0].To = "" },
	} {
		sums := map[platform]string{}
		for _, p := range platforms {
			sums[p] = sumOf(nil)
		}
		text, err := manifestOf("v0.1.0", testURL, sums)
		if err != nil {
			t.Fatal(err)
		}
		var m manifest
		if err := yaml.UnmarshalStrict(text, &m); err != nil {
			t.Fatal(err)
		}
		if faults := krewFaults(&m); len(faults) > 0 {
			t.Fatal(faults)
		}
		change(&m)
		if faults := krewFaults(&m); len(faults) != 1 {
			t.Errorf("%s: %v", name, faults)
		}
	}
}

func TestRun_RefusesArguments(t *testing.T) {
	for _, b := range []build{
		{version: "", url: testURL},
		{version: "1.2.3", url: testURL},
		{version: "v1.2", url: testURL},
		{version: "v1.2.3", url: ""},
		{version: "v1.2.3", url: "http://downloads.test"},
		{version: "v1.2.3", url: "https://downloads.test/"},
	} {
		b.out = t.TempDir()
		if err := b.run(func(platform, string, string) error { return nil }); err == nil {
			t.Errorf("%+v is accepted", b)
		}
	}
}

// linuxOnly are packages that compile on Linux only, though they have files for other systems.
var linuxOnly = []string{
	"github.com/vishvananda/netlink",
	"github.com/safchain/ethtool",
	"github.com/flowkeep/flowkeep/internal/rtnl",
	"github.com/flowkeep/flowkeep/nodestate",
	"github.com/flowkeep/flowkeep/nodestate/native",
}

// Go can compile for each platform, and netctl imports no package there that lacks files or compiles on Linux only.
func TestPlatforms_CanBeBuilt(t *testing.T) {
	known, err := exec.Command("go", "tool", "dist", "list").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range platforms {
		if !slices.Contains(strings.Fields(string(known)), p.os+"/"+p.arch) {
			t.Errorf("Go does not know %s/%s", p.os, p.arch)
		}
		cmd := exec.Command("go", "list", "-e", "-deps", "-f", "{{.ImportPath}}{{with .Error}}: {{.}}{{end}}", "../../netctl")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+p.os, "GOARCH="+p.arch)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%s/%s: %v %s", p.os, p.arch, err, out)
		}
		for line := range strings.Lines(string(out)) {
			line = strings.TrimSpace(line)
			if strings.Contains(line, ": ") || p.os != "linux" && slices.Contains(linuxOnly, line) {
				t.Errorf("netctl for %s/%s imports %s", p.os, p.arch, line)
			}
		}
	}
}
