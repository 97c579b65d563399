package main

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// archive is a tar.gz that is there when it is finished, and not before. Everything in it is readable by its owner alone.
type archive struct {
	path     string // where it will be
	root     string // the folder in it
	made     time.Time
	file     *os.File
	zip      *gzip.Writer
	tar      *tar.Writer
	left     int64 // bytes that it still may take, before compression
	entries  int
	problems []string
}

func newArchive(path string, most int64, made time.Time) (*archive, error) {
	file, err := os.CreateTemp(filepath.Dir(path), ".flowkeep-bundle-*")
	if err != nil {
		return nil, fmt.Errorf("make the archive: %w (choose another place with -o)", err)
	}
	a := &archive{path: path, root: strings.TrimSuffix(filepath.Base(path), ".tar.gz"), made: made, file: file, left: most}
	a.zip = gzip.NewWriter(file)
	a.tar = tar.NewWriter(a.zip)
	return a, nil
}

// problem notes what is missing, and goes into errors.txt.
func (a *archive) problem(what string, err error) {
	a.problems = append(a.problems, fmt.Sprintf("%s: %s", what, oneLine.Replace(message(err))))
}

// add takes a file, if there is room. Only failures of writing are errors.
func (a *archive) add(name string, text []byte) error {
	const head = 1 << 10 // of each file in a tar
	if text = scrub(text); int64(len(text)+head) > a.left {
		a.problem(name, fmt.Errorf("left out: its %d bytes do not fit any more (see --max-size)", len(text)))
		return nil
	}
	a.left -= int64(len(text) + head)
	a.entries++
	return a.write(name, text)
}

func (a *archive) write(name string, text []byte) error {
	h := tar.Header{Name: a.root + "/" + name, Mode: 0o600, Size: int64(len(text)), ModTime: a.made, Format: tar.FormatPAX}
	if err := a.tar.WriteHeader(&h); err != nil {
		return fmt.Errorf("write the archive: %w", err)
	}
	if _, err := a.tar.Write(text); err != nil {
		return fmt.Errorf("write the archive: %w", err)
	}
	return nil
}

// finish puts the archive at its place. Problems are written even where nothing else fits.
func (a *archive) finish() (size int64, err error) {
	if len(a.problems) > 0 {
		if err := a.write("errors.txt", scrub([]byte(strings.Join(a.problems, "\n")+"\n"))); err != nil {
			return 0, err
		}
	}
	if err := errors.Join(a.tar.Close(), a.zip.Close(), a.file.Sync()); err != nil {
		return 0, fmt.Errorf("write the archive: %w", err)
	}
	st, err := a.file.Stat()
	if err != nil {
		return 0, err
	}
	if err := errors.Join(a.file.Close(), os.Rename(a.file.Name(), a.path)); err != nil {
		return 0, fmt.Errorf("write the archive: %w", err)
	}
	return st.Size(), nil
}

// drop removes what there is of an archive that is not finished.
func (a *archive) drop() {
	a.file.Close()
	_ = os.Remove(a.file.Name())
}
