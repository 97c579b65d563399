// Macvtap is the CNI plugin that gives a pod a macvtap interface, and makes the device node through which a virtual machine in the pod uses it:
// of a device that the device plugin allocated, or of an interface of the node's that the configuration names.
package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/ns"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/flowkeep/flowkeep/internal/process"
	"github.com/flowkeep/flowkeep/macvtap/tap"
)

// errNotAvailable is the code for a plugin that cannot serve ADD (CNI specification 1.1, STATUS).
const errNotAvailable = 50

func main() {
	skel.PluginMainFuncs(skel.CNIFuncs{Add: add, Del: del, Check: check, GC: gc, Status: status}, version.All, "macvtap "+process.BuildVersion())
}

// coded returns an error with the specification's code: the runtime retries what may succeed later.
func coded(err error) error {
	var of *types.Error // an IPAM plugin's
	switch {
	case err == nil:
		return nil
	case errors.As(err, &of) && of.Code != types.ErrInternal && of.Code != types.ErrUnknown:
		return types.NewError(of.Code, err.Error(), "")
	case errors.Is(err, tap.ErrRefused):
		return types.NewError(types.ErrInvalidNetworkConfig, err.Error(), "")
	case errors.Is(err, tap.ErrNoNetNS):
		return types.NewError(types.ErrUnknownContainer, err.Error(), "")
	}
	return types.NewError(types.ErrTryAgainLater, err.Error(), "")
}

// open is what every command begins with.
func open(args *skel.CmdArgs) (*config, *tap.Store, error) {
	c, err := parse(args.StdinData)
	if err != nil {
		return nil, nil, err
	}
	store, err := tap.Open(c.StateDir)
	return c, store, coded(err)
}

func add(args *skel.CmdArgs) error {
	c, store, err := open(args)
	if err != nil {
		return err
	}
	w, err := c.want(args)
	if err != nil {
		return err
	}
	if own, err := ns.CheckNetNS(args.Netns); err == nil && own && !anyNetNS(args) {
		return types.NewError(types.ErrInvalidNetNS, "the pod uses the node's network namespace, where no device is made for it", "")
	}
	made, err := store.Attach(w)
	if err != nil {
		return coded(err)
	}
	result, err := c.configure(made, args)
	if err == nil {
		err = types.PrintResult(result, c.CNIVersion)
	}
	if err == nil {
		return nil
	}
	if undone := errors.Join(c.releaseAddresses(args), store.Detach(w)); undone != nil {
		err = fmt.Errorf("%w; and it could not be undone: %w", err, undone)
	}
	return coded(err)
}

// anyNetNS: the specification's way for runtimes to allow the node's own.
func anyNetNS(args *skel.CmdArgs) bool {
	return strings.EqualFold(args.NetnsOverride, "true") || args.NetnsOverride == "1"
}

// configure gives the interface the addresses of the configuration's IPAM plugin, if there is one.
func (c *config) configure(made *tap.Interface, args *skel.CmdArgs) (*current.Result, error) {
	result := &current.Result{CNIVersion: current.ImplementedSpecVersion, DNS: c.DNS,
		Interfaces: []*current.Interface{{Name: made.Name, Mac: made.MAC.String(), Mtu: made.MTU, Sandbox: args.Netns}}}
	if c.IPAM.Type == "" {
		return result, nil
	}
	addresses, err := c.addresses(args)
	if err != nil {
		return nil, err
	}
	result.IPs, result.Routes = addresses.IPs, addresses.Routes
	if !addresses.DNS.IsEmpty() {
		result.DNS = addresses.DNS
	}
	for _, ip := range result.IPs {
		ip.Interface = current.Int(0)
	}
	return result, assign(args, result)
}

// del removes all that it can, also if a part fails.
func del(args *skel.CmdArgs) error {
	c, store, err := open(args)
	if err != nil {
		return err
	}
	w := tap.Want{Device: c.DeviceID, ContainerID: args.ContainerID, IfName: args.IfName, NetNS: args.Netns}
	return coded(errors.Join(store.Detach(w), c.releaseAddresses(args)))
}

func check(args *skel.CmdArgs) error {
	c, store, err := open(args)
	if err != nil {
		return err
	}
	w, err := c.want(args)
	if err != nil {
		return err
	}
	previous, err := c.previous()
	if err != nil {
		return err
	}
	if err := matches(previous, &w); err != nil {
		return err
	}
	if err := store.Check(w); err != nil {
		return coded(err)
	}
	return coded(c.checkAddresses(args, previous))
}

func gc(args *skel.CmdArgs) error {
	c, store, err := open(args)
	if err != nil {
		return err
	}
	keep, err := c.valid()
	if err != nil {
		return err
	}
	err = store.Collect(c.Name, func(containerID, ifName string) bool {
		return keep[types.GCAttachment{ContainerID: containerID, IfName: ifName}]
	})
	if c.IPAM.Type != "" {
		err = errors.Join(err, invoke.DelegateGC(context.Background(), c.IPAM.Type, args.StdinData, nil))
	}
	return coded(err)
}

func status(args *skel.CmdArgs) error {
	c, store, err := open(args)
	if err == nil {
		err = store.Ready()
	}
	if err == nil && c.IPAM.Type != "" {
		err = invoke.DelegateStatus(context.Background(), c.IPAM.Type, args.StdinData, nil)
	}
	if err != nil {
		return types.NewError(errNotAvailable, "no macvtap device can be attached: "+err.Error(), "")
	}
	return nil
}
