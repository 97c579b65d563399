package main

import (
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
)

// recipe says what is in an image. Layers come from what changes seldom to what changes with each commit; layers with the same content are
// the same layer, which a node has once.
type recipe struct {
	name, title, licenses string
	config                config
	layers                []layerRecipe
}

func (r *recipe) reference(registry, version string) string {
	return registry + "/" + r.name + ":" + version
}

// layerRecipe is files of one kind: made here, programs of Go, or out of Debian's packages with the libraries that they need.
type layerRecipe struct {
	made     tree
	programs map[string]string // path in the image → name of the program
	licenses bool              // the licenses of the modules of all programs are in this layer
	debian   []string          // packages: their programs and files named by wanted, and what of the others these need
	wanted   []string          // paths
}

// libraries that are loaded by name, so that no program's header tells of them.
const threadExit = "lib/*/libgcc_s.so.1" // by pthread_exit(3)

// Where programs are: those of CNI where "netplugin install" looks for them.
const programDir, pluginDir = "usr/bin", "usr/libexec/flowkeep/cni"

// libc is what each program of Debian's needs.
var libc = []string{"libc6", "libgcc-s1", "gcc-12-base"}

var (
	base      = layerRecipe{made: root, debian: libc, wanted: []string{threadExit}}
	netplugin = layerRecipe{programs: map[string]string{programDir + "/netplugin": "netplugin"}, licenses: true}
)

var recipes = []recipe{
	{
		name: "flowkeep", title: "Flowkeep", licenses: "Apache-2.0 AND GPL-2.0-or-later AND LGPL-2.1-or-later",
		// netplugin needs root, and its pods say so; whatever else is run is nobody.
		config: config{User: "65532:65532", Env: []string{"PATH=/usr/bin:/usr/sbin"}, Cmd: []string{"/usr/bin/netctl", "--help"}},
		layers: []layerRecipe{
			base,
			netplugin,
			{ // netplugin sets the node's rules by nft(8)
				debian: append([]string{"nftables", "libnftables1", "libedit2", "libmnl0", "libnftnl11", "libxtables12", "libjansson4", "libgmp10",
					"libtinfo6", "libbsd0", "libmd0"}, libc...),
				wanted: []string{"usr/sbin/nft"},
			},
			{programs: map[string]string{
				programDir + "/netmaster": "netmaster", programDir + "/netctl": "netctl",
				pluginDir + "/flowkeep-cni": "flowkeep-cni", pluginDir + "/macvtap": "macvtap", pluginDir + "/flowkeep-portmap": "flowkeep-portmap",
			}},
		},
	},
	{
		name: "openvswitch", title: "Open vSwitch for Flowkeep", licenses: "Apache-2.0 AND LGPL-2.1-or-later AND BSD-3-Clause",
		config: config{User: "0:0", Env: []string{"PATH=/usr/bin:/usr/sbin"}, Entrypoint: []string{"/usr/bin/netplugin", "switch"}},
		layers: []layerRecipe{
			base,
			netplugin,
			{
				made: tree{"usr/sbin/ovs-vswitchd": symlink("../lib/openvswitch-switch/ovs-vswitchd")},
				debian: append([]string{"openvswitch-switch", "openvswitch-common", "libbpf1", "libcap-ng0", "libelf1", "libevent-2.1-7", "libgmp10",
					"libhogweed6", "libnettle8", "libnuma1", "libssl3", "libunbound8", "libxdp1", "zlib1g"}, libc...),
				wanted: []string{
					"usr/lib/openvswitch-switch/ovs-vswitchd", "usr/sbin/ovsdb-server", "usr/share/openvswitch/vswitch.ovsschema",
					"usr/bin/ovsdb-tool", "usr/bin/ovsdb-client", "usr/bin/ovs-vsctl", "usr/bin/ovs-appctl", "usr/bin/ovs-ofctl", "usr/bin/ovs-dpctl",
				},
			},
		},
	},
	{
		name: "memcached", title: "Memcached for Flowkeep", licenses: "BSD-3-Clause AND Apache-2.0 AND BSD-4-Clause",
		config: config{User: "65532:65532", Env: []string{"PATH=/usr/bin:/usr/sbin"}, Entrypoint: []string{"/usr/bin/memcached"}},
		layers: []layerRecipe{
			base,
			{
				debian: append([]string{"memcached", "libevent-2.1-7", "libsasl2-2", "libssl3"}, libc...),
				wanted: []string{"usr/bin/memcached"},
			},
		},
	},
}

// root is what a file system needs so that programs find themselves at home.
var root = tree{
	"etc/passwd":        text("root:x:0:0:root:/:/nologin\nnobody:x:65532:65532:nobody:/:/nologin\n"),
	"etc/group":         text("root:x:0:\nnobody:x:65532:\n"),
	"etc/nsswitch.conf": text("passwd: files\ngroup: files\nhosts: files dns\n"),
	"run":               directory(0o755),
	"tmp":               directory(0o1777),
	"var/run":           symlink("/run"),
	"var/lib/flowkeep":  directory(0o755),
	"var/log":           directory(0o755),
}

// packagesOf returns the names of all Debian packages that the recipes need.
func packagesOf(list []recipe) []string {
	names := map[string]bool{}
	for _, r := range list {
		for _, l := range r.layers {
			for _, name := range l.debian {
				names[name] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// contents are an image's layers, and what went into them.
type contents struct {
	layers   []tree
	programs []program
	debian   []*debianPackage // those of which something is in the image
}

// contents puts a recipe's layers together. A file is in one layer only, and every program finds its libraries.
func (b *build) contents(r *recipe, debian *packages) (*contents, error) {
	out, all := new(contents), tree{}
	for _, l := range r.layers {
		layer := maps.Clone(l.made)
		if layer == nil {
			layer = tree{}
		}
		for _, at := range slices.Sorted(maps.Keys(l.programs)) {
			p, err := readProgram(filepath.Join(b.programs, l.programs[at]))
			if err != nil {
				return nil, err
			}
			p.path = at
			out.programs = append(out.programs, *p)
			layer[at] = executable(p.data)
		}
		if l.licenses {
			data, err := os.ReadFile(filepath.Join(b.programs, "licenses.txt"))
			if err != nil {
				return nil, err
			}
			layer[documentation("flowkeep")+"/licenses.txt"] = text(string(data))
		}
		if err := debian.pick(l.debian, l.wanted, all, layer); err != nil {
			return nil, err
		}
		for at, f := range layer {
			if _, twice := all[at]; twice {
				return nil, fmt.Errorf("%s is in two layers", at)
			}
			all[at] = f
		}
		out.layers = append(out.layers, layer)
	}
	for _, name := range debian.names() {
		if _, in := all[statusDir+"/"+name]; in {
			out.debian = append(out.debian, debian.byName[name])
		}
	}
	return out, complete(all)
}

// statusDir holds what Debian says of each package, where scanners look for it in images without dpkg.
const statusDir = "var/lib/dpkg/status.d"

func documentation(name string) string { return path.Join("usr/share/doc", name) }
