package tap

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/flowkeep/flowkeep/macvtap"
)

// FirstIndex is the lowest interface index of a macvtap: kernels count from 1, so that these are free in every network namespace.
const FirstIndex = 0x10000000

// lastIndex is the highest that the kernel takes.
const lastIndex = 1<<31 - 1

// Record is a device of the device plugin's, from its first allocation until its release.
type Record struct {
	ID         string       `json:"id"`
	Resource   string       `json:"resource,omitempty"` // without the domain; a device that a configuration names by its parent has none
	Parent     string       `json:"parent"`
	Mode       macvtap.Mode `json:"mode"`
	Index      int          `json:"index"`
	Generation int64        `json:"generation,omitempty"` // counts its allocations
	Adopted    int64        `json:"adopted,omitempty"`    // the generation that a CNI plugin last attached
}

// Attachment is a device in a pod's network namespace.
type Attachment struct {
	Record
	Network     string `json:"network,omitempty"`
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifName"`
	NetNS       string `json:"netns"`
}

// direct is the id of a device that a configuration names by its parent. No device id of the device plugin's has an @ before its first
// colon, and no container id has one at all.
func direct(containerID, ifName string) string { return containerID + "@" + ifName }

// key is the name of the files of a device. It can be read by people, and no two devices share one.
func key(id string) string {
	if c, ifName, ok := strings.Cut(id, "@"); ok && plain(c) && linkName(ifName) {
		return id
	}
	sum := sha256.Sum256([]byte(id))
	text := strings.Map(func(r rune) rune {
		if plainRune(r) {
			return r
		}
		return '_'
	}, id)
	return strings.TrimLeft(text[:min(len(text), 100)], ".") + "-" + hex.EncodeToString(sum[:8])
}

func plainRune(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-", r)
}

// plain is of container ids, as the CNI specification has them.
func plain(id string) bool {
	return id != "" && len(id) <= 200 && !strings.ContainsRune("._-", rune(id[0])) && strings.IndexFunc(id, func(r rune) bool { return !plainRune(r) }) < 0
}

// linkName is what the kernel takes for a name.
func linkName(name string) bool {
	return name != "" && len(name) <= 15 && name != "." && name != ".." &&
		strings.IndexFunc(name, func(r rune) bool {
			return r == '/' || r == ':' || r == unicode.ReplacementChar || unicode.IsSpace(r) || unicode.IsControl(r)
		}) < 0
}

func (r *Record) validate() error {
	switch {
	case r.ID == "" || len(r.ID) > 4096:
		return errors.New("it has no id")
	case !linkName(r.Parent):
		return fmt.Errorf("%q is no name of a link", r.Parent)
	case !slices.Contains(macvtap.Modes, r.Mode):
		return fmt.Errorf("there is no mode %q", r.Mode)
	case r.Index < FirstIndex || r.Index > lastIndex:
		return fmt.Errorf("its index %d is none of ours", r.Index)
	}
	return nil
}

func (a *Attachment) validate() error {
	switch {
	case !plain(a.ContainerID):
		return fmt.Errorf("%q is no id of a container", a.ContainerID)
	case !linkName(a.IfName):
		return fmt.Errorf("%q is no name of a link", a.IfName)
	}
	return a.Record.validate()
}

func encode(v any) ([]byte, error) {
	text, err := json.MarshalIndent(v, "", "  ")
	return append(text, '\n'), err
}

func decodeRecord(text []byte) (r Record, err error) {
	if err := json.Unmarshal(text, &r); err != nil {
		return r, err
	}
	return r, r.validate()
}

func decodeAttachment(text []byte) (a Attachment, err error) {
	if err := json.Unmarshal(text, &a); err != nil {
		return a, err
	}
	return a, a.validate()
}
