package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

const changelogPath = "CHANGELOG.md"

// semanticVersion matches versions of releases. The groups are the version's number and its pre-release part.
var semanticVersion = regexp.MustCompile(`^(v(?:0|[1-9]\d*)\.(?:0|[1-9]\d*)\.(?:0|[1-9]\d*))(?:-([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?$`)

// sections are the headings that the changelog of a release may have.
var sections = []string{"### Added", "### Changed", "### Fixed", "### Security"}

// release returns an error that names all that a version lacks to be released from this commit. A version whose
// pre-release part begins with "dev" is not a release, and lacks nothing.
func (a *app) release(args []string) error {
	if len(args) != 1 {
		return errors.New(usage)
	}
	version := args[0]
	m := semanticVersion.FindStringSubmatch(version)
	if m == nil {
		return fmt.Errorf("version %q is not semantic: v0.1.0, v0.1.0-rc.1, or v0.1.0-dev for what is not a release", version)
	}
	if m[2] == "dev" || strings.HasPrefix(m[2], "dev.") {
		fmt.Fprintf(a.out, "%s is not a release: parts that are due and %s are not checked\n", version, changelogPath)
		return nil
	}
	if _, err := a.repo.cleanCommit(); err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(a.repo.root, changelogPath))
	if err != nil {
		return err
	}
	faults := slices.Concat(changelogFaults(string(text), m[1]), dueLines(a.parts, a.results, a.repo.history(a.results)))
	if len(faults) == 0 {
		return nil
	}
	return fmt.Errorf("%s cannot be released, %s-dev can be built:\n%s", version, m[1], strings.Join(faults, "\n"))
}

// changelogFaults returns what the changelog lacks for the release of a version: its own section, with each entry below
// one of the headings, and no entry among the unreleased ones.
func changelogFaults(text, version string) (list []string) {
	section, heading, entries := "", "", 0
	for n, line := range strings.Split(text, "\n") {
		add := func(fault string) { list = append(list, fmt.Sprintf("%s:%d: %s", changelogPath, n+1, fault)) }
		switch {
		case strings.HasPrefix(line, "## "):
			section, _, _ = strings.Cut(strings.ReplaceAll(line[len("## "):], ",", " "), " ")
			heading = ""
		case section == "Unreleased" && strings.HasPrefix(line, "- "):
			add("an unreleased entry: move all of them to " + version)
			section = ""
		case section != version:
		case strings.HasPrefix(line, "### "):
			if heading = line; !slices.Contains(sections, line) {
				add("the headings are " + strings.Join(sections, ", "))
			}
		case strings.HasPrefix(line, "- "):
			if entries++; heading == "" {
				add("an entry without one of the headings " + strings.Join(sections, ", "))
				return list
			}
		}
	}
	if entries == 0 {
		list = append(list, fmt.Sprintf(`%s has no section "## %s" with entries`, changelogPath, version))
	}
	return list
}
