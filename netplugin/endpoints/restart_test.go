package endpoints

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/internal/testkit/netns"
	"github.com/vishvananda/netlink"
)

// What is wired outlives a restart; what was half wired when the process died does not.
func TestRestart(t *testing.T) {
	w := newWorld(t)
	lives, gone, half := netns.NewNamed(t, "lives"), netns.NewNamed(t, "gone"), netns.NewNamed(t, "half")
	kept := w.mustAdd(w.request("lives", lives))
	w.mustAdd(w.request("gone", gone))
	w.parts.fail["Realize"], w.parts.fail["Forget"] = errors.New("killed"), errors.New("killed")
	if _, err := w.add(w.request("half", half)); err == nil {
		t.Fatal("ADD has succeeded")
	}
	clear(w.parts.fail)
	w.end(gone, hostIfName("c-gone", "eth0"))
	w.restart()
	if len(w.List()) != 3 {
		t.Errorf("after the restart: %v", w.List())
	}
	w.know("10.9.0.0/28", "fd09::/120")
	if err := w.sweep(); err != nil {
		t.Error(err)
	}
	if l := w.List(); len(l) != 1 || !l[0].Equal(kept) || !l[0].Realised {
		t.Errorf("after sweeping: %+v", l)
	}
	if len(w.reserved()) != 2 || len(w.links()) != 1 || len(w.parts.ports) != 1 {
		t.Errorf("addresses %v, links %v, ports %v", w.reserved(), w.links(), w.parts.ports)
	}
	if err := w.check("c-lives"); err != nil {
		t.Error(err)
	}
	if again := w.mustAdd(w.request("lives", lives)); !again.Equal(kept) {
		t.Errorf("ADD of a pod that was wired: %+v", again)
	}
}

// Of two sandboxes of a pod, the first of which waits for its DEL, the later has the name, after any number of restarts.
func TestTheLaterSandboxHasTheName(t *testing.T) {
	w := newWorld(t)
	add := func(container string) {
		t.Helper()
		r := w.request("db", netns.NewNamed(t, container))
		r.ContainerID = container
		w.mustAdd(r)
	}
	has := func(container string) {
		t.Helper()
		if e := Latest(w.List())["shop/db"]; e.ContainerID != container || !e.Realised {
			t.Errorf("%s has the name", e.ContainerID)
		}
	}
	for _, container := range []string{"m", "z", "a", "q"} {
		add(container)
		has(container)
		w.restart()
		w.know("10.9.0.0/28", "fd09::/120")
		has(container)
	}
	w.parts.fail["Realize"] = errors.New("netmaster is away")
	r := w.request("db", netns.NewNamed(t, "late"))
	r.ContainerID = "late"
	if _, err := w.add(r); err == nil {
		t.Fatal("ADD has succeeded")
	}
	clear(w.parts.fail)
	if err := w.del("q", "eth0"); err != nil {
		t.Fatal(err)
	}
	w.restart()
	if e, ok := Latest(w.List())["shop/db"]; ok {
		t.Errorf("%s has the name, whose rules went when a later one took it", e.ContainerID)
	}
	w.know("10.9.0.0/28", "fd09::/120")
	for _, container := range []string{"m", "z", "a"} {
		if err := w.del(container, "eth0"); err != nil {
			t.Error(err)
		}
	}
	if l := w.List(); len(l) != 0 {
		t.Errorf("left: %v", l)
	}
}

func TestLatest(t *testing.T) {
	e := func(name, container string, order uint64, realised bool) Endpoint {
		return Endpoint{Namespace: "shop", Name: name, ContainerID: container, Order: order, Realised: realised}
	}
	for what, c := range map[string]struct {
		all  []Endpoint
		want string
	}{
		"by order":                      {[]Endpoint{e("db", "c1", 3, true), e("db", "c2", 2, true), e("web", "c3", 4, true)}, "c1"},
		"after one of an older version": {[]Endpoint{e("db", "c1", 1, true), e("db", "c2", 0, true)}, "c1"},
		"while it is being wired":       {[]Endpoint{e("db", "c1", 2, false), e("db", "c2", 1, true)}, "c1"},
		"of an older version":           {[]Endpoint{e("db", "c1", 0, true), e("db", "c2", 0, false)}, "c1"},
	} {
		for range 2 {
			if have := Latest(c.all); have["shop/db"].ContainerID != c.want {
				t.Errorf("%s: %+v", what, have)
			}
			slices.Reverse(c.all)
		}
	}
}

// The kernel takes a dead pod's link away in its own time: also between the look at it and its removal.
func TestLinkGoesWhileItIsRemoved(t *testing.T) {
	w, pod := newWorld(t), netns.NewNamed(t, "pod")
	e := w.mustAdd(w.request("web", pod))
	w.node.Do(func() {
		link, err := netlink.LinkByName(e.HostIfName)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := deleteLink(link); err != nil {
				t.Error(err)
			}
		}
	})
	if err := w.del("c-web", "eth0"); err != nil {
		t.Error(err)
	}
	w.empty("DEL")
}

// A path that means something else after a reboot (/proc/PID/ns/net) is no living pod.
func TestSweepAfterAReboot(t *testing.T) {
	w, pod, stranger := newWorld(t), netns.NewNamed(t, "pod"), netns.NewNamed(t, "stranger")
	e := w.mustAdd(w.request("web", pod))
	w.node.Do(func() {
		link, err := netlink.LinkByName(e.HostIfName)
		if err == nil {
			err = netlink.LinkDel(link)
		}
		if err != nil {
			t.Fatal(err)
		}
	})
	path := w.files.path("c-web", "eth0")
	text, _ := os.ReadFile(path)
	if err := os.WriteFile(path, []byte(strings.ReplaceAll(string(text), pod.Path(), stranger.Path())), 0o600); err != nil {
		t.Fatal(err)
	}
	w.restart()
	w.know("10.9.0.0/28", "fd09::/120")
	if err := w.sweep(); err != nil {
		t.Error(err)
	}
	w.empty("a reboot")
}

// A DEL that comes before the pod CIDRs are known succeeds, and the address is given back later.
func TestDelBeforeTheNetworkIsKnown(t *testing.T) {
	w, pod := newWorld(t), netns.NewNamed(t, "pod")
	w.mustAdd(w.request("web", pod))
	w.restart()
	if _, err := w.add(w.request("early", pod)); !errors.Is(err, ErrNotReady) || !errors.Is(w.Ready(), ErrNotReady) {
		t.Errorf("ADD before the network is known: %v, ready: %v", err, w.Ready())
	}
	if err := w.del("c-web", "eth0"); err != nil || len(w.links()) != 0 || len(w.parts.ports) != 0 {
		t.Errorf("DEL: %v, links %v, ports %v", err, w.links(), w.parts.ports)
	}
	if len(w.reserved()) == 0 {
		t.Fatal("who has given the address back?")
	}
	w.restart() // and even this is not forgotten
	w.know("10.9.0.0/28", "fd09::/120")
	if err := w.sweep(); err != nil {
		t.Error(err)
	}
	w.empty("sweeping")
}

// A file cut off by a crash is set aside, and what it spoke of is undone.
func TestFilesThatMakeNoSense(t *testing.T) {
	for name, text := range map[string]string{
		"empty": "", "cut": `{"namespace":"shop","name":"we`, "not an object": "[1]", "says nothing": "{}",
		"another's link": `{"containerID":"c-web","ifName":"eth0","hostIfName":"eth0","realised":true}`,
	} {
		t.Run(name, func(t *testing.T) {
			w, pod := newWorld(t), netns.NewNamed(t, "pod")
			w.mustAdd(w.request("web", pod))
			path := w.files.path("c-web", "eth0")
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path+unwritten, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			w.restart()
			w.know("10.9.0.0/28", "fd09::/120")
			w.parts.open = map[string]Endpoint{} // a restart opens only what it can read
			if err := w.sweep(); err != nil {
				t.Error(err)
			}
			if err := os.Remove(path + ".corrupt"); err != nil {
				t.Error(err)
			}
			w.empty("sweeping")
		})
	}
}

func TestSweepComesAgainAfterAFailure(t *testing.T) {
	w, pod := newWorld(t), netns.NewNamed(t, "pod")
	w.mustAdd(w.request("web", pod))
	w.end(pod, hostIfName("c-web", "eth0"))
	w.parts.fail["DeletePort"] = errors.New("no OVS")
	if w.sweep() == nil {
		t.Error("what could not be undone was not told")
	}
	if len(w.reserved()) == 0 {
		t.Error("the address was given back although the pod's port may be there")
	}
	clear(w.parts.fail)
	if err := w.sweep(); err != nil {
		t.Error(err)
	}
	w.empty("sweeping again")
}

// Names that look alike share neither a file nor a link, and none leads out of the directory.
func TestNamesDoNotClash(t *testing.T) {
	f := files{dir: t.TempDir(), reads: os.ReadFile}
	names := [][2]string{{"a", "b-c"}, {"a-b", "c"}, {"a.b", "c"}, {"a_b", "c"}, {"a/b", "c"}, {"../a", "c"}, {"a", "b@c"},
		{strings.Repeat("x", 300), "eth0"}, {strings.Repeat("x", 301), "eth0"}}
	paths, links := map[string]bool{}, map[string]bool{}
	for _, n := range names {
		e := bare(n[0], n[1])
		e.Name = n[0]
		if err := f.save(e); err != nil {
			t.Errorf("%q: %v", n, err)
		}
		if p := f.path(n[0], n[1]); filepath.Dir(p) != f.dir {
			t.Errorf("%q is kept as %s", n, p)
		}
		paths[f.path(n[0], n[1])], links[e.HostIfName] = true, true
	}
	if len(paths) != len(names) || len(links) != len(names) {
		t.Errorf("%d names have %d files and %d links", len(names), len(paths), len(links))
	}
	list, err := f.load()
	bad := slices.ContainsFunc(list, func(l loaded) bool { return l.corrupt || l.unread != nil })
	if len(list) != len(names) || bad || err != nil {
		t.Errorf("loaded %+v, %v", list, err)
	}
}

// Files that an older netplugin named otherwise are found, and removed under the name they have now.
func TestFilesOfOlderVersions(t *testing.T) {
	f := files{dir: t.TempDir(), reads: os.ReadFile}
	e := bare("c-web", "eth0")
	if err := f.save(e); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(f.path("c-web", "eth0"), filepath.Join(f.dir, "c-web-eth0.json")); err != nil {
		t.Fatal(err)
	}
	list, err := f.load()
	if len(list) != 1 || list[0].corrupt || list[0].unread != nil || err != nil {
		t.Fatalf("loaded %+v, %v", list, err)
	}
	if err := f.remove(list[0].endpoint); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(f.dir); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// A file of a version that knew no order is read, and what is wired after it is later.
func TestFilesWithoutAnOrder(t *testing.T) {
	w := newWorld(t)
	text := `{"namespace":"shop","name":"web","uid":"u-web","containerID":"old","ifName":"eth0","netns":"","hostIfName":"` + hostIfName("old", "eth0") + `","port":7,"mac":[2,241,10,9,0,9],"addresses":["10.9.0.9"],"realised":true}`
	if err := os.WriteFile(w.files.path("old", "eth0"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	w.restart()
	w.know("10.9.0.0/28", "fd09::/120")
	if l := w.List(); len(l) != 1 || !l[0].Realised || l[0].Order != 0 || l[0].Port != 7 {
		t.Fatalf("%+v", l)
	}
	if e := w.mustAdd(w.request("web", netns.NewNamed(t, "pod"))); e.Order == 0 || Latest(w.List())["shop/web"].ContainerID != "c-web" {
		t.Errorf("wired after it: %+v", e)
	}
}

func TestMACs(t *testing.T) {
	six := macFor(nodeNetwork.Gateways[1:])
	if six[0] != 2 || six == macFor(nil) || !slices.Equal(six[:], func() []byte { m := macFor(nodeNetwork.Gateways[1:]); return m[:] }()) {
		t.Errorf("MAC of an IPv6 pod: %s", six)
	}
}
