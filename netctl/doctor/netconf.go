package doctor

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// NetConf is a file in the directory of CNI configurations.
type NetConf struct {
	File  string
	Name  string   // of the network
	Types []string // of its plugins, in their order
	Error string   // it could not be read
}

// flowkeepCNI is the type of Flowkeep's CNI plugin.
const flowkeepCNI = "flowkeep-cni"

func (c *NetConf) ours() bool { return slices.Contains(c.Types, flowkeepCNI) }

// IsNetConf reports whether a container runtime reads a file of this name.
func IsNetConf(file string) bool {
	return slices.ContainsFunc([]string{".conf", ".conflist", ".json"}, func(end string) bool { return strings.HasSuffix(file, end) })
}

// ParseNetConf reads a CNI configuration or a list of such.
func ParseNetConf(file string, text []byte) NetConf {
	c := NetConf{File: file}
	var conf struct {
		Name    string
		Type    string
		Plugins []struct{ Type string }
	}
	if bytes.IndexByte(text, 0) >= 0 {
		c.Error = "it is no text"
		return c
	}
	if err := json.Unmarshal(text, &conf); err != nil {
		c.Error = fmt.Sprintf("it is no CNI configuration: %v", err)
		return c
	}
	c.Name = conf.Name
	for _, p := range conf.Plugins {
		c.Types = append(c.Types, p.Type)
	}
	if conf.Type != "" {
		c.Types = append([]string{conf.Type}, c.Types...)
	}
	if len(c.Types) == 0 {
		c.Error = "it names no plugin"
	}
	return c
}

// NetConfDir is what was found in the directory, by name.
type NetConfDir struct {
	Path string
	Conf []NetConf
	More int // files that were not looked at
}

func (b *book) cni(dir *Fact[NetConfDir], links *Fact[[]Link]) {
	const check = "cni"
	if !dir.known() {
		b.unknown(check, "the directory of CNI configurations", dir.Error, "run netctl doctor node as root on the node; --cni-conf-dir names another directory")
		return
	}
	d := &dir.Value
	if d.More > 0 {
		b.add(check, Warning, fmt.Sprintf("%s has %d files more than the %d that were looked at", d.Path, d.More, len(d.Conf)), "ls "+quoted(d.Path)+", and remove what is not needed")
	}
	own := slices.IndexFunc(d.Conf, func(c NetConf) bool { return c.ours() })
	good := 0
	for i := range d.Conf {
		b.netConf(d, i, own)
		if c := &d.Conf[i]; c.Error == "" && !c.ours() {
			good++
		}
	}
	switch {
	case own >= 0:
		b.ok(check, "%s/%s is Flowkeep's", d.Path, d.Conf[own].File)
	case good == 0:
		b.ok(check, "%s has no network's configuration; netplugin writes Flowkeep's when it is ready", d.Path)
	}
	if own >= 0 && links.known() && !slices.ContainsFunc(links.Value, func(l Link) bool { return l.Name == gateway }) {
		b.add(check, Problem, fmt.Sprintf("%s/%s is there, but netplugin's interface %s is not: pods cannot be started", d.Path, d.Conf[own].File, gateway),
			"start netplugin, or netplugin clean if Flowkeep is to go")
	}
}

func (b *book) netConf(d *NetConfDir, i, own int) {
	const check = "cni"
	c := &d.Conf[i]
	path := d.Path + "/" + c.File
	away := fmt.Sprintf("mv %s %s, when no pod needs it any more", quoted(path), quoted(path+".off"))
	who := networkOf(byType, strings.TrimSpace(strings.Join(c.Types[:min(1, len(c.Types))], "")))
	if who == "" && len(c.Types) > 0 {
		who = "the plugin " + c.Types[0]
	}
	first := own < 0 && c.File < ownFile || own >= 0 && i < own
	switch {
	case c.ours():
	case c.Error != "":
		b.add(check, Warning, fmt.Sprintf("%s cannot be used: %s", path, c.Error), away)
	case len(c.Types) > 0 && c.Types[0] == "multus" && first:
		b.add(check, Note, path+" is of Multus, which has another network wire pods first", "name flowkeep as Multus' default network (clusterNetwork or delegates)")
	case first:
		b.add(check, Problem, fmt.Sprintf("%s is of %s and comes before %s: pods would be wired by it, and no policy enforced", path, who, ownFile), "remove that network from the cluster, then "+away)
	default:
		b.add(check, Warning, fmt.Sprintf("%s is of %s; it comes after %s and is not used, but would be whenever Flowkeep's is not there", path, who, ownFile), away)
	}
}

// ownFile is where netplugin's configuration is.
const ownFile = "10-flowkeep.conflist"

// ErrNoFile is said of what is no ordinary file.
var ErrNoFile = errors.New("it is no ordinary file")
