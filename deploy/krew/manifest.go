package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"regexp"
	"strings"

	"sigs.k8s.io/yaml"
)

// pluginName is the name after "kubectl".
const pluginName = "flowkeep"

var (
	semver      = regexp.MustCompile(`^v(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?$`)
	downloadURL = regexp.MustCompile(`^https://[^/\s]+(/[^/\s]+)*$`)
)

// manifest is krew's kind Plugin.
type manifest struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Metadata   metadata `json:"metadata"`
	Spec       spec     `json:"spec"`
}

type metadata struct {
	Name string `json:"name"`
}

type spec struct {
	Version          string   `json:"version"`
	ShortDescription string   `json:"shortDescription"`
	Description      string   `json:"description"`
	Caveats          string   `json:"caveats"`
	Platforms        []target `json:"platforms"`
}

type target struct {
	Selector selector `json:"selector"`
	URI      string   `json:"uri"`
	SHA256   string   `json:"sha256"`
	Bin      string   `json:"bin"`
	Files    []move   `json:"files"`
}

type selector struct {
	MatchLabels map[string]string `json:"matchLabels"`
}

// move is a file of the archive, and the directory to which it goes.
type move struct {
	From string `json:"from"`
	To   string `json:"to"`
}

const description = `Shows which NetworkPolicies are in force on the nodes of a cluster with
Flowkeep, and why a connection is allowed or denied: status, explain, matrix,
drops, trace, diff, lint.
`

const caveats = `The cluster needs Flowkeep; lint works without it.
Who may query what depends on roles: flowkeep-view is a ClusterRole.
`

// manifestOf returns the manifest for archives with these sums below a URL.
func manifestOf(version, url string, sums map[platform]string) ([]byte, error) {
	m := manifest{
		APIVersion: "krew.googlecontainertools.github.com/v1alpha2",
		Kind:       "Plugin",
		Metadata:   metadata{Name: pluginName},
		Spec: spec{
			Version:          version,
			ShortDescription: "Explain NetworkPolicies enforced by Flowkeep",
			Description:      description,
			Caveats:          caveats,
		},
	}
	for _, p := range platforms {
		m.Spec.Platforms = append(m.Spec.Platforms, target{
			Selector: selector{MatchLabels: map[string]string{"os": p.os, "arch": p.arch}},
			URI:      url + "/" + p.archive(version),
			SHA256:   sums[p],
			Bin:      p.program(),
			Files:    []move{{From: p.program(), To: "."}, {From: "LICENSE", To: "."}},
		})
	}
	text, err := yaml.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode the manifest: %w", err)
	}
	return text, nil
}

// program returns the name of netctl in the archive, by which kubectl finds it.
func (p platform) program() string {
	if p.os == "windows" {
		return "kubectl-" + pluginName + ".exe"
	}
	return "kubectl-" + pluginName
}

// archive returns the name of the archive.
func (p platform) archive(version string) string {
	suffix := ".tar.gz"
	if p.os == "windows" {
		suffix = ".zip"
	}
	return strings.Join([]string{"kubectl-" + pluginName, version, p.os, p.arch}, "-") + suffix
}

// member is a file of an archive.
type member struct {
	name string
	mode fs.FileMode
	data []byte
}

// pack returns the archive of the program and the license.
func (p platform) pack(program, license []byte) ([]byte, error) {
	members := []member{{p.program(), 0o755, program}, {"LICENSE", 0o644, license}}
	if p.os == "windows" {
		return zipOf(members)
	}
	return tarOf(members)
}

func tarOf(members []member) ([]byte, error) {
	var out bytes.Buffer
	packed := gzip.NewWriter(&out)
	files := tar.NewWriter(packed)
	for _, m := range members {
		header := &tar.Header{Name: m.name, Mode: int64(m.mode), Size: int64(len(m.data)), Format: tar.FormatUSTAR}
		if err := files.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := files.Write(m.data); err != nil {
			return nil, err
		}
	}
	if err := files.Close(); err != nil {
		return nil, err
	}
	if err := packed.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

func zipOf(members []member) ([]byte, error) {
	var out bytes.Buffer
	files := zip.NewWriter(&out)
	for _, m := range members {
		header := &zip.FileHeader{Name: m.name, Method: zip.Deflate}
		header.SetMode(m.mode)
		w, err := files.CreateHeader(header)
		if err != nil {
			return nil, err
		}
		if _, err := w.Write(m.data); err != nil {
			return nil, err
		}
	}
	if err := files.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

func sumOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
