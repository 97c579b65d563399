package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"strings"
)

// Of the format by which cosign signs images (its document SIGNATURE_SPEC.md). A payload has an image's repository and
// its digest.
const (
	typePayload   = "application/vnd.dev.cosign.simplesigning.v1+json"
	payloadFormat = `{"critical":{"identity":{"docker-reference":%q},"image":{"docker-manifest-digest":%q},` +
		`"type":"cosign container image signature"},"optional":null}`
	annotationSignature = "dev.cosignproject.cosign/signature"
)

// signImages writes an image NAME.sig.tar with the signature of each image NAME.tar, by the private key of a PEM file.
func signImages(keyFile string, names []string) error {
	key, err := readKey(keyFile)
	if err != nil {
		return fmt.Errorf("sign: %w", err)
	}
	for _, name := range names {
		signature, err := signatureImage(key, name)
		if err != nil {
			return fmt.Errorf("sign: %w", err)
		}
		if err := replaceFile(strings.TrimSuffix(name, ".tar")+".sig.tar", signature); err != nil {
			return err
		}
	}
	return nil
}

// readKey reads a private key of the curve P-256, as openssl genpkey writes it.
func readKey(name string) (*ecdsa.PrivateKey, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	if block, _ := pem.Decode(data); block != nil {
		key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
		if k, is := key.(*ecdsa.PrivateKey); err == nil && is && k.Curve == elliptic.P256() {
			return k, nil
		}
	}
	return nil, errors.New(name + " has no private key of the curve P-256: openssl genpkey -algorithm EC " +
		"-pkeyopt ec_paramgen_curve:P-256 creates one")
}

// signatureImage returns the archive of an image with the signature of the image in an archive. Its tag is
// sha256-DIGEST.sig, where cosign looks for it.
func signatureImage(key *ecdsa.PrivateKey, name string) ([]byte, error) {
	layout, err := readLayout(name)
	if err != nil {
		return nil, err
	}
	signed, err := topOf(layout)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	reference := signed.Annotations[annotationName]
	repository := reference[:max(0, strings.LastIndex(reference, ":"))]
	payload := fmt.Appendf(nil, payloadFormat, repository, signed.Digest)
	sum := sha256.Sum256(payload)
	signature, err := key.Sign(nil, sum[:], crypto.SHA256) // without random numbers: always the same one (RFC 6979)
	if err != nil {
		return nil, err
	}
	all := tree{}
	layer := all.addBlob(typePayload, payload)
	layer.Annotations = map[string]string{annotationSignature: base64.StdEncoding.EncodeToString(signature)}
	c := imageConfig{Created: "1970-01-01T00:00:00Z"}
	c.RootFS.Type, c.RootFS.DiffIDs = "layers", []string{layer.Digest}
	m := manifest{SchemaVersion: 2, MediaType: typeManifest, Layers: []descriptor{layer}}
	if m.Config, err = document(typeConfig, c, all.addBlob); err != nil {
		return nil, err
	}
	top, err := document(typeManifest, m, all.addBlob)
	if err != nil {
		return nil, err
	}
	tag := strings.Replace(signed.Digest, ":", "-", 1) + ".sig"
	top.Annotations = map[string]string{annotationName: repository + ":" + tag, annotationTag: tag}
	if err := all.setTop(top); err != nil {
		return nil, err
	}
	return archived(all)
}
