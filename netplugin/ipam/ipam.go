// Package ipam gives pods addresses from the node's pod CIDRs, one a family, with the host-local allocator of
// containernetworking/plugins. The first address of each CIDR is the gateway's. An address that was given back is given
// out again only when the others have had their turn.
package ipam

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

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

// HasAllocated reports whether an allocator with this state directory has ever given out an address. The store keeps
// the last one of each range when pods have given theirs back.
func HasAllocated(stateDir string) (bool, error) {
	files, err := os.ReadDir(filepath.Join(stateDir, "addresses", network))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read the store of addresses: %w", err)
	}
	return slices.ContainsFunc(files, func(f os.DirEntry) bool { return f.Name() != "lock" }), nil
}

func (a *Allocator) with(f func(*disk.Store) error) error {
	store, err := disk.New(network, a.dir)
	if err != nil {
		return fmt.Errorf("open the store of addresses: %w", err)
	}
	defer store.Close()
	return f(store)
}

// Allocate gives one address of each pod CIDR, in their order, the same again if the container has them already. If one
// family has none left, it gives none at all.
func (a *Allocator) Allocate(container, ifName string) (out []netip.Addr, err error) {
	err = a.with(func(store *disk.Store) error {
		if out = a.ordered(unmap(store.GetByID(container, ifName))); out != nil {
			return nil
		}
		// a crash between the families, or addresses of CIDRs that the node no longer has
		if err := release(store, container, ifName); err != nil {
			return err
		}
		for i := range a.ranges {
			ip, err := allocator.NewIPAllocator(&a.ranges[i], store, i).Get(container, ifName, nil)
			if err != nil {
				return errors.Join(fmt.Errorf("no address for the pod: %w", err), release(store, container, ifName))
			}
			out = append(out, unmap([]net.IP{ip.Address.IP})...)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// ordered returns have in the order of the pod CIDRs, nil unless it has exactly one address of each.
func (a *Allocator) ordered(have []netip.Addr) []netip.Addr {
	if len(have) != len(a.ranges) {
		return nil
	}
	out := make([]netip.Addr, 0, len(have))
	for _, set := range a.ranges {
		i := slices.IndexFunc(have, func(h netip.Addr) bool { return set.Contains(net.IP(h.AsSlice())) })
		if i < 0 {
			return nil
		}
		out = append(out, have[i])
	}
	return out
}

// Release gives a container's addresses back; it is no error if it has none. It works whatever the pod CIDRs are now.
func (a *Allocator) Release(container, ifName string) error {
	return a.with(func(store *disk.Store) error { return release(store, container, ifName) })
}

// release sees to it that they are back: the store keeps quiet about files that it could not remove.
func release(store *disk.Store, container, ifName string) error {
	if err := store.ReleaseByID(container, ifName); err != nil {
		return fmt.Errorf("give addresses back: %w", err)
	}
	if left := store.GetByID(container, ifName); len(left) > 0 {
		return fmt.Errorf("give addresses back: %v could not be removed from the store; is its disk writable?", left)
	}
	return nil
}

// Keep gives back what nobody holds: addresses of containers that wanted does not know, and those that a crash left without
// an owner.
func (a *Allocator) Keep(wanted func(container, ifName string) bool) error {
	return a.with(func(store *disk.Store) error {
		if err := store.Lock(); err != nil {
			return err
		}
		defer func() { _ = store.Unlock() }()
		dir := filepath.Join(a.dir, network)
		entries, err := os.ReadDir(dir)
		if err != nil {
			return fmt.Errorf("read the store of addresses: %w", err)
		}
		var errs []error
		for _, entry := range entries {
			if _, err := netip.ParseAddr(entry.Name()); err == nil {
				errs = append(errs, keepOne(filepath.Join(dir, entry.Name()), wanted))
			}
		}
		return errors.Join(errs...)
	})
}

func keepOne(path string, wanted func(container, ifName string) bool) error {
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil // released meanwhile
	}
	if err != nil {
		return fmt.Errorf("read whose an address is: %w", err)
	}
	container, ifName, _ := strings.Cut(strings.TrimSpace(string(text)), disk.LineBreak)
	if container != "" && wanted(container, ifName) {
		return nil
	}
	return os.Remove(path)
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
