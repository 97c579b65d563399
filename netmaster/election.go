package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"syscall"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/internal/lease"
	"github.com/flowkeep/flowkeep/netmaster/server"
	"github.com/flowkeep/flowkeep/netmaster/watch"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
	"k8s.io/client-go/kubernetes"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
)

// leaseName is of the Lease that netmasters compete for.
const leaseName = "netmaster"

// electionFlags are of a netmaster that is one of several.
type electionFlags struct {
	elect               bool
	namespace, identity string
	addresses           []string
}

func (p *electionFlags) add(f *pflag.FlagSet) {
	f.BoolVar(&p.elect, "leader-elect", false, "be one of several netmasters, of which the one that holds the Lease serves")
	f.StringVar(&p.namespace, "lease-namespace", inspect.ServiceNamespace, "namespace of the Lease netmaster")
	f.StringSliceVar(&p.addresses, "advertise-address", nil, "this one's addresses, one a family, to which the leader has the Service netmaster in --lease-namespace lead; default: nodes have a list of --server")
	f.StringVar(&p.identity, "identity", "", "what this one is called in the Lease, followed by letters that no other process has; default: this machine's name and the process's id")
}

// mostSilence is how long an API server may leave what it was sent unacknowledged, less than a Lease lasts.
const mostSilence = 3 * time.Second

// connect has connections to the API server end soon when that is gone without a word, with the machine that it ran on: else a standby that was
// connected to it, maybe through a Service, would wait for 45 s until it looks for another, and nobody would lead.
func (p *electionFlags) connect(api *rest.Config) {
	if p.elect {
		api.Dial = dialer(mostSilence).DialContext
	}
}

func dialer(timeout time.Duration) *net.Dialer {
	return &net.Dialer{Timeout: timeout, KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second, Count: 3},
		Control: func(_, _ string, c syscall.RawConn) error {
			var failed error
			err := c.Control(func(fd uintptr) {
				failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(mostSilence.Milliseconds()))
			})
			return errors.Join(err, failed)
		}}
}

// join has cfg take part in the election. Its requests have a connection of their own, and wait for no others.
func (p *electionFlags) join(cfg *server.Config, client kubernetes.Interface, api *rest.Config, sign string) error {
	if !p.elect {
		return nil
	}
	identity, err := lease.OnceIdentity(p.identity)
	if err != nil {
		return err
	}
	own := rest.CopyConfig(api)
	own.QPS, own.Burst = 20, 20
	own.Dial = dialer(time.Second).DialContext
	leases, err := coordinationclient.NewForConfig(own)
	if err != nil {
		return err
	}
	if cfg.Fresh, err = watch.NewLister(api); err != nil {
		return err
	}
	cfg.Watcher.Keep()
	cfg.Roster = &watch.Roster{Client: client, Namespace: p.namespace, Identity: identity, Version: cfg.Version}
	cfg.Election = lease.NewElection(lease.ElectionConfig{Client: leases, Namespace: p.namespace, Name: leaseName, Identity: identity, Times: lease.Quick, Log: cfg.Logger})
	return p.advertise(cfg, client, sign)
}

// advertise has the leader write where it is. sign is where nodes get certificates, or empty.
func (p *electionFlags) advertise(cfg *server.Config, client kubernetes.Interface, sign string) error {
	if len(p.addresses) == 0 {
		return nil
	}
	a := &watch.Advertiser{Client: client, Namespace: p.namespace, Service: inspect.Service, Ports: map[string]uint16{}}
	for _, text := range p.addresses {
		addr, err := netip.ParseAddr(text)
		if err != nil || addr.IsUnspecified() || addr.IsLoopback() || addr.IsLinkLocalUnicast() || addr.Zone() != "" {
			return fmt.Errorf("--advertise-address %q: give an address at which other machines reach this one", text)
		}
		a.Addresses = append(a.Addresses, addr.Unmap())
	}
	for name, listen := range map[string]string{"feed": cfg.Listen, "access": cfg.Access.Listen, "webhook": cfg.Webhook.Address, "sign": sign} {
		if listen == "" {
			continue
		}
		_, text, err := net.SplitHostPort(listen)
		if err != nil {
			return fmt.Errorf("the address for %s: %w", name, err)
		}
		port, err := strconv.ParseUint(text, 10, 16)
		if err != nil {
			return fmt.Errorf("the address for %s: %w", name, err)
		}
		a.Ports[name] = uint16(port)
	}
	cfg.Advertise = a
	return nil
}

// signs is where nodes get their certificates; empty: nowhere.
func (c *certificates) signs() string {
	if c.secret == "" {
		return ""
	}
	return c.signListen
}
