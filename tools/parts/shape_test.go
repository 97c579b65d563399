package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestChooseShape_ComesRound: the gate tests each shape of the table, with the flags of its part, once in as many
// commits as there are shapes.
func TestChooseShape_ComesRound(t *testing.T) {
	parts, err := readTable(checkout)
	if err != nil {
		t.Fatal(err)
	}
	var want, got []string
	for _, p := range parts {
		if strings.HasPrefix(p.Name, shapePrefix) {
			want = append(want, p.Name)
		}
	}
	seen := map[string]string{}
	for n := range want {
		name, flags, err := chooseShape(parts, 4711+n)
		if err != nil {
			t.Fatal(err)
		}
		text := strings.Join(flags, " ")
		if other := seen[text]; other != "" {
			t.Errorf("%s and %s have the flags %q", name, other, text)
		}
		seen[text] = name
		got = append(got, name)
	}
	slices.Sort(got)
	slices.Sort(want)
	if len(want) < 2 || !slices.Equal(got, want) {
		t.Errorf("chosen %q, want %q", got, want)
	}
	if seen["-shape subnets -traffic-mode auto"] != "shape-subnets-auto" || seen["-shape strict"] != "shape-strict" {
		t.Errorf("flags of the shapes: %q", seen)
	}
}

func TestPassedParts_NewestResult(t *testing.T) {
	parts := []Part{part("shape-new", 1), part("shape-fixed", 1), part("shape-broken", 1)}
	day := func(n int) time.Time { return time.Unix(0, 0).AddDate(0, 0, n) }
	results := []Result{
		{Part: "shape-fixed", Date: day(1), Passed: 1, Failed: 1},
		{Part: "shape-fixed", Date: day(2), Passed: 2},
		{Part: "shape-broken", Date: day(1), Passed: 2},
		{Part: "shape-broken", Date: day(2), Passed: 1, Failed: 1},
	}
	if got := passedParts(parts, results); len(got) != 1 || got[0].Name != "shape-fixed" {
		t.Errorf("passed %v, want shape-fixed alone", got)
	}
}

func TestChooseShape_Refused(t *testing.T) {
	for name, parts := range map[string][]Part{
		"no shape":     {part("kernel-1", 1)},
		"no flags":     {part("shape-plain", 1)},
		"an odd table": {{Name: "shape-x", Command: "scripts/system -run -shape"}},
	} {
		if chosen, flags, err := chooseShape(parts, 1); err == nil {
			t.Errorf("%s: chose %s %q", name, chosen, flags)
		}
	}
}

// TestShape_OfCommits: each commit has the next shape; without git each day has.
func TestShape_OfCommits(t *testing.T) {
	var out bytes.Buffer
	a := &app{runner: runner{repo: repository{t.TempDir()}, out: &out}, parts: []Part{
		{Name: "shape-a", Command: "x -shape a"}, {Name: "shape-b", Command: "x -family b -shape c"},
		{Name: "shape-new", Command: "x -shape new"},
	}, results: []Result{{Part: "shape-a", Passed: 2}, {Part: "shape-b", Passed: 2}}}
	want := ""
	for day, line := range []string{"shape-a -shape a\n", "shape-b -family b -shape c\n"} {
		a.now = func() time.Time { return time.Unix(int64(day)*86400, 0) }
		want += line
		if err := a.shape(); err != nil || out.String() != want {
			t.Errorf("day %d: %v, printed %q, want %q", day, err, out.String(), want)
		}
	}
	for _, args := range [][]string{{"init", "-q"}, {"commit"}, {"commit"}} {
		if args[0] == "commit" {
			args = []string{"-c", "user.name=a", "-c", "user.email=a@example.com", "commit", "-q", "--allow-empty", "-m", "a"}
		}
		if _, err := a.repo.git(args...); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := a.repo.countCommits(); n != 2 || err != nil {
		t.Errorf("%d commits (%v)", n, err)
	}
}

// TestShape_RuntimeIsBuilt: the gate's build and the suite build containerd 2 if the shape whose turn it is needs it.
func TestShape_RuntimeIsBuilt(t *testing.T) {
	for flags, want := range map[string]bool{"-shape containerd-2": true, "-shape strict": false} {
		for _, line := range []string{"scripts/system -only shape", "scripts/test -build"} {
			t.Run(line+" "+flags, func(t *testing.T) {
				root := scriptsWithShape(t, flags)
				cmd := exec.Command("bash", "-c", line)
				cmd.Dir, cmd.Env = root, append(os.Environ(), "FLOWKEEP_CACHE="+root)
				out, _ := cmd.CombinedOutput() // it ends before it builds Flowkeep
				built, err := os.ReadFile(filepath.Join(root, "built"))
				if err != nil || strings.Contains(string(built), "--containerd") != want {
					t.Errorf("the sandbox is built with %q (%v):\n%s", built, err, out)
				}
			})
		}
	}
}

// scriptsWithShape returns a folder with the scripts of a checkout and a shape whose turn it is. They install nothing,
// and the build of the sandbox records its options in the file built.
func scriptsWithShape(t *testing.T, flags string) string {
	t.Helper()
	root := t.TempDir()
	write := func(path, text string) {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	const without = `
for f in need_root heavy apt_sandbox apt_gcc apt_browser need_go need_gotestsum need_golangci_lint need_helm need_parts
do eval "$f() { :; }"; done
build_programs() { exit 1; }
PARTS=$ROOT/parts
`
	for _, name := range []string{"system", "test", "lib.sh"} {
		text, err := os.ReadFile(filepath.Join(checkout, "scripts", name))
		if err != nil {
			t.Fatal(err)
		}
		if name == "lib.sh" {
			text = append(text, without...)
		}
		write("scripts/"+name, string(text))
	}
	write("parts", "#!/bin/bash\necho shape-x "+flags+"\n")
	write("systemtests/sandbox/build", "#!/bin/bash\necho \"$*\" >>"+filepath.Join(root, "built")+"\n")
	return root
}
