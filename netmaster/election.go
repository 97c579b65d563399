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

// leaseName is the Lease that netmasters compete for.
const leaseName = "netmaster"

// electionFlags configures the leader election.
type electionFlags struct {
	elect               bool
	namespace, identity string
	addresses           []string
}

func (p *electionFlags) add(f *pflag.FlagSet) {
	f.BoolVar(&p.elect, "leader-elect", false,
		"be one of several netmasters, of which the one that holds the Lease serves")
	f.StringVar(&p.namespace, "lease-namespace", inspect.ServiceNamespace, "namespace of the Lease netmaster")
	f.StringSliceVar(
		&p.addresses,
		"advertise-address",
		nil,
		"this one's addresses, one a family, to which the leader has the Service netmaster in --lease-namespace "+
			"lead; default: nodes have a list of --server",
	)
	f.StringVar(
		&p.identity,
		"identity",
		"",
		"what this one is called in the Lease, followed by letters that no other process has; default: this "+
			"machine's name and the process's id",
	)
}

// maxUnacknowledged is how long an API server may leave sent data unacknowledged. It is shorter than the Lease.
const maxUnacknowledged = 3 * time.Second

// connect makes connections to the API server fail soon when its machine disappears. Otherwise a standby connected
// to it would wait 45 s before it reconnects, without a leader.
func (p *electionFlags) connect(api *rest.Config) {
	if p.elect {
		api.Dial = dialer(maxUnacknowledged).DialContext
	}
}

func dialer(timeout time.Duration) *net.Dialer {
	return &net.Dialer{
		Timeout:         timeout,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second, Count: 3},
		Control: func(_, _ string, c syscall.RawConn) error {
			var failed error
			err := c.Control(func(fd uintptr) {
				failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT,
					int(maxUnacknowledged.Milliseconds()))
			})
			return errors.Join(err, failed)
		},
	}
}

// join configures the election. Its requests use a separate connection and rate limit.
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
	cfg.Roster = &watch.Roster{Client: client, Namespace: p.namespace, Identity: identity, Version: cfg.Version}
	cfg.Election = lease.NewElection(lease.ElectionConfig{
		Client:    leases,
		Namespace: p.namespace,
		Name:      leaseName,
		Identity:  identity,
		Times:     lease.Quick,
		Log:       cfg.Logger,
	})
	return p.advertise(cfg, client, sign)
}

// advertise configures publishing the leader's address. The argument sign is the listen address for certificate
// requests, or empty.
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
	for name, listen := range map[string]string{"feed": cfg.Listen, "access": cfg.Access.Listen, "sign": sign} {
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
	cfg.Roster.Address = netip.AddrPortFrom(a.Addresses[0], a.Ports["feed"]).String()
	return nil
}

// signs returns the listen address for certificate requests; empty if disabled.
func (c *certificates) signs() string {
	if c.secret == "" {
		return ""
	}
	return c.signListen
}
