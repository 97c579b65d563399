// Flowkeep-cni is the CNI plugin that the container runtime runs. It forwards each command to netplugin on this node.
package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/flowkeep/flowkeep/internal/process"
	"github.com/flowkeep/flowkeep/netplugin/cni"
	"github.com/flowkeep/flowkeep/netplugin/endpoints"
)

// config is the plugin's part of the network configuration.
type config struct {
	types.NetConf
	Socket string `json:"socket"`
	// Runtime is what the container runtime fills in for the capabilities in netplugin's entry: rates in bits a second,
	// of the pod's annotations kubernetes.io/ingress-bandwidth and egress-bandwidth (CNI conventions). It also has
	// bursts, which the annotations do not name, and which runtimes set to all that fits.
	Runtime struct {
		Bandwidth struct {
			IngressRate uint64 `json:"ingressRate"`
			EgressRate  uint64 `json:"egressRate"`
		} `json:"bandwidth"`
		PortMappings []endpoints.PortMapping `json:"portMappings"`
	} `json:"runtimeConfig"`
	// GC's list, and the same under the name that the specification gave it first. What is absent is nil, what is null
	// is not.
	Valid    json.RawMessage `json:"cni.dev/valid-attachments"`
	ValidToo json.RawMessage `json:"cni.dev/attachments"`
}

// valid returns the attachments to keep, as container/ifname.
func (c *config) valid() ([]string, error) {
	list := c.Valid
	if list == nil {
		list = c.ValidToo
	}
	if list == nil {
		return nil, types.NewError(types.ErrInvalidNetworkConfig,
			"GC without cni.dev/valid-attachments: all pods would lose their network", "")
	}
	var attachments []types.GCAttachment
	if err := json.Unmarshal(list, &attachments); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "cni.dev/valid-attachments is no list of attachments",
			err.Error())
	}
	out := []string{}
	for _, a := range attachments {
		out = append(out, a.ContainerID+"/"+a.IfName)
	}
	return out, nil
}

type podArgs struct {
	types.CommonArgs
	K8S_POD_NAMESPACE types.UnmarshallableString
	K8S_POD_NAME      types.UnmarshallableString
	K8S_POD_UID       types.UnmarshallableString
}

const (
	// timeout is longer than netplugin's own, so that its sentence reaches the kubelet.
	timeout = 60 * time.Second
	// statusTimeout is shorter than the 30 s without a response after which a kubelet takes the container runtime for
	// dead.
	statusTimeout = 10 * time.Second
	// maxUnavailable and maxLimited are the times since its last success for which STATUS hides a failure of code 50
	// and of code 51. With the first failure the Node is not Ready and its pods leave Services. While netplugin is away
	// running pods keep their network; the pull of an image takes minutes, a restart of Open vSwitch takes seconds.
	maxUnavailable = 5 * time.Minute
	maxLimited     = 20 * time.Second
)

// client waits for a response as long as timeout.
type client struct{ timeout time.Duration }

func main() { client{timeout}.run() }

func (p client) run() {
	skel.PluginMainFuncs(skel.CNIFuncs{Add: p.add, Del: p.del, Check: p.simple("CHECK"), GC: p.gc, Status: p.status},
		version.All, "flowkeep-cni "+process.BuildVersion())
}

func parse(stdin []byte) (*config, error) {
	c := new(config)
	if err := json.Unmarshal(stdin, c); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "the network configuration is no JSON", err.Error())
	}
	if c.Socket == "" {
		c.Socket = "/run/flowkeep/cni.sock"
	}
	return c, nil
}

func request(args *skel.CmdArgs) (*config, *cni.Request, error) {
	c, err := parse(args.StdinData)
	if err != nil {
		return nil, nil, err
	}
	pod := podArgs{CommonArgs: types.CommonArgs{IgnoreUnknown: true}}
	if err := types.LoadArgs(args.Args, &pod); err != nil {
		return nil, nil, types.NewError(types.ErrInvalidEnvironmentVariables, "CNI_ARGS makes no sense", err.Error())
	}
	limit := c.Runtime.Bandwidth
	return c, &cni.Request{
		Namespace:   string(pod.K8S_POD_NAMESPACE),
		Name:        string(pod.K8S_POD_NAME),
		UID:         string(pod.K8S_POD_UID),
		ContainerID: args.ContainerID,
		IfName:      args.IfName,
		NetNS:       args.Netns,
		Bandwidth:   endpoints.Bandwidth{Ingress: limit.IngressRate, Egress: limit.EgressRate},
		HostPorts:   c.Runtime.PortMappings,
	}, nil
}

// ask sends a command to netplugin. That it cannot be reached is an error to try again after (CNI specification, code
// 11).
func (p client) ask(c *config, command string, r *cni.Request) (*cni.Response, error) {
	ctx, cancel := context.WithTimeout(context.Background(), p.timeout)
	defer cancel()
	body, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", c.Socket)
	}
	over := http.Client{Transport: &http.Transport{DialContext: dial}}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://netplugin/"+command, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	answer, err := over.Do(req)
	if err != nil {
		return nil, types.NewError(types.ErrTryAgainLater,
			"netplugin does not answer on "+c.Socket+": is it running on this node?", err.Error())
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, types.NewError(types.ErrTryAgainLater,
			"netplugin on this node does not know "+command+": is it older than flowkeep-cni?", answer.Status)
	}
	resp := new(cni.Response)
	if err := json.NewDecoder(answer.Body).Decode(resp); err != nil {
		return nil, types.NewError(types.ErrTryAgainLater, "netplugin's response is truncated", err.Error())
	}
	if resp.Error != "" {
		return resp, types.NewError(cmp.Or(resp.Code, types.ErrTryAgainLater), resp.Error, "")
	}
	return resp, nil
}

func (p client) add(args *skel.CmdArgs) error {
	c, r, err := request(args)
	if err != nil {
		return err
	}
	resp, err := p.ask(c, "ADD", r)
	if err != nil {
		return err
	}
	result, err := resultOf(resp, args)
	if err != nil {
		return err
	}
	return types.PrintResult(result, c.CNIVersion)
}

// resultOf returns a CNI result that plugins chained after this one can use.
func resultOf(resp *cni.Response, args *skel.CmdArgs) (*current.Result, error) {
	if resp.Endpoint == nil {
		return nil, errors.New("netplugin's response has no endpoint")
	}
	e := resp.Endpoint
	result := &current.Result{CNIVersion: current.ImplementedSpecVersion, Interfaces: []*current.Interface{
		{Name: e.HostIfName, Mtu: resp.MTU},
		{Name: args.IfName, Mac: e.MAC.String(), Mtu: resp.MTU, Sandbox: args.Netns},
	}}
	for _, a := range e.Addresses {
		ip := &current.IPConfig{Interface: current.Int(1),
			Address: net.IPNet{IP: net.IP(a.AsSlice()), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}}
		for _, text := range resp.Gateways {
			g, err := netip.ParseAddr(text)
			if err != nil {
				return nil, fmt.Errorf("netplugin's response: %w", err)
			}
			if g.Is4() == a.Is4() {
				ip.Gateway = net.IP(g.AsSlice())
				all := net.IPNet{IP: make(net.IP, a.BitLen()/8), Mask: net.CIDRMask(0, a.BitLen())}
				result.Routes = append(result.Routes, &types.Route{Dst: all, GW: ip.Gateway})
			}
		}
		result.IPs = append(result.IPs, ip)
	}
	return result, nil
}

// isAway reports whether no netplugin listens.
func isAway(socket string) bool {
	conn, err := net.DialTimeout("unix", socket, time.Second)
	if err == nil {
		conn.Close()
	}
	return errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ECONNREFUSED)
}

// del succeeds while netplugin does not run, so that pods end and a node can be drained: netplugin deletes the
// attachment when it starts, before it serves any other.
func (p client) del(args *skel.CmdArgs) error {
	c, r, err := request(args)
	if err != nil {
		return err
	}
	_, err = p.ask(c, "DEL", r)
	if err == nil || !isAway(c.Socket) {
		return err
	}
	if noted := cni.NoteDeleted(c.Socket, r.ContainerID, r.IfName); noted != nil {
		return types.NewError(types.ErrTryAgainLater, err.Error(), noted.Error())
	}
	return nil
}

// simple returns the handler of a command without a result.
func (p client) simple(command string) func(*skel.CmdArgs) error {
	return func(args *skel.CmdArgs) error {
		c, r, err := request(args)
		if err != nil {
			return err
		}
		_, err = p.ask(c, command, r)
		return err
	}
}

// status fails with code 50 or 51 (CNI specification 1.1) if ADD cannot be served, and its last success is too long
// ago. After a boot there was none.
func (p client) status(args *skel.CmdArgs) error {
	c, err := parse(args.StdinData)
	if err != nil {
		return err
	}
	failed := client{statusTimeout}.oneStatus(c)
	hidden := maxUnavailable
	switch {
	case failed == nil:
		_ = cni.NoteReady(c.Socket) // without the file STATUS hides no failure
		return nil
	case failed.Code == types.ErrLimitedConnectivity:
		hidden = maxLimited
	}
	if cni.WasReady(c.Socket, hidden) {
		return nil
	}
	return failed
}

func (p client) oneStatus(c *config) *types.Error {
	resp, err := p.ask(c, "STATUS", &cni.Request{})
	if err == nil {
		return nil
	}
	code, text := types.ErrPluginNotAvailable, err.Error()
	if resp != nil {
		text = resp.Error
		if resp.Code == types.ErrLimitedConnectivity {
			code = resp.Code
		}
	}
	return types.NewError(code, text, "")
}

func (p client) gc(args *skel.CmdArgs) error {
	c, err := parse(args.StdinData)
	if err != nil {
		return err
	}
	valid, err := c.valid()
	if err != nil {
		return err
	}
	_, err = p.ask(c, "GC", &cni.Request{Valid: valid})
	return err
}
