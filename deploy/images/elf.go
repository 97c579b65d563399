package main

import (
	"archive/tar"
	"bytes"
	"debug/buildinfo"
	"debug/elf"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
)

// neededBy returns the shared libraries and the dynamic linker that an ELF file needs, none for other files.
func neededBy(data []byte) ([]string, error) {
	if !bytes.HasPrefix(data, []byte(elf.ELFMAG)) {
		return nil, nil
	}
	f, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	out, err := f.ImportedLibraries()
	if err != nil {
		return nil, err
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			name := make([]byte, p.Filesz)
			if _, err := p.ReadAt(name, 0); err != nil {
				return nil, err
			}
			out = append(out, strings.Trim(string(name), "/\x00"))
		}
	}
	return out, nil
}

// complete: whatever is in an image finds what it needs there.
func complete(all tree) error {
	libraries := map[string]bool{}
	for at := range all {
		if dir, name := path.Split(at); libraryDir(dir) {
			libraries[name] = true
		}
	}
	parents := withParents(all)
	for _, at := range slices.Sorted(maps.Keys(all)) {
		f := all[at]
		if _, there := parents[f.resolved(at)]; f.kind == tar.TypeSymlink && !there {
			return fmt.Errorf("%s leads to %s, which is not there", at, f.link)
		}
		needs, err := neededBy(f.data)
		if err != nil {
			return fmt.Errorf("%s: %w", at, err)
		}
		for _, need := range needs {
			if _, there := all[need]; !there && !libraries[need] {
				return fmt.Errorf("%s needs %s, which is not there", at, need)
			}
		}
	}
	return nil
}

// program is one of Go's, with what it says of its modules.
type program struct {
	path string // in the image
	data []byte
	info *buildinfo.BuildInfo
}

// readProgram reads a program that needs nothing but the kernel.
func readProgram(name string) (*program, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	needs, err := neededBy(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if len(needs) > 0 {
		return nil, fmt.Errorf("%s is not static: it needs %s", name, strings.Join(needs, ", "))
	}
	info, err := buildinfo.Read(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return &program{data: data, info: info}, nil
}
