// Package endpoints wires pods: addresses, a veth pair, a port of the bridge, and the rules in force before the pod may
// send its first packet. What is wired is kept on disk, a file a container.
package endpoints

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/netplugin/hostnet"
)

// MAC is an Ethernet address.
type MAC [6]byte

// String is the usual notation.
func (m MAC) String() string { return net.HardwareAddr(m[:]).String() }

// Endpoint is a pod's interface.
type Endpoint struct {
	Namespace   string       `json:"namespace"`
	Name        string       `json:"name"`
	UID         string       `json:"uid"`
	ContainerID string       `json:"containerID"`
	IfName      string       `json:"ifName"`
	NetNS       string       `json:"netns"`
	HostIfName  string       `json:"hostIfName"`
	Port        uint32       `json:"port"` // OpenFlow number
	MAC         MAC          `json:"mac"`
	Addresses   []netip.Addr `json:"addresses"`
	// Realised says that the rules were in force once: after a restart the pod need not wait.
	Realised bool `json:"realised"`
	// Order is higher of what was wired later; 0 in the files of versions that did not know it.
	Order uint64 `json:"order,omitempty"`
	// Superseded says that a later sandbox of the pod took its name: it is shut for good, and waits for its DEL.
	Superseded bool `json:"superseded,omitempty"`
}

// Latest are of each pod, by ID, the one that has its name: an earlier sandbox has lost it, also when the later is gone. In files of versions that did not
// note it, that is the one that was wired last, and of two that are not told apart the one that was in force.
func Latest(all []Endpoint) map[string]Endpoint {
	latest := make(map[string]Endpoint, len(all))
	for _, e := range all {
		if e.Superseded {
			continue
		}
		have, there := latest[e.ID()]
		if !there || e.Order > have.Order || e.Order == have.Order && e.Realised {
			latest[e.ID()] = e
		}
	}
	return latest
}

// ID is "namespace/name".
func (e *Endpoint) ID() string { return e.Namespace + "/" + e.Name }

// Equal tells whether both are the same wiring of the same pod.
func (e *Endpoint) Equal(o *Endpoint) bool {
	return e.ID() == o.ID() && e.UID == o.UID && e.ContainerID == o.ContainerID && e.Port == o.Port && e.MAC == o.MAC && slices.Equal(e.Addresses, o.Addresses)
}

// hostIfName is 15 characters, the most that Linux takes, and the same for the same container and interface.
func hostIfName(container, ifName string) string {
	sum := sha256.Sum256([]byte(container + "/" + ifName))
	return hostnet.PodPrefix + hex.EncodeToString(sum[:])[:12]
}

// macFor derives a locally administered address from the first of the pod's.
func macFor(addresses []netip.Addr) MAC {
	if len(addresses) > 0 && addresses[0].Is4() {
		a := addresses[0].As4()
		return MAC{0x02, 0xf1, a[0], a[1], a[2], a[3]}
	}
	sum := sha256.Sum256(fmt.Append(nil, addresses))
	return MAC{0x02, 0xf2, sum[0], sum[1], sum[2], sum[3]}
}

// files is the directory of wired endpoints.
type files struct {
	dir     string
	writing func(of string) (end func()) // as in Config
}

// separator may be in no container's ID (CNI specification, CNI_CONTAINERID), so that no two interfaces share a file.
const separator = "@"

// longest is the most characters of a file's name that still leave room for endings (NAME_MAX is 255).
const longest = 200

func (f files) path(container, ifName string) string {
	name := container + separator + ifName
	if len(name) > longest || strings.ContainsAny(name, "/\x00") {
		sum := sha256.Sum256([]byte(name))
		name = hex.EncodeToString(sum[:])
	}
	return filepath.Join(f.dir, name+ending)
}

const (
	ending    = ".json"
	unwritten = ".new" // of a file until it is whole
)

// save replaces the file whole: a crash leaves the old one or the new one.
func (f files) save(e *Endpoint) error {
	defer f.begin()()
	text, err := json.Marshal(e)
	if err != nil {
		return err
	}
	path := f.path(e.ContainerID, e.IfName)
	if err := os.WriteFile(path+unwritten, text, 0o600); err != nil {
		_ = os.Remove(path + unwritten)
		return fmt.Errorf("write the endpoint's file: %w", err)
	}
	return os.Rename(path+unwritten, path)
}

func (f files) remove(e *Endpoint) error {
	defer f.begin()()
	err := os.Remove(f.path(e.ContainerID, e.IfName))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// load reads all. Files that make no sense are renamed and told; whose they were is known from their names, so that what
// they spoke of can be undone.
func (f files) load() (out []*Endpoint, bad []string, err error) {
	if err := os.MkdirAll(f.dir, 0o700); err != nil {
		return nil, nil, err
	}
	entries, err := os.ReadDir(f.dir)
	for _, entry := range entries {
		path := filepath.Join(f.dir, entry.Name())
		switch filepath.Ext(path) {
		case unwritten:
			_ = os.Remove(path)
		case ending:
			e, ok := f.read(path)
			if !ok {
				bad = append(bad, path)
			}
			if e != nil {
				out = append(out, e)
			}
		}
	}
	return out, bad, err
}

// read reads a file, and gives it the name that save will use.
func (f files) read(path string) (e *Endpoint, ok bool) {
	text, err := os.ReadFile(path)
	e = new(Endpoint)
	if err == nil {
		err = json.Unmarshal(text, e)
	}
	if err == nil && e.ContainerID != "" && e.IfName != "" && e.HostIfName == hostIfName(e.ContainerID, e.IfName) {
		if own := f.path(e.ContainerID, e.IfName); own != path {
			_ = os.Rename(path, own)
		}
		return e, true
	}
	_ = os.Rename(path, path+".corrupt")
	container, ifName, named := strings.Cut(strings.TrimSuffix(filepath.Base(path), ending), separator)
	if !named {
		return nil, false
	}
	return bare(container, ifName), false
}

// bare is all that can be said of an interface that is named and not known.
func bare(container, ifName string) *Endpoint {
	return &Endpoint{ContainerID: container, IfName: ifName, HostIfName: hostIfName(container, ifName)}
}
