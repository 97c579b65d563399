package cluster

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSourceRoot(t *testing.T) {
	top := t.TempDir()
	for name, text := range map[string]string{
		"repo/go.mod":             "// a comment\nmodule " + module + "\n\ngo 1.26.0\n",
		"repo/systemtests/go.mod": "module " + module + "/systemtests\n",
		"repo/systemtests/fleet/": "",
		"other/go.mod":            "module example.com/other\n",
	} {
		path := filepath.Join(top, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if text != "" {
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	for dir, want := range map[string]string{
		"repo":                   "repo",
		"repo/systemtests":       "repo",
		"repo/systemtests/fleet": "repo",
		"other":                  "",
	} {
		got, err := sourceRoot(filepath.Join(top, dir))
		if want == "" {
			if err == nil || !strings.Contains(err.Error(), "other") || !strings.Contains(err.Error(), module) {
				t.Errorf("from %s: found %q, %v", dir, got, err)
			}
			continue
		}
		if err != nil || got != filepath.Join(top, want) {
			t.Errorf("from %s: found %q, %v, want %s", dir, got, err, want)
		}
	}
}

// TestSourceRoot_OfThisTest: the working directory of a test is its package's.
func TestSourceRoot_OfThisTest(t *testing.T) {
	root, err := SourceRoot()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(root, "systemtests", "sandbox", "up")); err != nil {
		t.Error(err)
	}
}
