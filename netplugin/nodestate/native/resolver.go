package native

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"unicode"
)

// check refuses what resolv.conf cannot hold.
func (r *resolver) check() error {
	for _, s := range r.Servers {
		if _, err := netip.ParseAddr(s); err != nil || strings.ContainsAny(s, " \t\r\n#;") {
			return fmt.Errorf("server: %q is no IP address", s)
		}
	}
	for _, list := range [][]string{r.Search, r.Options} {
		for _, s := range list {
			if words := strings.Fields(s); len(words) != 1 || words[0] != s || strings.ContainsAny(s, "#;") || strings.ContainsFunc(s, unicode.IsControl) {
				return fmt.Errorf("search, options: %q is no word", s)
			}
		}
	}
	return nil
}

// parseResolver reads resolv.conf; the lines that it does not know are others'.
func parseResolver(text string) *resolver {
	r := &resolver{}
	lines := bufio.NewScanner(strings.NewReader(text))
	lines.Buffer(nil, len(text)+1)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if len(words) < 2 {
			continue
		}
		switch words[0] {
		case "nameserver":
			r.Servers = append(r.Servers, canonicalAddress(words[1]))
		case "search", "domain": // the last one counts
			r.Search = words[1:]
		case "options":
			r.Options = append(r.Options, words[1:]...)
		}
	}
	return r
}

// rewrite is the text with its lines on servers, search and options as r has them, the others kept.
func (r *resolver) rewrite(text string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		switch words := append(strings.Fields(line), ""); words[0] {
		case "nameserver", "search", "domain", "options":
		default:
			out.WriteString(strings.TrimSuffix(line, "\n") + "\n")
		}
	}
	if len(r.Search) > 0 {
		fmt.Fprintf(&out, "search %s\n", strings.Join(r.Search, " "))
	}
	for _, s := range r.Servers {
		fmt.Fprintf(&out, "nameserver %s\n", s)
	}
	if len(r.Options) > 0 {
		fmt.Fprintf(&out, "options %s\n", strings.Join(r.Options, " "))
	}
	return out.String()
}

// readResolver reads the file; one that is not there says nothing.
func readResolver(path string) (*resolver, error) {
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read the DNS servers: %w", err)
	}
	return parseResolver(string(text)), nil
}

// write puts the file in the place of the old one at once: readers see the one or the other. A link stays a link.
func (r *resolver) write(path string) error {
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read the DNS servers: %w", err)
	}
	mode := fs.FileMode(0o644)
	if info, err := os.Stat(path); err == nil {
		mode = info.Mode().Perm()
	}
	if err := replaceFile(path, []byte(r.rewrite(string(text))), mode); err != nil {
		return fmt.Errorf("write the DNS servers into %s: %w", path, err)
	}
	return nil
}

// replaceFile writes beside the file, onto the disk, and renames.
func replaceFile(path string, content []byte, mode fs.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-")
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}
