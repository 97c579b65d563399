// Package ipam gives pods addresses from the node's pod CIDRs, one a family, with the host-local allocator of
// containernetworking/plugins. The first address of each CIDR is the gateway's. An address that was given back is given
// out again only when the others have had their turn.
package ipam

import (
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/allocator"
	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"
)

// Allocator keeps what is given out in a directory. Safe for concurrent use, by other processes too.
type Allocator struct {
	dir    string
	ranges []allocator.RangeSet
}

const network = "flowkeep"

// New makes an allocator over the node's pod CIDRs.
func New(stateDir string, cidrs []netip.Prefix) (*Allocator, error) {
	a := &Allocator{dir: filepath.Join(stateDir, "addresses")}
	for _, c := range cidrs {
		c = c.Masked()
		r := allocator.Range{Subnet: types.IPNet{IP: net.IP(c.Addr().AsSlice()), Mask: net.CIDRMask(c.Bits(), c.Addr().BitLen())}}
		if err := r.Canonicalize(); err != nil {
			return nil, fmt.Errorf("pod CIDR %s: %w", c, err)
		}
		a.ranges = append(a.ranges, allocator.RangeSet{r})
	}
	return a, nil
}

func (a *Allocator) with(f func(*disk.Store) error) error {
	store, err := disk.New(network, a.dir)
	if err != nil {
		return fmt.Errorf("open the store of addresses: %w", err)
	}
	defer store.Close()
	return f(store)
}

// Allocate gives one address of each pod CIDR, the same again if the container has some already.
func (a *Allocator) Allocate(container, ifName string) (out []netip.Addr, err error) {
	err = a.with(func(store *disk.Store) error {
		have := unmap(store.GetByID(container, ifName)) // all, none, or what a crash half-way left
		for i := range a.ranges {
			if at := slices.IndexFunc(have, func(h netip.Addr) bool { return a.ranges[i].Contains(h.AsSlice()) }); at >= 0 {
				out = append(out, have[at])
				continue
			}
			ip, err := allocator.NewIPAllocator(&a.ranges[i], store, i).Get(container, ifName, nil)
			if err != nil {
				_ = store.ReleaseByID(container, ifName)
				return fmt.Errorf("no address for the pod: %w", err)
			}
			out = append(out, unmap([]net.IP{ip.Address.IP})...)
		}
		return nil
	})
	return out, err
}

// Release gives a container's addresses back; it is no error if it has none.
func (a *Allocator) Release(container, ifName string) error {
	return a.with(func(store *disk.Store) error { return store.ReleaseByID(container, ifName) })
}

func unmap(ips []net.IP) []netip.Addr {
	var out []netip.Addr
	for _, ip := range ips {
		if addr, ok := netip.AddrFromSlice(ip); ok {
			out = append(out, addr.Unmap())
		}
	}
	return out
}
