package deviceplugin

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// kubeletSocket is where the kubelet takes registrations.
const kubeletSocket = "kubelet.sock"

// longestPath is what a unix socket's address holds.
const longestPath = 107

// socketName is the file of a resource's socket in dir. Where its name would make the path too long, there is a hash of it, as long as the
// name of the kubelet's own socket: a directory that has room for that one has room for all.
func socketName(dir, resource string) string {
	name := "macvtap-" + resource + ".sock"
	if len(filepath.Join(dir, name)) <= longestPath {
		return name
	}
	sum := sha256.Sum256([]byte(resource))
	return "mv" + strings.ToLower(base32.StdEncoding.EncodeToString(sum[:]))[:len(kubeletSocket)-2]
}

// identity distinguishes a file from another that was made at the same path. The zero value is no file.
type identity struct {
	major, minor uint32
	inode        uint64
	sec          int64 // since when there is this file, for numbers are used again
	nsec         uint32
}

// identify returns the identity of the socket at path; the zero value if there is none.
func identify(path string) identity {
	var st unix.Statx_t
	if unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_INO|unix.STATX_TYPE|unix.STATX_BTIME|unix.STATX_CTIME, &st) != nil ||
		st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return identity{}
	}
	began := st.Btime
	if st.Mask&unix.STATX_BTIME == 0 {
		began = st.Ctime
	}
	return identity{st.Dev_major, st.Dev_minor, st.Ino, began.Sec, began.Nsec}
}

// listen makes the socket at path, in place of what an earlier process left there.
func listen(path string) (net.Listener, identity, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, identity{}, fmt.Errorf("remove the old socket: %w", err)
	}
	l, err := (&net.ListenConfig{Control: keepOthersOut}).Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, identity{}, fmt.Errorf("listen on %s: %w", path, err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false) // by then another's may be there
	return l, identify(path), nil
}

// keepOthersOut is done before the socket has its path, so that it never was open to others than the kubelet.
func keepOthersOut(_, _ string, c syscall.RawConn) (err error) {
	controlled := c.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) })
	return errors.Join(controlled, err)
}

// removeOwn removes the socket unless another took its place.
func removeOwn(path string, own identity) {
	if own != (identity{}) && identify(path) == own {
		_ = os.Remove(path)
	}
}
