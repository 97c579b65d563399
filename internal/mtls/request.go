package mtls

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"fmt"
	"strings"
)

// MaxRequest bounds a request for a certificate, in bytes. That of a node with the longest name has about 500.
const MaxRequest = 1 << 10

// NewRequest asks for the certificate of a node.
func NewRequest(node string, key *ecdsa.PrivateKey) (der []byte, err error) {
	if err := CheckNode(node); err != nil {
		return nil, err
	}
	return x509.CreateCertificateRequest(rand.Reader,
		&x509.CertificateRequest{Subject: pkix.Name{CommonName: nodePrefix + node}}, key)
}

// CheckRequest verifies a node's certificate request and returns its public key. A request for more than the node's
// name is rejected, not trimmed.
func CheckRequest(der []byte, node string) (*ecdsa.PublicKey, error) {
	if len(der) > MaxRequest {
		return nil, fmt.Errorf("the request has %d bytes, more than %d", len(der), MaxRequest)
	}
	r, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return nil, fmt.Errorf("the request cannot be read: %w", err)
	}
	key, ok := r.PublicKey.(*ecdsa.PublicKey)
	if !ok || key.Curve != elliptic.P256() { // before the signature is looked at: that of another key may take long
		return nil, errors.New("the request's key is not of ECDSA P-256")
	}
	if err := r.CheckSignature(); err != nil {
		return nil, fmt.Errorf("who asks does not hold the request's key: %w", err)
	}
	if asked, ok := nodeOf(r.Subject); !ok || asked != node {
		return nil, fmt.Errorf("the request is for %.300q, and who asks is node %s", r.Subject.String(), node)
	}
	if err := bare(r); err != nil {
		return nil, err
	}
	return key, nil
}

// bare rejects a request with more than a key, a name and a signature. Everything else is an attribute, including
// unknown extensions.
func bare(r *x509.CertificateRequest) error {
	var parts struct {
		Version      int
		Subject, Key asn1.RawValue
		Attributes   asn1.RawValue `asn1:"optional"`
	}
	rest, err := asn1.Unmarshal(r.RawTBSCertificateRequest, &parts)
	if err != nil || len(rest) > 0 || len(parts.Attributes.Bytes) > 0 {
		return errors.New("the request asks for more than a name: other names, or rights")
	}
	return nil
}

func nodeOf(n pkix.Name) (name string, ok bool) {
	if len(n.Names) != 1 {
		return "", false
	}
	return strings.CutPrefix(n.CommonName, nodePrefix)
}
