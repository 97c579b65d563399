package macvtap

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

const (
	maxResource = 63 // Kubernetes' for the part of a name behind the slash
	maxLink     = 15 // the kernel's
)

var resourceName = regexp.MustCompile(`^[A-Za-z0-9]([-_.A-Za-z0-9]*[A-Za-z0-9])?$`)

// CheckResource returns why pods could not request a resource of that name; "" if they can.
func CheckResource(name string) string {
	switch {
	case name == "":
		return "the resource has no name"
	case len(name) > maxResource:
		return fmt.Sprintf("%q is no resource name: it has %d characters, and %d are the most", name, len(name), maxResource)
	case !resourceName.MatchString(name):
		return fmt.Sprintf("%q is no resource name: it takes letters, digits and - _ . between them", name)
	}
	return ""
}

// CheckLink returns why no link can have that name; "" if one can.
func CheckLink(name string) string {
	switch {
	case name == "":
		return "the parent has no name"
	case len(name) > maxLink:
		return fmt.Sprintf("no interface is called %q: it has %d characters, and %d are the most", name, len(name), maxLink)
	case name == "." || name == ".." || strings.ContainsAny(name, "/:") || strings.ContainsFunc(name, unicode.IsSpace):
		return fmt.Sprintf("no interface is called %q: names have no slashes, colons or spaces", name)
	}
	return ""
}

// CheckParent returns the fault of a name or glob.
func CheckParent(pattern string) string {
	if !IsGlob(pattern) {
		return CheckLink(pattern)
	}
	if _, err := path.Match(pattern, ""); err != nil {
		return fmt.Sprintf("%q is no pattern: write * for any characters, ? for one, [ab] for one of these", pattern)
	}
	return ""
}

// IsGlob reports whether a parent's name stands for those of several links.
func IsGlob(parent string) bool { return strings.ContainsAny(parent, `*?[\`) }

func matches(pattern, name string) bool {
	ok, _ := path.Match(pattern, name) // a bad one matches nothing
	return ok
}

// checkMode returns the fault of a mode.
func checkMode(mode Mode) string {
	if slices.Contains(Modes, mode) {
		return ""
	}
	return fmt.Sprintf("mode %q is none of bridge, private, vepa and passthru", mode)
}

// checkCapacity returns the fault of a number of devices; what is the name of its field.
func checkCapacity(what string, n int) string {
	if n < 1 || n > MaxCapacity {
		return fmt.Sprintf("%s is %d, and must be 1 to %d", what, n, MaxCapacity)
	}
	return ""
}
