package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/containernetworking/plugins/pkg/ip"
	"github.com/containernetworking/plugins/pkg/ipam"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/flowkeep/flowkeep/macvtap/tap"
)

func (c *config) addresses(args *skel.CmdArgs) (*current.Result, error) {
	answer, err := invoke.DelegateAdd(context.Background(), c.IPAM.Type, args.StdinData, nil)
	if err != nil {
		return nil, fmt.Errorf("addresses from the IPAM plugin %s: %w", c.IPAM.Type, err)
	}
	addresses, err := current.NewResultFromResult(answer)
	if err != nil {
		return nil, fmt.Errorf("the answer of the IPAM plugin %s: %w", c.IPAM.Type, err)
	}
	if len(addresses.IPs) == 0 {
		return nil, fmt.Errorf("the IPAM plugin %s gave no address", c.IPAM.Type)
	}
	return addresses, nil
}

// releaseAddresses is for those that were never given, too.
func (c *config) releaseAddresses(args *skel.CmdArgs) error {
	if c.IPAM.Type == "" {
		return nil
	}
	if err := invoke.DelegateDel(context.Background(), c.IPAM.Type, args.StdinData, nil); err != nil {
		return fmt.Errorf("release the addresses of the IPAM plugin %s: %w", c.IPAM.Type, err)
	}
	return nil
}

// assign puts addresses and routes on the interface.
func assign(args *skel.CmdArgs, result *current.Result) error {
	return ns.WithNetNSPath(args.Netns, func(ns.NetNS) error { return ipam.ConfigureIface(args.IfName, result) })
}

// previous is what ADD answered.
func (c *config) previous() (*current.Result, error) {
	if err := version.ParsePrevResult(&c.PluginConf); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "prevResult is no result", err.Error())
	}
	if c.PrevResult == nil {
		return nil, wrong("CHECK without prevResult: it is what ADD answered")
	}
	result, err := current.NewResultFromResult(c.PrevResult)
	if err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "prevResult is no result", err.Error())
	}
	return result, nil
}

// matches completes what is wanted by what ADD answered: it is what others rely on.
func matches(previous *current.Result, w *tap.Want) error {
	for _, i := range previous.Interfaces {
		if i.Name != w.IfName || i.Sandbox != w.NetNS {
			continue
		}
		if mac, err := macOf(i.Mac); err != nil {
			return err
		} else if mac != nil {
			w.MAC = mac
		}
		if i.Mtu != 0 {
			w.MTU = i.Mtu
		}
		return nil
	}
	return wrong("prevResult has no interface %s in %s", w.IfName, w.NetNS)
}

func (c *config) checkAddresses(args *skel.CmdArgs, previous *current.Result) error {
	if c.IPAM.Type == "" {
		return nil
	}
	if err := invoke.DelegateCheck(context.Background(), c.IPAM.Type, args.StdinData, nil); err != nil {
		return fmt.Errorf("the IPAM plugin %s: %w", c.IPAM.Type, err)
	}
	return ns.WithNetNSPath(args.Netns, func(ns.NetNS) error {
		return errors.Join(ip.ValidateExpectedInterfaceIPs(args.IfName, ours(previous, args)), ip.ValidateExpectedRoute(previous.Routes))
	})
}

// ours are the addresses of a result that are on our interface.
func ours(r *current.Result, args *skel.CmdArgs) (list []*current.IPConfig) {
	for _, ip := range r.IPs {
		if ip.Interface == nil || *ip.Interface < 0 || *ip.Interface >= len(r.Interfaces) {
			continue
		}
		if i := r.Interfaces[*ip.Interface]; i.Name == args.IfName && i.Sandbox == args.Netns {
			list = append(list, ip)
		}
	}
	return list
}
