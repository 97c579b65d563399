package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"path"
	"slices"
)

// tree is files by path, without a slash in front. Directories above them need not be named.
type tree map[string]file

// file is a regular file, a directory or a symbolic link; all are root's.
type file struct {
	kind byte // tar.TypeReg, …
	mode int64
	data []byte
	link string
}

func text(s string) file          { return file{kind: tar.TypeReg, mode: 0o644, data: []byte(s)} }
func executable(data []byte) file { return file{kind: tar.TypeReg, mode: 0o755, data: data} }
func directory(mode int64) file   { return file{kind: tar.TypeDir, mode: mode} }
func symlink(to string) file      { return file{kind: tar.TypeSymlink, mode: 0o777, link: to} }
func sumOf(data []byte) string    { sum := sha256.Sum256(data); return hex.EncodeToString(sum[:]) }
func digestOf(data []byte) string { return "sha256:" + sumOf(data) }
func (f *file) resolved(at string) string {
	if path.IsAbs(f.link) {
		return f.link[1:]
	}
	return path.Join(path.Dir(at), f.link)
}

// packed is a layer as images hold it.
type packed struct {
	data   []byte // tar, compressed
	diffID string // the digest of the tar
}

// pack writes a layer; one with the same content is packed once.
func (b *build) pack(layer tree) (*packed, error) {
	plain, err := archived(layer)
	if err != nil {
		return nil, err
	}
	diffID := digestOf(plain)
	if b.packed[diffID] == nil {
		data, err := compressed(plain)
		if err != nil {
			return nil, err
		}
		if b.packed == nil {
			b.packed = map[string]*packed{}
		}
		b.packed[diffID] = &packed{data: data, diffID: diffID}
	}
	return b.packed[diffID], nil
}

func compressed(plain []byte) ([]byte, error) {
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	if _, err := z.Write(plain); err != nil {
		return nil, err
	}
	err := z.Close()
	return out.Bytes(), err
}

// archived returns a reproducible tar: paths in order, without times or names of users.
func archived(files tree) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	all := withParents(files)
	for _, at := range slices.Sorted(maps.Keys(all)) {
		f := all[at]
		h := &tar.Header{Format: tar.FormatUSTAR, Typeflag: f.kind, Name: at, Mode: f.mode, Size: int64(len(f.data)), Linkname: f.link}
		if f.kind == tar.TypeDir {
			h.Name += "/"
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, fmt.Errorf("pack %s: %w", at, err)
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, fmt.Errorf("pack %s: %w", at, err)
		}
	}
	err := w.Close()
	return out.Bytes(), err
}

func withParents(layer tree) tree {
	all := maps.Clone(layer)
	for at := range layer {
		for dir := path.Dir(at); dir != "."; dir = path.Dir(dir) {
			if _, there := all[dir]; !there {
				all[dir] = directory(0o755)
			}
		}
	}
	return all
}
