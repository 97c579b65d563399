package native

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// ports keeps the names of the ports that Flowkeep's bridge had in the newest response of ovsdb-server. While it does
// not respond, nothing else shows those that have other names than Flowkeep's own. The file keeps them for the next
// process.
type ports struct {
	path  string // "": only in memory
	known bool
	names []string // sorted
}

// portsFile is what the file holds.
type portsFile struct {
	Bridge string   `json:"bridge"`
	Ports  []string `json:"ports"`
}

// maxPorts is the size of the largest file that is read, in bytes.
const maxPorts = 1 << 20

// openPorts reads the file in dir. One that is missing, damaged or of another bridge has no ports; the error has the
// reason.
func openPorts(dir, bridge string) (*ports, error) {
	if dir == "" {
		return &ports{}, nil
	}
	p := &ports{path: filepath.Join(dir, "ports.json")}
	info, err := os.Stat(p.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return p, nil
	case err != nil:
		return p, fmt.Errorf("read which ports %s had: %w", bridge, err)
	case info.Size() > maxPorts:
		return p, fmt.Errorf("read which ports %s had: %s has %d bytes", bridge, p.path, info.Size())
	}
	text, err := os.ReadFile(p.path)
	if err == nil {
		err = p.decode(text, bridge)
	}
	if err != nil {
		return p, fmt.Errorf("read which ports %s had: %w", bridge, err)
	}
	return p, nil
}

func (p *ports) decode(text []byte, bridge string) error {
	var file portsFile
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&file); err != nil {
		return fmt.Errorf("%s: %w", p.path, err)
	}
	if file.Ports == nil {
		return fmt.Errorf("%s lists no ports", p.path)
	}
	if file.Bridge == bridge {
		p.known, p.names = true, file.Ports
		slices.Sort(p.names)
	}
	return nil
}

// has reports whether the interface was a port.
func (p *ports) has(name string) bool {
	_, found := slices.BinarySearch(p.names, name)
	return found
}

// learn stores the ports of the newest response, and writes them if they differ. After an error they are known in
// this process alone.
func (p *ports) learn(bridge string, names []string) error {
	slices.Sort(names)
	if p.known && slices.Equal(p.names, names) {
		return nil
	}
	p.known, p.names = true, names
	if p.path == "" {
		return nil
	}
	text, err := json.Marshal(portsFile{Bridge: bridge, Ports: append([]string{}, names...)})
	if err == nil {
		err = errors.Join(os.MkdirAll(filepath.Dir(p.path), 0o700), replaceFile(p.path, text, 0o600))
	}
	if err != nil {
		return fmt.Errorf("keep which ports %s has: %w", bridge, err)
	}
	return nil
}
