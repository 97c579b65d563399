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
	"syscall"

	"github.com/flowkeep/flowkeep/netplugin/hostnet"
)

// MAC is an Ethernet address.
type MAC [6]byte

// String returns the usual notation.
func (m MAC) String() string { return net.HardwareAddr(m[:]).String() }

// Bandwidth limits a pod's traffic, in bits a second; 0: no limit. Ingress is what the pod receives.
type Bandwidth struct {
	Ingress uint64 `json:"ingress,omitempty"`
	Egress  uint64 `json:"egress,omitempty"`
}

// PortMapping is a port of the node that leads to a pod, as the CNI conventions write portMappings.
type PortMapping struct {
	HostPort      int    `json:"hostPort"`
	ContainerPort int    `json:"containerPort"`
	Protocol      string `json:"protocol"`
	HostIP        string `json:"hostIP,omitempty"`
}

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
	Bandwidth   Bandwidth    `json:"bandwidth,omitzero"`
	// HostPorts are those that netplugin restores: of pods that were attached while the CNI configuration named
	// portmap's backend.
	HostPorts []PortMapping `json:"hostPorts,omitempty"`
	// Realised says that the rules were in force once: after a restart the pod need not wait.
	Realised bool `json:"realised"`
	// Order is higher of what was wired later; 0 in the files of versions that did not know it.
	Order uint64 `json:"order,omitempty"`
	// Superseded says that a later sandbox of the pod took its name: it is shut for good, and waits for its DEL.
	Superseded bool `json:"superseded,omitempty"`
}

// Latest returns for each pod, by ID, the endpoint of its latest sandbox: an earlier sandbox is superseded even after
// the later one has ended. In files of versions without that mark it is the endpoint that was attached last and, of
// two that cannot be distinguished, the one that was in force.
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

// ID returns "namespace/name".
func (e *Endpoint) ID() string { return e.Namespace + "/" + e.Name }

// Equal reports whether both are the same attachment of the same pod.
func (e *Endpoint) Equal(o *Endpoint) bool {
	return e.ID() == o.ID() && e.UID == o.UID && e.ContainerID == o.ContainerID && e.Port == o.Port && e.MAC == o.MAC &&
		e.Bandwidth == o.Bandwidth && slices.Equal(e.Addresses, o.Addresses)
}

// hostIfName returns a name of 15 characters, the maximum of Linux, derived from the container and the interface.
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
	reads   func(path string) ([]byte, error)
}

// separator may be in no container's ID (CNI specification, CNI_CONTAINERID), so that no two interfaces share a file.
const separator = "@"

// maxNameLength is the maximum length of a file name that leaves room for endings (NAME_MAX is 255).
const maxNameLength = 200

func (f files) path(container, ifName string) string {
	name := container + separator + ifName
	if len(name) > maxNameLength || strings.ContainsAny(name, "/\x00") {
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

// loaded is a file of an endpoint. Of one without content only the name is known, as a rule.
type loaded struct {
	path     string
	endpoint *Endpoint // nil: not even the name
	corrupt  bool      // it was renamed
	unread   error     // the disk did not give it: nothing is known of its content
}

// load reads all files.
func (f files) load() (out []loaded, err error) {
	if err := os.MkdirAll(f.dir, 0o700); errors.Is(err, syscall.EROFS) || errors.Is(err, syscall.ENOSPC) {
		return nil, nil // no pod was ever attached here
	} else if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(f.dir)
	for _, entry := range entries {
		path := filepath.Join(f.dir, entry.Name())
		switch filepath.Ext(path) {
		case unwritten:
			_ = os.Remove(path)
		case ending:
			out = append(out, f.read(path))
		}
	}
	return out, err
}

// read reads a file, and gives it the name that save will use. One without sense is renamed. A read that the system
// refuses proves nothing of the file.
func (f files) read(path string) loaded {
	text, err := f.reads(path)
	if err != nil {
		return loaded{path: path, endpoint: named(path), unread: err}
	}
	e := new(Endpoint)
	err = json.Unmarshal(text, e)
	if err == nil && e.ContainerID != "" && e.IfName != "" && e.HostIfName == hostIfName(e.ContainerID, e.IfName) {
		if own := f.path(e.ContainerID, e.IfName); own != path {
			_ = os.Rename(path, own)
		}
		return loaded{path: path, endpoint: e}
	}
	_ = os.Rename(path, path+".corrupt")
	return loaded{path: path, endpoint: named(path), corrupt: true}
}

// named returns the interface that a file's name names, nil for the hash of a name.
func named(path string) *Endpoint {
	container, ifName, ok := strings.Cut(strings.TrimSuffix(filepath.Base(path), ending), separator)
	if !ok {
		return nil
	}
	return bare(container, ifName)
}

// bare returns an endpoint with the fields that are known for an interface without a record.
func bare(container, ifName string) *Endpoint {
	return &Endpoint{ContainerID: container, IfName: ifName, HostIfName: hostIfName(container, ifName)}
}
