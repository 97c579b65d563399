package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

func TestRun_WritesTheSite(t *testing.T) {
	dir := t.TempDir()
	if err := run(dir); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{
		"index.html":             `<h1 id="flowkeep">`,
		"troubleshooting.html":   `<h2 id="no-netmaster-answers">`,
		"netctl/index.html":      `href="../site.css"`,
		"search-data.js":         "const searchData = [",
		"minisearch.js":          "MiniSearch",
		"images/page-graph.png":  "PNG",
		"decisions/index.html":   `href="../decisions/001-original-tuple.html"`,
		"source/CHANGELOG.html":  "<h1",
		"reference/netctl.html":  "<h2",
		"minisearch-license.txt": "Luca Ongaro",
	} {
		if text, err := os.ReadFile(filepath.Join(dir, file)); err != nil || !bytes.Contains(text, []byte(want)) {
			t.Errorf("%s lacks %s: %v", file, want, err)
		}
	}
	if err := run(filepath.Join(dir, "index.html")); err == nil {
		t.Error("a file was taken for a directory")
	}
}
