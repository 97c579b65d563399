// Package install puts on a node what its container runtime looks for: CNI plugins, and the configuration that names them.
package install

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Names of the CNI plugins that pods' network is made by. The second is the portmap of containernetworking/plugins under a name of its own, so
// that a node's own portmap is neither needed nor replaced.
const (
	Plugin  = "flowkeep-cni"
	Portmap = "flowkeep-portmap"
)

// Programs copies programs from one directory to another where they differ, and tells which did. A program that runs goes on as it was, and
// whoever starts one meanwhile gets the old or the new one, whole. All are tried whatever fails.
func Programs(from, to string, names []string) (changed []string, err error) {
	var errs []error
	for _, name := range names {
		switch differs, err := program(from, to, name); {
		case err != nil:
			errs = append(errs, fmt.Errorf("install %s: %w", name, err))
		case differs:
			changed = append(changed, name)
		}
	}
	return changed, errors.Join(errs...)
}

func program(from, to, name string) (changed bool, err error) {
	if name == "" || strings.HasPrefix(name, ".") || name != filepath.Base(name) {
		return false, errors.New("not the name of a program")
	}
	data, err := os.ReadFile(filepath.Join(from, name))
	if err != nil {
		return false, err
	}
	return replace(filepath.Join(to, name), data, 0o755)
}

// In lists the programs of a directory.
func In(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 && !strings.HasPrefix(e.Name(), ".") {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	return names, nil
}

// replace gives a file that content in one step, and has it on disk when it returns; a file that is as it should be is not touched.
func replace(name string, data []byte, mode fs.FileMode) (changed bool, err error) {
	if isSo(name, data, mode) {
		return false, nil
	}
	next := filepath.Join(filepath.Dir(name), "."+filepath.Base(name)+".new") // hidden: runtimes look at neither names nor ends like these
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	if err := write(next, data, mode); err != nil {
		return false, errors.Join(err, os.Remove(next))
	}
	if err := os.Rename(next, name); err != nil {
		return false, errors.Join(err, os.Remove(next))
	}
	return true, sync(filepath.Dir(name))
}

func isSo(name string, data []byte, mode fs.FileMode) bool {
	info, err := os.Lstat(name)
	if err != nil || info.Mode() != mode || info.Size() != int64(len(data)) {
		return false
	}
	have, err := os.ReadFile(name)
	return err == nil && bytes.Equal(have, data)
}

func write(name string, data []byte, mode fs.FileMode) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Chmod(mode), f.Sync(), f.Close()) // whatever the umask is
}

func sync(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
