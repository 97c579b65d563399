package doctor

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// Runtime is a configuration of a container runtime: where it looks for what wires pods. Empty: where most do.
type Runtime struct {
	File             string
	ConfDir, BinDirs []string
	Error            string
}

// Where container runtimes look unless they are told otherwise.
const (
	usualConfDir = "/etc/cni/net.d"
	usualBinDir  = "/opt/cni/bin"
)

// runtimeKeys are what containerd and CRI-O call these directories; each may be a list.
var runtimeKeys = map[string]func(*Runtime) *[]string{
	"conf_dir": func(r *Runtime) *[]string { return &r.ConfDir }, "network_dir": func(r *Runtime) *[]string { return &r.ConfDir },
	"bin_dir": func(r *Runtime) *[]string { return &r.BinDirs }, "bin_dirs": func(r *Runtime) *[]string { return &r.BinDirs },
	"plugin_dirs": func(r *Runtime) *[]string { return &r.BinDirs },
}

// ParseRuntime reads the directories out of containerd's or CRI-O's configuration, of which nothing else counts. Names with variables are passed over.
func ParseRuntime(file, text string) Runtime {
	r := Runtime{File: file}
	var list *[]string // that goes on in the next line
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		value := line
		if key, rest, is := strings.Cut(line, "="); is {
			list = nil
			if of := runtimeKeys[strings.TrimSpace(key)]; of != nil {
				list, value = of(&r), rest
			}
		}
		if list == nil {
			continue
		}
		for _, word := range strings.FieldsFunc(value, func(c rune) bool { return strings.ContainsRune("\"' \t\n,[]", c) }) {
			if strings.HasPrefix(word, "/") {
				*list = append(*list, path.Clean(word))
			}
		}
		if strings.Contains(value, "]") || !strings.Contains(value, "[") && value != line {
			list = nil
		}
	}
	return r
}

// runtimes: where none looks Flowkeep's configuration and plugins would never be found.
func (b *book) runtimes(f *NodeFacts) {
	const check = "cni"
	for _, d := range []struct {
		have, usual, what, value, flag string
		of                             func(*Runtime) []string
	}{
		{f.CNI.Value.Path, usualConfDir, "configurations", "netplugin.cniConfDir", "--cni-conf-dir", func(r *Runtime) []string { return r.ConfDir }},
		{f.BinDir, usualBinDir, "plugins", "netplugin.cniBinDir", "--cni-bin-dir", func(r *Runtime) []string { return r.BinDirs }},
	} {
		var agrees bool
		var others []string
		for i := range f.Runtimes {
			r := &f.Runtimes[i]
			if r.Error != "" || d.have == "" {
				continue
			}
			dirs := d.of(r)
			if len(dirs) == 0 {
				dirs = []string{d.usual}
			}
			if slices.Contains(dirs, path.Clean(d.have)) {
				agrees = true
				continue
			}
			seen := fmt.Sprintf("by %s the container runtime looks for CNI %s in %s, and not in %s", r.File, d.what, strings.Join(dirs, ", "), d.have)
			do := fmt.Sprintf("helm install … --set %s=%s; or change %s and restart the runtime. Where that is how Flowkeep is installed: %s %s", d.value, quoted(dirs[0]), r.File, d.flag, quoted(dirs[0]))
			others = append(others, seen, do)
		}
		for i := 0; i < len(others); i += 2 {
			if agrees {
				b.add(check, Note, others[i]+"; another runtime does", "if the kubelet uses this one: "+others[i+1])
			} else {
				b.add(check, Problem, others[i]+": Flowkeep's would not be found", others[i+1])
			}
		}
	}
	for i := range f.Runtimes {
		if r := &f.Runtimes[i]; r.Error != "" {
			b.unknown(check, r.File+", which tells where the container runtime looks for CNI configurations and plugins,", r.Error, "run netctl doctor node as root")
		}
	}
}
