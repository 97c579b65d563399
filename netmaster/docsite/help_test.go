package docsite

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func TestHelp(t *testing.T) {
	s := build(t)
	for message, want := range map[string]string{
		"node n1 has no connection to its Open vSwitch":                                     "troubleshooting.html#the-switch-is-not-connected",
		"node n1 is not connected; it enforces what it last had":                            "troubleshooting.html#a-node-has-no-netmaster",
		"new pods wait: watches lag for 3s; a pod starts once all older policies are known": "troubleshooting.html#the-watch-lags",
		"new pods wait: the reason is another":                                              "",
		"Node n2: its podCIDR 10.244.9.0/24 has no route: the kernel":                       "troubleshooting.html#a-nodes-pods-have-no-route",
		"node n1: shop/db: OFPFMFC_TABLE_FULL":                                              "troubleshooting.html#a-node-could-not-put-rules-in-force",
		"nodes are in different traffic modes, and their pods do not reach each other":      "install.html#routes-or-tunnels",
		"web UI failed: listen":                                                             "web-ui.html#access",
		"a node always reaches its own pods (docs/semantics.md)":                            "semantics.html",
		"see docs/troubleshooting.md#the-switch-is-not-connected for reasons":               "troubleshooting.html#the-switch-is-not-connected",
		"see docs/decisions/007-netctl-access.md":                                           "decisions/007-netctl-access.html",
		"see docs/none.md, or docs/semantics.md#none":                                       "",
		"shop/nobody: not found":                                                            "",
	} {
		if got := s.Help(message); got != want {
			t.Errorf("%s: %q, want %q", message, got, want)
		}
	}
	if s.Files[s.Guide()] == nil {
		t.Errorf("there is no %s", s.Guide())
	}
}

// sourceFiles calls a function with each file of the product that prints messages or links: Go without tests, scripts of
// the web UI, manifests.
func sourceFiles(t *testing.T, each func(name, text string)) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if n := d.Name(); n == ".git" || n == "testdata" || n == "dist" || n == "bin" {
				return filepath.SkipDir
			}
			return nil
		}
		isTest := strings.HasSuffix(path, "_test.go")
		switch filepath.Ext(path) {
		case ".go", ".js", ".html", ".yaml", ".tpl":
			text, err := os.ReadFile(path)
			if !isTest {
				each(path, string(text))
			}
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Messages, comments and manifests that name a document name one that the site has, and an anchor that it has.
func TestMentions_LeadSomewhere(t *testing.T) {
	s, seen := build(t), 0
	sourceFiles(t, func(name, text string) {
		for _, m := range mention.FindAllStringSubmatch(text, -1) {
			seen++
			if !s.HasPage(m[1], strings.TrimPrefix(m[2], "#")) {
				t.Errorf("%s: there is no %s", name, m[0])
			}
		}
	})
	if seen < 30 {
		t.Errorf("only %d documents are named", seen)
	}
	if s.HasPage("docs/none.md", "") || s.HasPage("docs/semantics.md", "none") || !s.HasPage("docs/semantics.md", "") {
		t.Error("the test cannot fail")
	}
}

// joined is the place where a string continues on the next line.
var joined = regexp.MustCompile(`" \+\n\s*"`)

// The texts that the guide quotes of the status are texts of the product.
func TestSymptoms_AreTextsOfTheProduct(t *testing.T) {
	var sources strings.Builder
	sourceFiles(t, func(name, text string) {
		if filepath.Ext(name) == ".go" {
			sources.WriteString(joined.ReplaceAllString(text, ""))
		}
	})
	all, seen := sources.String(), 0
	for _, q := range build(t).symptoms {
		if !q.fromStatus {
			continue
		}
		seen++
		for _, part := range q.parts {
			if !strings.Contains(all, part) {
				t.Errorf("%s: no message has %q", guide, part)
			}
		}
	}
	if seen < 15 {
		t.Errorf("only %d texts", seen)
	}
}
