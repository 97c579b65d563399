package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
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

// writeKey writes a private key to a file.
func writeKey(t *testing.T, key any) string {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return writeFile(t, "key.pem", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

func writeFile(t *testing.T, name string, data []byte) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestSignImages signs an image as a release does, and verifies the signature as cosign does.
func TestSignImages(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	_, layout, err := joined([]tree{layoutOf(t, imageName, "amd64"), layoutOf(t, imageName, "arm64")})
	if err != nil {
		t.Fatal(err)
	}
	archive, err := archived(layout)
	if err != nil {
		t.Fatal(err)
	}
	file := writeFile(t, "flowkeep.tar", archive)
	signs := func() []byte {
		t.Helper()
		if err := run([]string{"sign", writeKey(t, key), file}); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(strings.TrimSuffix(file, ".tar") + ".sig.tar")
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	image := signs()
	signed, _ := topOf(layout)
	signature := readArchive(t, image)
	top, err := topOf(signature)
	if tag := "sha256-" + signed.Digest[7:] + ".sig"; err != nil || top.Annotations[annotationName] != "example.org/a/flowkeep:"+tag {
		t.Errorf("the signature is called %v (%v), want the tag %s", top.Annotations, err, tag)
	}
	var m manifest
	blob(t, signature, top, &m)
	var p map[string]any
	text := blob(t, signature, m.Layers[0], &p)
	if string(text) != fmt.Sprintf(payloadFormat, "example.org/a/flowkeep", signed.Digest) {
		t.Errorf("%s is signed, want %s", text, signed.Digest)
	}
	decoded, err := base64.StdEncoding.DecodeString(m.Layers[0].Annotations[annotationSignature])
	if err != nil {
		t.Error(err)
	}
	if sum := sha256.Sum256(text); !ecdsa.VerifyASN1(&key.PublicKey, sum[:], decoded) {
		t.Errorf("the signature is not of %s", text)
	}
	if !bytes.Equal(signs(), image) {
		t.Error("the same key has another signature of the same image")
	}
}

func TestReadKey_Refuses(t *testing.T) {
	_, edwards, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	large, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for name, key := range map[string]any{"Ed25519": edwards, "P-384": large} {
		if _, err := readKey(writeKey(t, key)); err == nil || !strings.Contains(err.Error(), "openssl genpkey") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := readKey(writeFile(t, "key.pem", []byte("no key"))); err == nil {
		t.Error("a file without a key")
	}
}
