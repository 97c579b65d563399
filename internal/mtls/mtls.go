// Package mtls is the small public key infrastructure of Flowkeep: one authority, and certificates that say who holds
// them. Nodes have the common name flowkeep:node:NAME, administrators the organisation flowkeep:admins.
package mtls

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const (
	nodePrefix = "flowkeep:node:"
	admins     = "flowkeep:admins"
	lifetime   = 10 * 365 * 24 * time.Hour
)

// Files are the paths of a party's key material.
type Files struct{ CA, Cert, Key string }

// ServerConfig asks every client for a certificate of the authority. Files are read at each handshake, so that renewed ones
// are used at once.
func (f Files) ServerConfig() (*tls.Config, error) {
	if _, _, err := f.load(); err != nil {
		return nil, err
	}
	return &tls.Config{MinVersion: tls.VersionTLS13, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		cert, pool, err := f.load()
		if err != nil {
			return nil, err
		}
		return &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{cert}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert, NextProtos: []string{"h2"}}, nil
	}}, nil
}

// Own gives the certificate of a server that knows by other means whom it serves. It is read at each handshake, and once now.
func (f Files) Own() (func(*tls.ClientHelloInfo) (*tls.Certificate, error), error) {
	if _, _, err := f.load(); err != nil {
		return nil, err
	}
	return func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		cert, _, err := f.load()
		return &cert, err
	}, nil
}

// Covers tells whether the certificate is of this host name.
func (f Files) Covers(name string) bool {
	cert, _, err := f.load()
	return err == nil && cert.Leaf.VerifyHostname(name) == nil
}

// ClientConfig trusts servers of the authority.
func (f Files) ClientConfig() (*tls.Config, error) {
	cert, pool, err := f.load()
	if err != nil {
		return nil, err
	}
	return &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: pool, Certificates: []tls.Certificate{cert}}, nil
}

func (f Files) load() (tls.Certificate, *x509.CertPool, error) {
	cert, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		return cert, nil, fmt.Errorf("read the certificate: %w (netmaster pki issue makes one)", err)
	}
	text, err := os.ReadFile(f.CA)
	if err != nil {
		return cert, nil, fmt.Errorf("read the certificate authority: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return cert, nil, fmt.Errorf("%s holds no certificate", f.CA)
	}
	return cert, pool, nil
}

// Node is the node that a verified peer's certificate speaks for; ok is false for other certificates.
func Node(cert *x509.Certificate) (name string, ok bool) {
	return strings.CutPrefix(cert.Subject.CommonName, nodePrefix)
}

// Admin tells whether the certificate is an administrator's.
func Admin(cert *x509.Certificate) bool {
	for _, o := range cert.Subject.Organization {
		if o == admins {
			return true
		}
	}
	return false
}

// Init makes ca.crt and ca.key in dir and never replaces them.
func Init(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := newTemplate(pkix.Name{CommonName: "flowkeep-ca"})
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return err
	}
	return write(dir, "ca", der, key)
}

// IssueNode makes NAME.crt and NAME.key for a node.
func IssueNode(dir, node string) error {
	if node == "" || strings.ContainsAny(node, "/\x00") {
		return fmt.Errorf("%q is not the name of a node", node)
	}
	return issue(dir, node, newTemplate(pkix.Name{CommonName: nodePrefix + node}))
}

// IssueAdmin makes admin.crt and admin.key for netctl.
func IssueAdmin(dir string) error {
	return issue(dir, "admin", newTemplate(pkix.Name{CommonName: "flowkeep:admin", Organization: []string{admins}}))
}

// ServiceName is under what name the API server reaches netmaster.
const ServiceName = "netmaster.flowkeep-system.svc"

// IssueServer makes server.crt and server.key for a netmaster that is reached under these host names and addresses, and by the API
// server.
func IssueServer(dir string, hosts []string) error {
	template := newTemplate(pkix.Name{CommonName: "flowkeep:netmaster"})
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else if h != "" {
			template.DNSNames = append(template.DNSNames, h)
		}
	}
	template.DNSNames = append(template.DNSNames, ServiceName)
	return issue(dir, "server", template)
}

func newTemplate(subject pkix.Name) *x509.Certificate {
	serial, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	return &x509.Certificate{
		SerialNumber: serial, Subject: subject, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(lifetime),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
}

func issue(dir, name string, template *x509.Certificate) error {
	ca, err := tls.LoadX509KeyPair(filepath.Join(dir, "ca.crt"), filepath.Join(dir, "ca.key"))
	if err != nil {
		return fmt.Errorf("read the authority: %w (netmaster pki init makes one)", err)
	}
	parent, err := x509.ParseCertificate(ca.Certificate[0])
	if err != nil {
		return err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), ca.PrivateKey)
	if err != nil {
		return err
	}
	return write(dir, name, der, key)
}

// write refuses to replace a key.
func write(dir, name string, der []byte, key *ecdsa.PrivateKey) error {
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	return errors.Join(
		writeNew(filepath.Join(dir, name+".key"), 0o600, &pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}),
		writeNew(filepath.Join(dir, name+".crt"), 0o644, &pem.Block{Type: "CERTIFICATE", Bytes: der}),
	)
}

func writeNew(path string, mode os.FileMode, block *pem.Block) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if errors.Is(err, os.ErrExist) {
		return fmt.Errorf("%s is there already: remove it first if you mean to replace it", path)
	}
	if err != nil {
		return err
	}
	return errors.Join(pem.Encode(f, block), f.Close())
}
