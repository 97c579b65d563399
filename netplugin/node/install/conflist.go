package install

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
)

const (
	// cniVersion is the version of the CNI specification for runtimes that do not read the list of versions. containerd
	// 1.6 accepts no result of a later one.
	cniVersion  = "1.0.0"
	versionsKey = "cniVersions"
)

// cniVersions are the versions of netplugin's own plugins. A runtime of CNI 1.1 takes the latest one that it knows,
// sends it to each plugin of the list, and from 1.1.0 on also sends the commands GC and STATUS to each.
var cniVersions = []string{cniVersion, "1.1.0"}

// ownPlugin is an entry of the list of plugins that netplugin owns.
type ownPlugin struct {
	Type         string          `json:"type"`
	Socket       string          `json:"socket,omitempty"`
	Capabilities map[string]bool `json:"capabilities,omitempty"`
	Backend      string          `json:"backend,omitempty"`
	SNAT         bool            `json:"snat,omitempty"`
}

// ownPlugins returns netplugin's entries in their order: the first attaches the pod through netplugin's socket, the
// second redirects ports of the node to it. Where portmap's backend is named, netplugin is sent the pod's port mappings
// too, so that it can repeat portmap's ADD.
func ownPlugins(socket, backend string) []ownPlugin {
	attach := ownPlugin{Type: Plugin, Socket: socket, Capabilities: map[string]bool{"bandwidth": true}}
	if backend != "" {
		attach.Capabilities[portMappings] = true
	}
	return []ownPlugin{
		attach,
		{Type: Portmap, Capabilities: map[string]bool{portMappings: true}, Backend: backend, SNAT: true},
	}
}

// portMappings is the CNI capability of a pod's hostPorts.
const portMappings = "portMappings"

// Configuration returns the network of pods as container runtimes read it, with netplugin's entries alone.
func Configuration(socket, backend string) []byte {
	list, _, err := Merge([]byte(`{}`), socket, backend, true)
	if err != nil {
		panic(err) // strings and booleans
	}
	return list
}

// Merge returns a configuration with netplugin's entries as they should be, and with the entries of other programs as
// they are: istio-cni, linkerd-cni and others append a plugin to the list of the network that they find. The entry
// that attaches the pod is the first, because chained plugins need its result. The configuration lists CNI 1.1 only
// without entries of other programs: a plugin that does not know it refuses ADD and STATUS, and no pod would start. Nor
// does it where the container runtime does not read it by itself (isRead false): Multus passes on results of 1.1, which
// an older runtime does not accept. Changed is false if the configuration is as it should be, however it is written. A
// text that is no list of plugins is an error.
func Merge(have []byte, socket, backend string, isRead bool) (list []byte, changed bool, err error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(have, &fields); err != nil {
		return nil, false, fmt.Errorf("parse the CNI configuration: %w", err)
	}
	var before []json.RawMessage
	if text, ok := fields["plugins"]; ok {
		if err := json.Unmarshal(text, &before); err != nil {
			return nil, false, fmt.Errorf("parse the plugins of the CNI configuration: %w", err)
		}
	}
	plugins, chained, err := mergePlugins(before, socket, backend)
	if err != nil {
		return nil, false, err
	}
	want := maps.Clone(fields)
	if want == nil {
		want = map[string]json.RawMessage{}
	}
	want["cniVersion"], want["name"] = encode(cniVersion), encode("flowkeep")
	delete(want, "plugins")
	if want[versionsKey] = encode(cniVersions); chained || !isRead {
		delete(want, versionsKey)
	}
	list, err = indented(want, plugins)
	if err != nil {
		return nil, false, err
	}
	return list, !sameJSON(have, list), nil
}

// mergePlugins returns the entries in the order of the configuration, and whether any is another program's.
func mergePlugins(before []json.RawMessage, socket, backend string) (list []json.RawMessage, chained bool, err error) {
	own := map[string]json.RawMessage{}
	for _, p := range ownPlugins(socket, backend) {
		own[p.Type] = encode(p)
	}
	list = append(list, own[Plugin])
	portmap := false
	for _, entry := range before {
		var kind struct {
			Type string `json:"type"`
		}
		if err := json.Unmarshal(entry, &kind); err != nil || kind.Type == "" {
			return nil, false, fmt.Errorf("plugin %s of the CNI configuration has no type", entry)
		}
		switch {
		case kind.Type == Plugin || kind.Type == Portmap && portmap:
		case kind.Type == Portmap:
			portmap = true
			list = append(list, own[Portmap])
		default:
			chained = true
			list = append(list, entry)
		}
	}
	if !portmap {
		list = slices.Insert(list, 1, own[Portmap])
	}
	return list, chained, nil
}

// others returns the types of the plugins in a configuration that are not netplugin's.
func others(list []byte) (types []string) {
	for _, t := range pluginTypes(list) {
		if t != Plugin && t != Portmap {
			types = append(types, t)
		}
	}
	return types
}

// pluginTypes returns the types of the plugins in a configuration, none if it is not valid.
func pluginTypes(list []byte) (types []string) {
	for _, p := range pluginsOf(list) {
		types = append(types, p.Type)
	}
	return types
}

// pluginsOf returns what is of use here of the plugins in a configuration, none if it is not valid.
func pluginsOf(list []byte) []ownPlugin {
	var conf struct {
		Plugins []ownPlugin `json:"plugins"`
	}
	if json.Unmarshal(list, &conf) != nil {
		return nil
	}
	return conf.Plugins
}

func encode(v any) json.RawMessage {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // strings and booleans
	}
	return text
}

// indented returns the configuration's text: version and name, then fields that netplugin does not know, then the
// plugins.
func indented(fields map[string]json.RawMessage, plugins []json.RawMessage) ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	rest := slices.DeleteFunc(slices.Sorted(maps.Keys(fields)), func(k string) bool {
		return k == "cniVersion" || k == "name"
	})
	for _, key := range slices.Concat([]string{"cniVersion", "name"}, rest) {
		fmt.Fprintf(&b, "%s:%s,", encode(key), fields[key])
	}
	fmt.Fprintf(&b, `"plugins":%s}`, encode(plugins))
	var out bytes.Buffer
	if err := json.Indent(&out, b.Bytes(), "", "  "); err != nil {
		return nil, fmt.Errorf("write the CNI configuration: %w", err)
	}
	out.WriteByte('\n')
	return out.Bytes(), nil
}

// sameJSON reports whether two texts are the same value.
func sameJSON(a, b []byte) bool {
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && reflect.DeepEqual(x, y)
}
