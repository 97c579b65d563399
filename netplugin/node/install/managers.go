package install

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Directories of network managers that a program may write to on any node: they are in memory, and in force like those
// below /etc.
const (
	NetworkdDir       = "/run/systemd/network"
	NetworkManagerDir = "/run/NetworkManager/conf.d"
)

// Names of the files by which a node's network managers leave Flowkeep's links alone.
const (
	NetworkdFile       = "10-flowkeep.network"
	NetworkManagerFile = "10-flowkeep.conf"
)

const networkdText = `# Flowkeep's links are netplugin's (netplugin install).
[Match]
Name=fk0 fk-* fkp*

[Link]
Unmanaged=yes
`

const networkManagerText = `# Flowkeep's links are netplugin's (netplugin install).
[device-flowkeep]
match-device=interface-name:fk0,interface-name:fk-*,interface-name:fkp*
managed=0
`

// Managers writes files by which systemd-networkd and NetworkManager leave Flowkeep's links alone, from their next start
// or reload on. An empty directory leaves out that one. It returns the files that it wrote.
func Managers(networkd, networkManager string) (written []string, err error) {
	var errs []error
	for _, f := range []struct{ dir, name, text string }{
		{networkd, NetworkdFile, networkdText},
		{networkManager, NetworkManagerFile, networkManagerText},
	} {
		if f.dir == "" {
			continue
		}
		path := filepath.Join(f.dir, f.name)
		err := os.MkdirAll(f.dir, 0o755)
		changed := false
		if err == nil {
			changed, err = replace(path, []byte(f.text), 0o644)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("write %s: %w", path, err))
		}
		if changed {
			written = append(written, path)
		}
	}
	return written, errors.Join(errs...)
}
