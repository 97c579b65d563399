package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// debianPackage is a package, unpacked.
type debianPackage struct {
	name, version, source, sum string
	arch                       string // Debian's word; all: any
	control                    []byte
	files                      tree
}

// packages are those of the lock that recipes name.
type packages struct{ byName map[string]*debianPackage }

func (p *packages) names() []string { return slices.Sorted(maps.Keys(p.byName)) }

// openPackages unpacks DIR/NAME.deb for each name, if it is what the lock says.
func openPackages(lockFile, dir, arch string, names []string) (*packages, error) {
	l, err := readLock(lockFile)
	if err != nil {
		return nil, err
	}
	out := &packages{byName: map[string]*debianPackage{}}
	for _, name := range names {
		want, known := l.debian[arch+" "+name]
		if !known {
			return nil, fmt.Errorf("%s names no package %s for %s: scripts/images --lock writes it, on a machine of that kind", lockFile, name, arch)
		}
		if out.byName[name], err = openPackage(filepath.Join(dir, name+".deb"), name, want); err != nil {
			return nil, fmt.Errorf("package %s: %w", name, err)
		}
	}
	return out, nil
}

func openPackage(file, name string, want locked) (*debianPackage, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	if sum := sumOf(data); sum != want.sum {
		return nil, fmt.Errorf("%s has the sum %s, and the lock says %s", file, sum, want.sum)
	}
	p := &debianPackage{name: name, version: want.version, sum: want.sum}
	if p.control, err = dpkg("--field", file); err != nil {
		return nil, err
	}
	field := controlFields(p.control)
	if field["Package"] != name || field["Version"] != want.version {
		return nil, fmt.Errorf("%s is %s %s, and the lock says %s", file, field["Package"], field["Version"], want.version)
	}
	p.arch, p.source = field["Architecture"], field["Source"]
	plain, err := dpkg("--fsys-tarfile", file)
	if err != nil {
		return nil, err
	}
	p.files, err = unpack(bytes.NewReader(plain))
	return p, err
}

func dpkg(args ...string) ([]byte, error) {
	out, err := exec.Command("dpkg-deb", args...).Output()
	var failed *exec.ExitError
	if errors.As(err, &failed) {
		err = fmt.Errorf("%w: %s", err, bytes.TrimSpace(failed.Stderr))
	}
	if err != nil {
		return nil, fmt.Errorf("dpkg-deb %s: %w", strings.Join(args, " "), err)
	}
	return out, nil
}

// controlFields returns the fields of a control file, of multi-line fields the first line.
func controlFields(control []byte) map[string]string {
	out := map[string]string{}
	for line := range strings.Lines(string(control)) {
		if key, value, ok := strings.Cut(line, ":"); ok && !strings.HasPrefix(line, " ") {
			out[key] = strings.TrimSpace(value)
		}
	}
	return out
}

func unpack(r io.Reader) (tree, error) {
	out := tree{}
	for archive := tar.NewReader(r); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return out, nil
		} else if err != nil {
			return nil, err
		}
		at := path.Clean(h.Name)
		switch h.Typeflag {
		case tar.TypeDir:
		case tar.TypeSymlink:
			out[at] = symlink(h.Linkname)
		case tar.TypeReg:
			data, err := io.ReadAll(archive)
			if err != nil {
				return nil, err
			}
			out[at] = file{kind: tar.TypeReg, mode: h.Mode & 0o755, data: data}
		default:
			return nil, fmt.Errorf("%s is of a kind (%c) that images here have not", at, h.Typeflag)
		}
	}
}

// pick puts into layer what wanted names (paths, with * as in path.Match) of these packages, what that needs to run, and what tells whose
// it is; but for what the layers below have. Each package must be good for something.
func (p *packages) pick(names, wanted []string, below, layer tree) error {
	s := selection{from: map[string]*debianPackage{}, libraries: map[string]string{}, below: below, layer: layer, used: map[string]bool{}}
	for _, name := range names {
		for at := range p.byName[name].files {
			s.from[at] = p.byName[name]
			if dir, soname := path.Split(at); libraryDir(dir) {
				s.libraries[soname] = at
			}
		}
	}
	for _, pattern := range wanted {
		matching := slices.Sorted(maps.Keys(s.from))
		matching = slices.DeleteFunc(matching, func(at string) bool { ok, _ := path.Match(pattern, at); return !ok })
		if len(matching) == 0 {
			return fmt.Errorf("no package has %s", pattern)
		}
		for _, at := range matching {
			if err := s.add(at); err != nil {
				return err
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.used)) {
		s.describe(p.byName[name])
	}
	for _, name := range names {
		if _, there := below[statusDir+"/"+name]; !there && !s.used[name] {
			return fmt.Errorf("nothing of package %s is needed: take it out of the recipe", name)
		}
	}
	return nil
}

// libraryDir reports whether the dynamic linker searches a directory: /lib/x86_64-linux-gnu/,
// /usr/lib/aarch64-linux-gnu/ …
func libraryDir(dir string) bool {
	rest, ok := strings.CutPrefix(strings.TrimPrefix(dir, "usr/"), "lib/")
	return ok && strings.HasSuffix(rest, "-linux-gnu/") && strings.Count(rest, "/") == 1
}

type selection struct {
	from         map[string]*debianPackage // by path
	libraries    map[string]string         // paths by name
	below, layer tree
	used         map[string]bool
}

func (s *selection) add(at string) error {
	owner := s.from[at]
	if owner == nil {
		return fmt.Errorf("no package has %s", at)
	}
	s.used[owner.name] = true
	if _, there := s.layer[at]; there {
		return nil
	}
	f := owner.files[at]
	if _, there := s.below[at]; !there {
		s.layer[at] = f
	}
	if f.kind == tar.TypeSymlink {
		return s.add(f.resolved(at))
	}
	needs, err := neededBy(f.data)
	if err != nil {
		return fmt.Errorf("%s: %w", at, err)
	}
	for _, need := range needs {
		if library, known := s.libraries[need]; known {
			need = library
		}
		if err := s.add(need); err != nil {
			return fmt.Errorf("%s needs %s: %w", at, need, err)
		}
	}
	return nil
}

// describe adds what the package says of itself, and its licence, which may be in the folder of another.
func (s *selection) describe(p *debianPackage) {
	s.used[p.name] = true
	status := statusDir + "/" + p.name
	if _, there := s.below[status]; there {
		return
	}
	s.layer[status] = file{kind: tar.TypeReg, mode: 0o644, data: p.control}
	folder := documentation(p.name)
	if link, ok := p.files[folder]; ok && link.kind == tar.TypeSymlink {
		s.layer[folder] = link
		folder = link.resolved(folder)
	}
	if owner := s.from[folder+"/copyright"]; owner != nil {
		s.layer[folder+"/copyright"] = owner.files[folder+"/copyright"]
		if owner != p {
			s.describe(owner)
		}
	}
}
