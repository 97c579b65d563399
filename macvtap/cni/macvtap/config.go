package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/flowkeep/flowkeep/macvtap"
	"github.com/flowkeep/flowkeep/macvtap/tap"
)

// config is the network configuration.
type config struct {
	types.PluginConf
	DeviceID    string       `json:"deviceID"` // multus writes it here
	LowerDevice string       `json:"lowerDevice"`
	Master      string       `json:"master"` // the same, as other plugins have it
	Mode        macvtap.Mode `json:"mode"`
	MTU         int          `json:"mtu"`
	MAC         string       `json:"mac"`
	Promiscuous bool         `json:"promiscMode"`
	Owner       *int         `json:"owner"`
	Group       *int         `json:"group"`
	StateDir    string       `json:"stateDir"`
	Runtime     struct {
		DeviceID string `json:"deviceID"`
		MAC      string `json:"mac"`
	} `json:"runtimeConfig"`
	Args struct {
		CNI struct {
			MAC string `json:"mac"`
		} `json:"cni"`
	} `json:"args"`
	// GC's list, and the same under the name that the specification gave it first. What is absent is nil, what is null is not.
	Valid    json.RawMessage `json:"cni.dev/valid-attachments"`
	ValidToo json.RawMessage `json:"cni.dev/attachments"`
}

// podArgs are what CNI_ARGS may hold; others' are let be.
type podArgs struct {
	types.CommonArgs
	MAC types.UnmarshallableString
}

func wrong(format string, args ...any) error {
	return types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf(format, args...), "")
}

func parse(stdin []byte) (*config, error) {
	c := new(config)
	if err := json.Unmarshal(stdin, c); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "the network configuration is none of macvtap's", err.Error())
	}
	if c.StateDir == "" {
		dir, err := nodesStateDir(filepath.Dir(os.Args[0]))
		if err != nil {
			return nil, err
		}
		c.StateDir = dir
	}
	c.DeviceID = cmp.Or(c.Runtime.DeviceID, c.DeviceID)
	return c, nil
}

// nodesStateDir is of the file macvtap.json next to the plugin, if there is one: nodes that share a file system have a
// state directory each, and network configurations are the cluster's.
func nodesStateDir(beside string) (string, error) {
	file := filepath.Join(beside, "macvtap.json")
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return tap.DefaultDir, nil
	}
	if err != nil {
		return "", types.NewError(types.ErrIOFailure, "read what this node's macvtap is to do", err.Error())
	}
	var node struct {
		StateDir string `json:"stateDir"`
	}
	if err := json.Unmarshal(text, &node); err != nil {
		return "", types.NewError(types.ErrDecodingFailure, file+" is no JSON with a stateDir", err.Error())
	}
	return cmp.Or(node.StateDir, tap.DefaultDir), nil
}

// want is the interface that the configuration and the runtime ask for.
func (c *config) want(args *skel.CmdArgs) (tap.Want, error) {
	w := tap.Want{Device: c.DeviceID, Parent: cmp.Or(c.LowerDevice, c.Master), Mode: c.Mode, Network: c.Name, ContainerID: args.ContainerID, IfName: args.IfName,
		NetNS: args.Netns, MTU: c.MTU, Promiscuous: c.Promiscuous, Owner: tap.DefaultOwner, Group: tap.DefaultOwner}
	if c.Owner != nil {
		w.Owner = *c.Owner
	}
	if c.Group != nil {
		w.Group = *c.Group
	}
	switch {
	case c.Master != "" && c.LowerDevice != "" && c.Master != c.LowerDevice:
		return w, wrong("lowerDevice is %q and master is %q: they are the same, leave one out", c.LowerDevice, c.Master)
	case w.Device == "" && w.Parent == "":
		return w, wrong("there is neither a deviceID nor a lowerDevice: with multus, the NetworkAttachmentDefinition has to have the annotation " +
			"k8s.v1.cni.cncf.io/resourceName, and the pod has to ask for that resource; without multus, name the node's interface as lowerDevice")
	case w.Device != "" && (w.Parent != "" || w.Mode != ""):
		return w, wrong("lowerDevice and mode are the device's where there is a deviceID (%s): leave them out", c.DeviceID)
	case w.Device == "" && w.Mode == "":
		w.Mode = macvtap.DefaultMode
	}
	text, err := c.mac(args.Args)
	if err != nil {
		return w, err
	}
	w.MAC, err = macOf(text)
	return w, err
}

// macOf is nil of "".
func macOf(text string) (net.HardwareAddr, error) {
	if text == "" {
		return nil, nil
	}
	mac, err := net.ParseMAC(text)
	if err != nil {
		return nil, wrong("%q is no MAC address", text)
	}
	return mac, nil
}

// mac is what the runtime asks for, else what the configuration has.
func (c *config) mac(args string) (string, error) {
	pod := podArgs{CommonArgs: types.CommonArgs{IgnoreUnknown: true}}
	if err := types.LoadArgs(args, &pod); err != nil {
		return "", types.NewError(types.ErrInvalidEnvironmentVariables, "CNI_ARGS makes no sense", err.Error())
	}
	return strings.TrimSpace(cmp.Or(c.Runtime.MAC, c.Args.CNI.MAC, string(pod.MAC), c.MAC)), nil
}

// valid are the attachments to keep.
func (c *config) valid() (map[types.GCAttachment]bool, error) {
	text := c.Valid
	if text == nil {
		text = c.ValidToo
	}
	if text == nil {
		return nil, wrong("GC without cni.dev/valid-attachments: all pods would lose their devices")
	}
	var list []types.GCAttachment
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "cni.dev/valid-attachments is no list of attachments", err.Error())
	}
	keep := map[types.GCAttachment]bool{}
	for _, a := range list {
		keep[a] = true
	}
	return keep, nil
}
