package main

import (
	"encoding/json"
	"regexp"
	"strings"
	"time"
)

// The OCI image specification 1.1: media types, and of its documents what is needed here.
const (
	typeIndex    = "application/vnd.oci.image.index.v1+json"
	typeManifest = "application/vnd.oci.image.manifest.v1+json"
	typeConfig   = "application/vnd.oci.image.config.v1+json"
	typeLayer    = "application/vnd.oci.image.layer.v1.tar+gzip"

	annotationName = "io.containerd.image.name"
	annotationTag  = "org.opencontainers.image.ref.name"
)

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
	Platform    *platform         `json:"platform,omitempty"`
}

type platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

type index struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Manifests     []descriptor `json:"manifests"`
}

type manifest struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Config        descriptor   `json:"config"`
	Layers        []descriptor `json:"layers"`
}

// config is how the image is run if nothing else is said.
type config struct {
	User       string            `json:"User,omitempty"`
	Env        []string          `json:"Env,omitempty"`
	Entrypoint []string          `json:"Entrypoint,omitempty"`
	Cmd        []string          `json:"Cmd,omitempty"`
	Labels     map[string]string `json:"Labels,omitempty"`
}

type imageConfig struct {
	Created string `json:"created"`
	platform
	Config config `json:"config"`
	RootFS struct {
		Type    string   `json:"type"`
		DiffIDs []string `json:"diff_ids"`
	} `json:"rootfs"`
}

// image is what becomes an archive.
type image struct {
	name, arch string
	created    time.Time
	config     config
	labels     map[string]string
	layers     []*packed
}

var tag = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$`)

func isTag(s string) bool { return tag.MatchString(s) }

// archive returns the image as an OCI layout in a tar, and the digest of its manifest.
func (img *image) archive() (digest string, archive []byte, err error) {
	files := tree{}
	add := files.addBlob
	p := platform{Architecture: img.arch, OS: "linux"}
	c := imageConfig{Created: img.created.Format(time.RFC3339), platform: p, Config: img.config}
	c.Config.Labels = img.labels
	c.RootFS.Type = "layers"
	m := manifest{SchemaVersion: 2, MediaType: typeManifest}
	for _, l := range img.layers {
		c.RootFS.DiffIDs = append(c.RootFS.DiffIDs, l.diffID)
		m.Layers = append(m.Layers, add(typeLayer, l.data))
	}
	if m.Config, err = document(typeConfig, c, add); err != nil {
		return "", nil, err
	}
	top, err := document(typeManifest, m, add)
	if err != nil {
		return "", nil, err
	}
	digest = top.Digest
	top.Platform = &p
	top.Annotations = map[string]string{ // containerd's name of it, and everybody else's
		annotationName: img.name, annotationTag: img.name[strings.LastIndex(img.name, ":")+1:],
	}
	if err := files.setTop(top); err != nil {
		return "", nil, err
	}
	archive, err = archived(files)
	return digest, archive, err
}

func document(mediaType string, v any, add func(string, []byte) descriptor) (descriptor, error) {
	data, err := json.Marshal(v)
	return add(mediaType, data), err
}
