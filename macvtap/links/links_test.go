package links

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/internal/testkit/netns"
	"github.com/flowkeep/flowkeep/macvtap"
	"github.com/vishvananda/netlink"
)

func attrs(name string) netlink.LinkAttrs {
	a := netlink.NewLinkAttrs()
	a.Name = name
	return a
}

func do(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// veth makes a pair, both of whose ends are up.
func veth(t *testing.T, name string) netlink.Link {
	t.Helper()
	a := attrs(name)
	a.MTU, a.HardwareAddr = 1400, []byte{2, 0, 0, 0, 0, 1}
	l := &netlink.Veth{LinkAttrs: a, PeerName: name + "-peer"}
	do(t, netlink.LinkAdd(l), netlink.LinkSetUp(l), netlink.LinkSetUp(&netlink.Veth{LinkAttrs: attrs(name + "-peer")}))
	return l
}

func find(list []macvtap.Link, name string) macvtap.Link {
	for _, l := range list {
		if l.Name == name {
			return l
		}
	}
	return macvtap.Link{}
}

func TestLinksAsTheyAre(t *testing.T) {
	netns.New(t).Enter(t)
	v := veth(t, "v0")
	br := &netlink.Bridge{LinkAttrs: attrs("br0")}
	do(t, netlink.LinkAdd(br), netlink.LinkSetMaster(v, br))
	down := veth(t, "d0")
	do(t, netlink.LinkSetDown(&netlink.Veth{LinkAttrs: attrs("d0-peer")})) // no carrier
	tapAttrs := attrs("m0")
	tapAttrs.ParentIndex = down.Attrs().Index
	tap := &netlink.Macvtap{Macvlan: netlink.Macvlan{LinkAttrs: tapAttrs, Mode: netlink.MACVLAN_MODE_BRIDGE}}
	do(t, netlink.LinkAdd(tap))
	list, err := Read()
	do(t, err)
	want := macvtap.Link{Name: "v0", Index: v.Attrs().Index, Kind: "veth", Up: true, Master: br.Attrs().Index, MasterKind: "bridge", MAC: "02:00:00:00:00:01", MTU: 1400}
	if got := find(list, "v0"); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if l := find(list, "lo"); !l.Loopback || l.Physical || !l.Up || l.Kind != "" {
		t.Errorf("%+v", l)
	}
	if l := find(list, "d0"); l.Up || l.Physical || l.Index == 0 {
		t.Errorf("without a carrier: %+v", l)
	}
	if find(list, "br0").Kind != "bridge" || find(list, "m0").Kind != "macvtap" {
		t.Errorf("%+v", list)
	}
	for i := range list[1:] {
		if list[i].Name >= list[i+1].Name {
			t.Errorf("not by name: %+v", list)
		}
	}
}

// A device has hardware where the kernel tells of it, else where sysfs does; a virtual link never.
func TestPhysical(t *testing.T) {
	device := func(encap, parent string, flags uint32) netlink.Link {
		a := netlink.LinkAttrs{Name: "eth0", Index: 7, EncapType: encap, ParentDev: parent, RawFlags: flags}
		return &netlink.Device{LinkAttrs: a}
	}
	for what, c := range map[string]struct {
		link           netlink.Link
		told, physical bool
	}{
		"a card":                           {device("ether", "0000:00:03.0", 0), true, true},
		"none, beside a card":              {device("ether", "", 0), true, false},
		"an old kernel, sysfs of another":  {device("ether", "", 0), false, true},
		"infiniband":                       {device("infiniband", "mlx", 0), true, false},
		"a veth, though with a parent":     {&netlink.Veth{LinkAttrs: netlink.LinkAttrs{EncapType: "ether", ParentDev: "x"}}, true, false},
		"what Open vSwitch calls its link": {&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{EncapType: "ether"}, LinkType: "openvswitch"}, false, false},
	} {
		kinds := map[int]string{c.link.Attrs().Index: kind(c.link)}
		if l := linkOf(c.link, kinds, c.told); l.Physical != c.physical {
			t.Errorf("%s: %+v", what, l)
		}
	}
	sysfs := t.TempDir()
	do(t, os.MkdirAll(filepath.Join(sysfs, "eth0", "device"), 0o755), os.WriteFile(filepath.Join(sysfs, "eth0", "ifindex"), []byte("7\n"), 0o644),
		os.Mkdir(filepath.Join(sysfs, "soft0"), 0o755), os.WriteFile(filepath.Join(sysfs, "soft0", "ifindex"), []byte("8\n"), 0o644))
	if !hasDevice(sysfs, "eth0", 7) || hasDevice(sysfs, "soft0", 8) || !hasDevice(sysfs, "soft0", 9) || !hasDevice(sysfs, "eth9", 7) {
		t.Error("sysfs is misread")
	}
}

// follow runs in the network namespace; next waits for a list that is as it should be.
func follow(t *testing.T, n *netns.Namespace) (next func(what string, is func([]macvtap.Link) bool), told *int) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	lists, ended, told := make(chan []macvtap.Link, 100), make(chan error), new(int)
	go n.Do(func() {
		ended <- Follow(ctx, slog.New(slog.DiscardHandler), func(l []macvtap.Link) { lists <- l })
	})
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return func(what string, is func([]macvtap.Link) bool) {
		t.Helper()
		limit := time.After(time.Minute)
		for {
			select {
			case l := <-lists:
				if *told++; is(l) {
					return
				}
			case <-limit:
				t.Fatalf("never told: %s", what)
			}
		}
	}, told
}

func TestChangesAreTold(t *testing.T) {
	n := netns.New(t)
	n.Enter(t)
	next, _ := follow(t, n)
	next("what there is", func(l []macvtap.Link) bool { return find(l, "lo").Loopback })
	v := veth(t, "v0")
	next("came", func(l []macvtap.Link) bool { return find(l, "v0").Up })
	do(t, netlink.LinkSetDown(v))
	next("down", func(l []macvtap.Link) bool { return find(l, "v0").Index != 0 && !find(l, "v0").Up })
	do(t, netlink.LinkSetName(v, "v1"), netlink.LinkSetUp(v))
	next("renamed", func(l []macvtap.Link) bool { return find(l, "v1").Up && find(l, "v0").Index == 0 })
	br := &netlink.Bridge{LinkAttrs: attrs("br0")}
	do(t, netlink.LinkAdd(br), netlink.LinkSetMaster(v, br))
	next("a port", func(l []macvtap.Link) bool { return find(l, "v1").MasterKind == "bridge" })
	do(t, netlink.LinkDel(v))
	next("gone", func(l []macvtap.Link) bool { return find(l, "v1").Index == 0 })
}

// Of more changes than a socket holds the end is told all the same, and not one by one.
func TestManyChanges(t *testing.T) {
	n := netns.New(t)
	n.Enter(t)
	next, told := follow(t, n)
	next("what there is", func(l []macvtap.Link) bool { return len(l) > 0 })
	br := &netlink.Bridge{LinkAttrs: attrs("br0")}
	began := time.Now()
	do(t, netlink.LinkAdd(br))
	for i := range 1500 {
		do(t, netlink.LinkSetMTU(br, 1000+i%2))
	}
	do(t, netlink.LinkSetMTU(br, 1234))
	next("the end", func(l []macvtap.Link) bool { return find(l, "br0").MTU == 1234 })
	if most := 2 + int(time.Since(began)/quiet); *told > most {
		t.Errorf("told %d times, want %d at most", *told, most)
	}
}
