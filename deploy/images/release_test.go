package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

const imageName = "example.org/a/flowkeep:v1"

// layoutOf returns the layout of an image for an architecture, without layers.
func layoutOf(t *testing.T, name, arch string) tree {
	t.Helper()
	img := image{name: name, arch: arch, created: time.Unix(1e9, 0).UTC()}
	_, archive, err := img.archive()
	if err != nil {
		t.Fatal(err)
	}
	return readArchive(t, archive)
}

// blob decodes a blob of a layout.
func blob(t *testing.T, layout tree, d descriptor, v any) []byte {
	t.Helper()
	data := layout["blobs/"+strings.Replace(d.Digest, ":", "/", 1)].data
	if digestOf(data) != d.Digest || len(data) != d.Size {
		t.Fatalf("%s is %s with %d bytes", d.Digest, digestOf(data), len(data))
	}
	if err := json.Unmarshal(data, v); err != nil {
		t.Fatal(err)
	}
	return data
}

func TestJoined(t *testing.T) {
	top, layout, err := joined([]tree{layoutOf(t, imageName, "arm64"), layoutOf(t, imageName, "amd64")})
	if err != nil {
		t.Fatal(err)
	}
	if d, err := topOf(layout); err != nil || d.Digest != top.Digest || d.Annotations[annotationName] != imageName || d.MediaType != typeIndex {
		t.Errorf("index.json has %+v (%v)", d, err)
	}
	var list index
	blob(t, layout, top, &list)
	var archs []string
	for _, d := range list.Manifests {
		var m manifest
		var c imageConfig
		blob(t, layout, d, &m)
		blob(t, layout, m.Config, &c)
		if d.Platform.Architecture != c.Architecture || len(d.Annotations) > 0 {
			t.Errorf("%+v is an image for %s", d, c.Architecture)
		}
		archs = append(archs, c.Architecture)
	}
	if strings.Join(archs, " ") != "amd64 arm64" {
		t.Errorf("the index has images for %v", archs)
	}
}

func TestJoined_Refuses(t *testing.T) {
	one := layoutOf(t, imageName, "amd64")
	_, both, err := joined([]tree{one, layoutOf(t, imageName, "arm64")})
	if err != nil {
		t.Fatal(err)
	}
	for name, layouts := range map[string][]tree{
		"one architecture twice":       {one, one},
		"different names":              {one, layoutOf(t, imageName+"2", "arm64")},
		"an index instead of an image": {both, one},
		"no layout":                    {one, {}},
	} {
		t.Run(name, func(t *testing.T) {
			if top, _, err := joined(layouts); err == nil {
				t.Errorf("joined to %+v", top)
			}
		})
	}
}
