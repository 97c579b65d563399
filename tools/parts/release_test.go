package main

import (
	"strings"
	"testing"
)

const goodChangelog = "# Changelog\n\n## Unreleased\n\n## v0.1.0, 2026-12-01\n\n### Added\n\n- a\n\n### Security\n\n- b\n"

func TestChangelogFaults(t *testing.T) {
	for _, test := range []struct{ name, text, want string }{
		{"complete", goodChangelog, ""},
		{"entries of an earlier version", goodChangelog + "\n## v0.0.1\n\n- c\n", ""},
		{"no section", "# Changelog\n\n## Unreleased\n", `CHANGELOG.md has no section "## v0.1.0" with entries`},
		{"an empty section", "## v0.1.0\n\n### Added\n\n## v0.0.1\n\n- c\n", `CHANGELOG.md has no section "## v0.1.0" with entries`},
		{"another version", "## v0.1.01\n\n### Added\n\n- a\n", `CHANGELOG.md has no section "## v0.1.0" with entries`},
		{"unreleased entries", "## Unreleased\n\n- c\n- d\n\n" + goodChangelog, "CHANGELOG.md:3: an unreleased entry: move all of them to v0.1.0"},
		{"an entry without a heading", "## v0.1.0\n\n- a\n- b\n", "CHANGELOG.md:3: an entry without one of the headings ### Added, " +
			"### Changed, ### Fixed, ### Security"},
		{"another heading", "## v0.1.0\n\n### News\n\n- a\n", "CHANGELOG.md:3: the headings are ### Added, ### Changed, ### Fixed, ### Security"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := strings.Join(changelogFaults(test.text, "v0.1.0"), "\n"); got != test.want {
				t.Errorf("got %q", got)
			}
		})
	}
}

// TestRelease goes from a commit that cannot be released to one that can.
func TestRelease(t *testing.T) {
	w := newTrial(t, part("good", 1, "src"))
	refuses := func(reason string, args ...string) {
		t.Helper()
		if _, err := w.do(append([]string{"release"}, args...)...); err == nil || !strings.Contains(err.Error(), reason) {
			t.Errorf("release %v: %v, want %q", args, err, reason)
		}
	}
	if out, err := w.do("release", "v0.1.0-dev.3"); err != nil || !strings.Contains(out, "is not a release") {
		t.Errorf("a development version: %v, %s", err, out)
	}
	for _, version := range []string{"0.1.0", "v0.1", "v01.0.0", "v0.1.0-", "v0.1.0+x", "v0.1.0 "} {
		refuses("is not semantic", version)
	}
	refuses("usage: parts")
	w.write(changelogPath, "# Changelog\n")
	refuses("these changes are not committed", "v0.1.0")
	w.commit()
	refuses("due: good, never passed", "v0.1.0")
	refuses(`has no section "## v0.1.0"`, "v0.1.0-rc.1")
	w.write(changelogPath, goodChangelog)
	w.commit()
	refuses("v0.1.0-rc.1 cannot be released, v0.1.0-dev can be built:\ndue: good, never passed", "v0.1.0-rc.1")
	if out, err := w.do("run"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	w.commit()
	for _, version := range []string{"v0.1.0", "v0.1.0-rc.1", "v0.1.0-developers"} {
		if out, err := w.do("release", version); err != nil || out != "" {
			t.Errorf("release %s: %v, %s", version, err, out)
		}
	}
	w.write("src/a", "changed")
	w.commit()
	refuses("due: good, 1 commit", "v0.1.0")
}
