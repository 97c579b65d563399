package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// join writes an archive of each image into out, with the image for several architectures. Each of dirs has the
// archives for one architecture.
func join(out string, dirs []string) error {
	for _, r := range recipes {
		var layouts []tree
		for _, dir := range dirs {
			layout, err := readLayout(filepath.Join(dir, r.name+".tar"))
			if err != nil {
				return err
			}
			layouts = append(layouts, layout)
		}
		top, all, err := joined(layouts)
		if err != nil {
			return fmt.Errorf("join %s: %w", r.name, err)
		}
		archive, err := archived(all)
		if err != nil {
			return err
		}
		if err := replaceFile(filepath.Join(out, r.name+".tar"), archive); err != nil {
			return err
		}
		fmt.Printf("%s %s %s %d\n", r.name, top.Annotations[annotationName], top.Digest, len(archive))
	}
	return nil
}

// readLayout returns the files of an archive.
func readLayout(name string) (tree, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	layout, err := unpack(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return layout, nil
}

// topOf returns the one descriptor of a layout's index.json.
func topOf(layout tree) (descriptor, error) {
	var list index
	if err := json.Unmarshal(layout["index.json"].data, &list); err != nil {
		return descriptor{}, fmt.Errorf("index.json: %w", err)
	}
	if len(list.Manifests) != 1 {
		return descriptor{}, fmt.Errorf("index.json names %d manifests instead of 1", len(list.Manifests))
	}
	return list.Manifests[0], nil
}

// joined returns a layout with an index of the layouts' images, and the descriptor of that index. The images have one
// name and different architectures.
func joined(layouts []tree) (descriptor, tree, error) {
	all, list := tree{}, index{SchemaVersion: 2, MediaType: typeIndex}
	var annotations map[string]string
	for _, layout := range layouts {
		d, err := topOf(layout)
		if err != nil {
			return d, nil, err
		}
		if annotations != nil && !maps.Equal(annotations, d.Annotations) {
			return d, nil, fmt.Errorf("the images have different names: %v and %v", annotations, d.Annotations)
		}
		annotations, d.Annotations = d.Annotations, nil
		hasPlatform := func(other descriptor) bool { return *other.Platform == *d.Platform }
		if d.Platform == nil || slices.ContainsFunc(list.Manifests, hasPlatform) {
			return d, nil, fmt.Errorf("the architecture of image %s is missing or not its own", d.Digest)
		}
		list.Manifests = append(list.Manifests, d)
		maps.Copy(all, layout)
	}
	slices.SortFunc(list.Manifests, func(a, b descriptor) int {
		return cmp.Compare(a.Platform.Architecture, b.Platform.Architecture)
	})
	top, err := document(typeIndex, list, all.addBlob)
	if err != nil {
		return top, nil, err
	}
	top.Annotations = annotations
	return top, all, all.setTop(top)
}

// addBlob adds a blob to a layout, and returns its descriptor.
func (t tree) addBlob(mediaType string, data []byte) descriptor {
	d := descriptor{MediaType: mediaType, Digest: digestOf(data), Size: len(data)}
	t["blobs/sha256/"+strings.TrimPrefix(d.Digest, "sha256:")] = text(string(data))
	return d
}

// setTop writes the files oci-layout and index.json of a layout, with one descriptor.
func (t tree) setTop(top descriptor) error {
	list, err := json.Marshal(index{SchemaVersion: 2, MediaType: typeIndex, Manifests: []descriptor{top}})
	t["oci-layout"] = text(`{"imageLayoutVersion":"1.0.0"}`)
	t["index.json"] = text(string(list))
	return err
}
