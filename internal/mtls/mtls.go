// Package mtls is the small public key infrastructure of Flowkeep: one authority, and certificates that say who holds
// them. Nodes have the common name flowkeep:node:NAME, administrators the organisation flowkeep:admins.
package mtls

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"strings"
)

const (
	nodePrefix = "flowkeep:node:"
	admins     = "flowkeep:admins"
)

// ServiceName is under what name the API server and nodes reach netmaster through its Service.
const ServiceName = "netmaster.flowkeep-system.svc"

// Material is what a party shows, and whom it trusts.
type Material struct {
	Own     tls.Certificate
	Trusted *x509.CertPool
}

// Source returns a party's current key and certificates, from files or renewed in memory. Each handshake calls it.
type Source interface {
	Current() (Material, error)
}

// ServerConfig asks every client for a certificate of the authority. The material is that of each handshake, so that
// what is renewed is used at once, and no session is resumed on what was trusted before.
func ServerConfig(s Source) (*tls.Config, error) {
	if _, err := s.Current(); err != nil {
		return nil, err
	}
	return &tls.Config{MinVersion: tls.VersionTLS13,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			m, err := s.Current()
			if err != nil {
				return nil, err
			}
			return &tls.Config{
				MinVersion:   tls.VersionTLS13,
				Certificates: []tls.Certificate{m.Own},
				ClientCAs:    m.Trusted,
				ClientAuth:   tls.RequireAndVerifyClientCert,
				NextProtos:   []string{"h2"},
			}, nil
		}}, nil
}

// Own returns a function that returns a server's current certificate at each handshake, for servers that authenticate
// clients by other means. It reads the certificate once immediately.
func Own(s Source) (func(*tls.ClientHelloInfo) (*tls.Certificate, error), error) {
	own := func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		m, err := s.Current()
		return &m.Own, err
	}
	if _, err := own(nil); err != nil {
		return nil, err
	}
	return own, nil
}

// Covers reports whether the certificate is valid for a host name.
func Covers(s Source, name string) bool {
	m, err := s.Current()
	return err == nil && m.Own.Leaf.VerifyHostname(name) == nil
}

// ClientConfig returns a configuration that trusts servers of the authority whose certificate has the name; if it is
// empty, the dialled one.
func ClientConfig(s Source, name string) (*tls.Config, error) {
	m, err := s.Current()
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		RootCAs:      m.Trusted,
		Certificates: []tls.Certificate{m.Own},
		ServerName:   name,
	}, nil
}

// Files are the paths of a party's key material.
type Files struct{ CA, Cert, Key string }

// Current reads the files.
func (f Files) Current() (Material, error) {
	cert, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		return Material{}, fmt.Errorf("read the certificate: %w (netmaster pki issue makes one)", err)
	}
	pool, _, err := ReadBundle(f.CA)
	if err != nil {
		return Material{}, err
	}
	return Material{cert, pool}, nil
}

// ClientConfig trusts servers of the authority.
func (f Files) ClientConfig() (*tls.Config, error) { return ClientConfig(f, "") }

// ServerConfig asks every client for a certificate of the authority.
func (f Files) ServerConfig() (*tls.Config, error) { return ServerConfig(f) }

// ReadBundle reads the certificates of authorities.
func ReadBundle(path string) (*x509.CertPool, []*x509.Certificate, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, fmt.Errorf("read the certificate authority: %w", err)
	}
	list, err := ParseBundle(text)
	if err != nil {
		return nil, nil, fmt.Errorf("read the certificate authority: %s: %w", path, err)
	}
	if len(list) == 0 {
		return nil, nil, fmt.Errorf("%s holds no certificate", path)
	}
	return Pool(list), list, nil
}

// Pool trusts each of the authorities.
func Pool(list []*x509.Certificate) *x509.CertPool {
	pool := x509.NewCertPool()
	for _, c := range list {
		pool.AddCert(c)
	}
	return pool
}

// Node returns the node that a verified peer's certificate identifies; ok is false for other certificates.
func Node(cert *x509.Certificate) (name string, ok bool) {
	return strings.CutPrefix(cert.Subject.CommonName, nodePrefix)
}

// netmasterName is the common name of netmasters' certificates.
const netmasterName = "flowkeep:netmaster"

// Netmaster reports whether the certificate is a netmaster's.
func Netmaster(cert *x509.Certificate) bool { return cert.Subject.CommonName == netmasterName }

// Admin reports whether the certificate is an administrator's.
func Admin(cert *x509.Certificate) bool {
	for _, o := range cert.Subject.Organization {
		if o == admins {
			return true
		}
	}
	return false
}
