package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/flowkeep/flowkeep/api/wellknown"
	"sigs.k8s.io/yaml"
)

// reader reads the API server's own objects; only the way through it does.
type reader interface {
	Get(ctx context.Context, path string, params url.Values, most int64) ([]byte, error)
}

// kinds are the objects that policies are resolved from, and those that Flowkeep writes. Pods are in
// state/endpoints.json: their specifications have environment variables, which may be secret.
var kinds = []struct {
	name, path string
	params     url.Values
	clean      func(object map[string]any)
}{
	{"networkpolicies", "/apis/networking.k8s.io/v1/networkpolicies", nil, func(o map[string]any) { only(o, "metadata", "spec") }},
	{"namespaces", "/api/v1/namespaces", nil, func(o map[string]any) { only(o, "metadata") }},
	{"nodes", "/api/v1/nodes", nil, cleanNode},
	{"events", "/api/v1/events", url.Values{"fieldSelector": {"source=" + wellknown.NetmasterEvents}}, func(map[string]any) {}},
}

// cleanNode leaves of a Node what the network needs to know.
func cleanNode(o map[string]any) {
	only(o, "metadata", "spec", "status")
	if st, ok := o["status"].(map[string]any); ok {
		only(st, "addresses", "conditions", "nodeInfo")
	}
}

func only(object map[string]any, keys ...string) {
	for key := range object {
		keep := false
		for _, k := range keys {
			keep = keep || k == key
		}
		if !keep {
			delete(object, key)
		}
	}
}

func (b *bundleOptions) objects(ctx context.Context) error {
	r, ok := b.way.(reader)
	if !ok {
		b.lacks("objects", errors.New("this is a direct connection to netmaster: only the API server has objects (leave out --server)"))
		return nil
	}
	fmt.Fprintln(b.say, "objects of the API server")
	if text, err := b.read(ctx, r, "/version", nil); err != nil {
		b.lacks("objects/kubernetes-version.json", err)
	} else if err := b.archive.add("objects/kubernetes-version.json", text); err != nil {
		return err
	}
	for _, k := range kinds {
		name := "objects/" + k.name + ".yaml"
		text, err := b.list(ctx, r, k.path, k.params, k.clean)
		if err != nil {
			b.lacks(name, err)
			continue
		}
		if err := b.archive.add(name, text); err != nil {
			return err
		}
	}
	return nil
}

func (b *bundleOptions) read(ctx context.Context, r reader, path string, params url.Values) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	return r.Get(ctx, path, params, mostObjects)
}

// list reads all objects, in parts, and writes them as YAML.
func (b *bundleOptions) list(ctx context.Context, r reader, path string, params url.Values, clean func(map[string]any)) ([]byte, error) {
	var items []any
	size := 0
	query := url.Values{"limit": {"500"}}
	for key, values := range params {
		query[key] = values
	}
	for {
		text, err := b.read(ctx, r, path, query)
		if err != nil {
			return nil, err
		}
		if size += len(text); size > mostObjects {
			return nil, fmt.Errorf("they are more than %d MiB", mostObjects>>20)
		}
		var list struct {
			Metadata struct {
				Continue string `json:"continue"`
			} `json:"metadata"`
			Items []map[string]any `json:"items"`
		}
		if err := json.Unmarshal(text, &list); err != nil {
			return nil, fmt.Errorf("read %s: %w", path, err)
		}
		for _, o := range list.Items {
			cleanObject(o)
			clean(o)
			items = append(items, o)
		}
		if list.Metadata.Continue == "" {
			return yaml.Marshal(map[string]any{"items": items})
		}
		query.Set("continue", list.Metadata.Continue)
	}
}

// cleanObject takes out who changed what when, and annotations that are not ours: anybody keeps anything in them.
func cleanObject(o map[string]any) {
	meta, ok := o["metadata"].(map[string]any)
	if !ok {
		return
	}
	delete(meta, "managedFields")
	if annotations, ok := meta["annotations"].(map[string]any); ok {
		for key := range annotations {
			if !strings.HasPrefix(key, wellknown.Prefix) {
				delete(annotations, key)
			}
		}
	}
}
