package cni

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/pkg/utils"
)

// DeletedDir is a directory with a file for each attachment that was deleted while netplugin was away. It is in the
// socket's directory, on a file system that ends with the node's links.
const DeletedDir = "deleted"

// separator is in no container's ID, and before the interface in a file's name.
const separator = "@"

// NoteDeleted records that an attachment was deleted while netplugin was away.
func NoteDeleted(socket, container, ifName string) error {
	if utils.ValidateContainerID(container) != nil || utils.ValidateInterfaceName(ifName) != nil {
		return fmt.Errorf("record a deleted pod: %q and %q are no container and interface", container, ifName)
	}
	dir := filepath.Join(filepath.Dir(socket), DeletedDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("record a deleted pod: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, container+separator+ifName), nil, 0o600); err != nil {
		return fmt.Errorf("record a deleted pod: %w", err)
	}
	return nil
}

// DeleteNoted deletes the attachments that were recorded. Those that could not be deleted stay recorded.
func DeleteNoted(
	ctx context.Context, socket string, del func(ctx context.Context, container, ifName string) error,
) error {
	dir := filepath.Join(filepath.Dir(socket), DeletedDir)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	errs := []error{err}
	for _, e := range entries {
		container, ifName, ok := strings.Cut(e.Name(), separator)
		if !ok {
			continue
		}
		if err := del(ctx, container, ifName); err != nil {
			errs = append(errs, fmt.Errorf("delete container %s, %s: %w", container, ifName, err))
			continue
		}
		errs = append(errs, forgetDeleted(socket, container, ifName))
	}
	return errors.Join(errs...)
}

// forgetDeleted removes a record: the attachment is deleted, or added again.
func forgetDeleted(socket, container, ifName string) error {
	err := os.Remove(filepath.Join(filepath.Dir(socket), DeletedDir, container+separator+ifName))
	if err == nil || errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return fmt.Errorf("remove the record of a deleted pod: %w", err)
}
