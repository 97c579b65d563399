package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"path"
	"regexp"
	"runtime/debug"
	"strings"
	"time"
)

// SPDX 2.3, as JSON.
type spdx struct {
	Version       string         `json:"spdxVersion"`
	DataLicense   string         `json:"dataLicense"`
	ID            string         `json:"SPDXID"`
	Name          string         `json:"name"`
	Namespace     string         `json:"documentNamespace"`
	Creation      spdxCreation   `json:"creationInfo"`
	Packages      []spdxPackage  `json:"packages"`
	Relationships []spdxRelation `json:"relationships"`
	known         map[string]bool
}

type spdxCreation struct {
	Created  string   `json:"created"`
	Creators []string `json:"creators"`
}

type spdxPackage struct {
	ID               string         `json:"SPDXID"`
	Name             string         `json:"name"`
	Version          string         `json:"versionInfo,omitempty"`
	FileName         string         `json:"packageFileName,omitempty"`
	Source           string         `json:"sourceInfo,omitempty"`
	Purpose          string         `json:"primaryPackagePurpose,omitempty"`
	Download         string         `json:"downloadLocation"`
	FilesAnalyzed    bool           `json:"filesAnalyzed"`
	Checksums        []spdxChecksum `json:"checksums,omitempty"`
	LicenseConcluded string         `json:"licenseConcluded"`
	LicenseDeclared  string         `json:"licenseDeclared"`
	Copyright        string         `json:"copyrightText"`
	References       []spdxRef      `json:"externalRefs,omitempty"`
}

type spdxChecksum struct {
	Algorithm string `json:"algorithm"`
	Value     string `json:"checksumValue"`
}

type spdxRef struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

type spdxRelation struct {
	From string `json:"spdxElementId"`
	Type string `json:"relationshipType"`
	To   string `json:"relatedSpdxElement"`
}

const spdxDocument = "SPDXRef-DOCUMENT"

// document returns the SPDX document of an image: its programs with the modules in their build information, and
// Debian's packages.
func (b *build) document(r *recipe, c *contents, digest string) ([]byte, error) {
	name := r.name + "-" + b.version
	d := &spdx{
		Version: "SPDX-2.3", DataLicense: "CC0-1.0", ID: spdxDocument, Name: name,
		Namespace: "https://github.com/flowkeep/flowkeep/spdx/" + name + "-" + strings.TrimPrefix(digest, "sha256:"),
		Creation:  spdxCreation{Created: b.created.Format(time.RFC3339), Creators: []string{"Tool: flowkeep-images-" + b.version}},
		known:     map[string]bool{},
	}
	image := d.add(spdxPackage{
		Name: r.reference(b.registry, b.version), Version: b.version, Purpose: "CONTAINER", LicenseDeclared: r.licenses,
		Checksums: []spdxChecksum{{"SHA256", strings.TrimPrefix(digest, "sha256:")}},
	}, "image", r.name)
	d.relate(spdxDocument, "DESCRIBES", image)
	for i := range c.programs {
		d.relate(image, "CONTAINS", d.program(&c.programs[i], b.version))
	}
	for _, p := range c.debian {
		d.relate(image, "CONTAINS", d.add(spdxPackage{
			Name: p.name, Version: p.version, Purpose: "LIBRARY", Source: "built from Debian's source package " + cmp.Or(p.source, p.name),
			Checksums:  []spdxChecksum{{"SHA256", p.sum}},
			References: packageURL(fmt.Sprintf("pkg:deb/debian/%s@%s?arch=%s", p.name, urlVersion(p.version), p.arch)),
		}, "deb", p.name, p.version))
	}
	out, err := json.MarshalIndent(d, "", " ")
	return append(out, '\n'), err
}

// program adds a program, and the modules that it is made of, the standard library too.
func (d *spdx) program(p *program, version string) string {
	if v := p.info.Main.Version; v != "" && v != "(devel)" {
		version = v
	}
	id := d.add(spdxPackage{
		Name: path.Base(p.path), Version: version, FileName: "/" + p.path, Purpose: "APPLICATION", Source: "built from " + p.info.Path,
		Checksums: []spdxChecksum{{"SHA256", sumOf(p.data)}},
	}, "program", p.path)
	standard := &debug.Module{Path: "stdlib", Version: strings.TrimPrefix(p.info.GoVersion, "go")}
	for _, m := range append(p.info.Deps, standard) {
		if m.Replace != nil {
			m = m.Replace
		}
		d.relate(id, "DEPENDS_ON", d.add(spdxPackage{
			Name: m.Path, Version: m.Version, Purpose: "LIBRARY", References: packageURL("pkg:golang/" + m.Path + "@" + urlVersion(m.Version)),
		}, "go", m.Path, m.Version))
	}
	return id
}

// add adds a package, once, under an identifier made of words.
func (d *spdx) add(p spdxPackage, words ...string) string {
	p.ID = "SPDXRef-" + notInIdentifier.ReplaceAllString(strings.Join(words, "-"), "-")
	if !d.known[p.ID] {
		d.known[p.ID] = true
		const unknown = "NOASSERTION"
		p.Download, p.LicenseConcluded, p.LicenseDeclared, p.Copyright = unknown, unknown, cmp.Or(p.LicenseDeclared, unknown), unknown
		d.Packages = append(d.Packages, p)
	}
	return p.ID
}

func (d *spdx) relate(from, kind, to string) {
	d.Relationships = append(d.Relationships, spdxRelation{from, kind, to})
}

var notInIdentifier = regexp.MustCompile(`[^A-Za-z0-9.]+`)

func packageURL(url string) []spdxRef { return []spdxRef{{"PACKAGE-MANAGER", "purl", url}} }

func urlVersion(v string) string { return strings.NewReplacer("+", "%2B", ":", "%3A").Replace(v) }
