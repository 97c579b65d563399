package archtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// isolateGit clears the git settings of the machine and of a hook that runs this test.
func isolateGit(t *testing.T) {
	t.Helper()
	for _, setting := range os.Environ() {
		if name, value, _ := strings.Cut(setting, "="); strings.HasPrefix(name, "GIT_") {
			t.Setenv(name, value) // restores it at the end
			os.Unsetenv(name)
		}
	}
	for name, value := range map[string]string{
		"GIT_CONFIG_GLOBAL": os.DevNull,
		"GIT_CONFIG_SYSTEM": os.DevNull,
		"GIT_AUTHOR_NAME":   "a", "GIT_AUTHOR_EMAIL": "a@example.com",
		"GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@example.com",
	} {
		t.Setenv(name, value)
	}
}

// subjectsRepository returns a repository with an old commit and one that adds scripts/subjects.
func subjectsRepository(t *testing.T) string {
	t.Helper()
	isolateGit(t)
	folder := t.TempDir()
	script, err := os.ReadFile(filepath.Join(root, "scripts/subjects"))
	if err != nil {
		t.Fatal(err)
	}
	git(t, folder, "init", "-q", "-b", "main")
	commit(t, folder, "An old subject")
	git(t, folder, "branch", "old")
	if err := os.Mkdir(filepath.Join(folder, "scripts"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "scripts/subjects"), script, 0o755); err != nil {
		t.Fatal(err)
	}
	git(t, folder, "add", ".")
	commit(t, folder, "The check itself")
	return folder
}

// commit adds a commit.
func commit(t *testing.T, folder, subject string) {
	t.Helper()
	git(t, folder, "commit", "-q", "--allow-empty", "-m", subject+"\n\nA body of more than 72 characters "+strings.Repeat("x", 72))
}

// checkSubjects runs scripts/subjects and returns what it prints.
func checkSubjects(t *testing.T, folder string) (string, error) {
	t.Helper()
	out, err := exec.Command(filepath.Join(folder, "scripts/subjects")).CombinedOutput()
	return string(out), err
}

func TestSubjects(t *testing.T) {
	folder := subjectsRepository(t)
	for subject, want := range map[string]string{
		"netplugin: wait for the switch":                       "",
		"netctl/doctor, ofctl: report the cause":               "",
		"docs/decisions/018-leader-leases.md: state the limit": "",
		".ci/run: check subjects":                              "",
		"README, ARCHITECTURE.md, Makefile: name the verbs":    "",
		"systemtests/README.md: explain -reuse":                "",
		"all: add é" + strings.Repeat("x", 62):                 "",
		"all: add é" + strings.Repeat("x", 63):                 "not 73",
		"Wait for the switch":                                  `"package: verb what"`,
		"netplugin:wait":                                       `"package: verb what"`,
		"netplugin : wait":                                     `"package: verb what"`,
		"netplugin,ofctl: wait":                                `"package: verb what"`,
		"Netplugin: wait":                                      `"package: verb what"`,
		"TestProse: count":                                     `"package: verb what"`,
	} {
		t.Run(subject, func(t *testing.T) {
			commit(t, folder, subject)
			defer git(t, folder, "reset", "-q", "--hard", "HEAD^")
			out, err := checkSubjects(t, folder)
			if want == "" && (err != nil || out != "") {
				t.Errorf("%v: %s", err, out)
			}
			if want != "" && (err == nil || !strings.Contains(out, want) || !strings.Contains(out, subject)) {
				t.Errorf("%v, want %q: %s", err, want, out)
			}
		})
	}
}

func TestSubjects_Histories(t *testing.T) {
	folder := subjectsRepository(t)
	expect := func(what, want string) {
		t.Helper()
		if out, err := checkSubjects(t, folder); err != nil || !strings.Contains(out, want) || want == "" && out != "" {
			t.Errorf("%s: %v, want %q: %s", what, err, want, out)
		}
	}
	expect("without later commits", "")
	git(t, folder, "switch", "-q", "old")
	commit(t, folder, "On a branch begun before the check")
	git(t, folder, "switch", "-q", "main")
	git(t, folder, "merge", "-q", "--no-ff", "-m", "Merge branch old", "old")
	expect("after a merge of an old branch", "")
	commit(t, folder, "A bad subject")
	commit(t, folder, "all: add a good one")
	if out, err := checkSubjects(t, folder); err == nil || !strings.Contains(out, " A bad subject\n") {
		t.Errorf("a bad subject before the last commit: %v: %s", err, out)
	}
	origin := folder
	folder = filepath.Join(t.TempDir(), "shallow")
	git(t, origin, "clone", "-q", "--depth", "2", "file://"+origin, folder)
	expect("in a shallow clone", "the clone is shallow")
	if err := os.RemoveAll(filepath.Join(folder, ".git")); err != nil {
		t.Fatal(err)
	}
	expect("without git", "no git history")
	git(t, folder, "init", "-q")
	expect("without commits", "no commit has added")
}
