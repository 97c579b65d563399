package mtls

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"strings"
	"time"
)

// Backdate is how much a new certificate is older than it is, for those whose clocks are behind.
const Backdate = 5 * time.Minute

// Authority signs certificates. It does not change, and is safe for concurrent use.
type Authority struct {
	Cert *x509.Certificate
	key  crypto.Signer
}

// NewKey returns a key for a party or an authority.
func NewKey() (*ecdsa.PrivateKey, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) }

// NewAuthority makes one.
func NewAuthority(now time.Time, life time.Duration) (*Authority, error) {
	key, err := NewKey()
	if err != nil {
		return nil, err
	}
	t := template(pkix.Name{}, now, life)
	// The names of two authorities that are trusted at the same time differ.
	t.Subject.CommonName = fmt.Sprintf("flowkeep-ca %x", t.SerialNumber.Bytes()[:4])
	t.IsCA, t.MaxPathLenZero = true, true
	t.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	return &Authority{cert, key}, err
}

// ParseAuthority reads a certificate and its key.
func ParseAuthority(cert, key []byte) (*Authority, error) {
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, err
	}
	signer, ok := pair.PrivateKey.(crypto.Signer)
	if !ok || !pair.Leaf.IsCA || !pair.Leaf.BasicConstraintsValid || pair.Leaf.KeyUsage&x509.KeyUsageCertSign == 0 {
		return nil, errors.New("the certificate is not of an authority, and may sign no others")
	}
	return &Authority{pair.Leaf, signer}, nil
}

// PEM returns the certificate and the key in the form that ParseAuthority reads.
func (a *Authority) PEM() (cert, key []byte, err error) {
	der, err := x509.MarshalPKCS8PrivateKey(a.key)
	if err != nil {
		return nil, nil, err
	}
	return Encode(a.Cert), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// Derive returns a secret of 32 bytes that is derived from the authority's key, another one for each purpose.
func (a *Authority) Derive(purpose string) ([]byte, error) {
	key, err := x509.MarshalPKCS8PrivateKey(a.key)
	if err != nil {
		return nil, fmt.Errorf("derive a key from the authority's: %w", err)
	}
	return hkdf.Key(sha256.New, key, nil, purpose, sha256.Size)
}

// Encode writes certificates as PEM.
func Encode(list ...*x509.Certificate) (text []byte) {
	for _, c := range list {
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
	}
	return text
}

// ParseBundle reads certificates of authorities, each once. Text between them is passed over; what is none is refused.
func ParseBundle(text []byte) (list []*x509.Certificate, err error) {
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			return list, nil
		}
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("it holds a %s, not only certificates", strings.ToLower(block.Type))
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		if !Among(list, cert) {
			list = append(list, cert)
		}
	}
}

// Among reports whether a list has a certificate.
func Among(list []*x509.Certificate, cert *x509.Certificate) bool {
	for _, c := range list {
		if bytes.Equal(c.Raw, cert.Raw) {
			return true
		}
	}
	return false
}

// SignNode makes the certificate of a node.
func (a *Authority) SignNode(
	node string, key crypto.PublicKey, now time.Time, life time.Duration,
) (der []byte, err error) {
	if err := CheckNode(node); err != nil {
		return nil, err
	}
	t := template(pkix.Name{CommonName: nodePrefix + node}, now, life)
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	return a.sign(t, key, now)
}

// SignAdmin makes the certificate of an administrator.
func (a *Authority) SignAdmin(key crypto.PublicKey, now time.Time, life time.Duration) (der []byte, err error) {
	t := template(pkix.Name{CommonName: "flowkeep:admin", Organization: []string{admins}}, now, life)
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	return a.sign(t, key, now)
}

// SignServer makes the certificate of a netmaster that is reached under these host names and addresses, and under
// ServiceName. It is a client's too: a standby forwards questions to the leader.
func (a *Authority) SignServer(
	hosts []string, key crypto.PublicKey, now time.Time, life time.Duration,
) (der []byte, err error) {
	t := template(pkix.Name{CommonName: netmasterName}, now, life)
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else if h != "" {
			t.DNSNames = append(t.DNSNames, h)
		}
	}
	t.DNSNames = append(t.DNSNames, ServiceName)
	return a.sign(t, key, now)
}

// sign signs nothing that outlives the authority.
func (a *Authority) sign(t *x509.Certificate, key crypto.PublicKey, now time.Time) ([]byte, error) {
	if !now.Before(a.Cert.NotAfter) {
		return nil, fmt.Errorf("the authority has expired (%s)", a.Cert.NotAfter.Format(time.RFC3339))
	}
	if t.NotAfter.After(a.Cert.NotAfter) {
		t.NotAfter = a.Cert.NotAfter
	}
	return x509.CreateCertificate(rand.Reader, t, a.Cert, key, a.key)
}

func template(subject pkix.Name, now time.Time, life time.Duration) *x509.Certificate {
	serial := make([]byte, 16)
	_, _ = rand.Read(serial) // it does not fail
	serial[0] = serial[0]&0x7f | 0x40
	return &x509.Certificate{SerialNumber: new(big.Int).SetBytes(serial), Subject: subject,
		NotBefore: now.Add(-Backdate), NotAfter: now.Add(life),
		KeyUsage: x509.KeyUsageDigitalSignature, BasicConstraintsValid: true}
}

// longestName is that of a Node object.
const longestName = 253

// CheckNode returns an error if this cannot be the name of a node.
func CheckNode(name string) error {
	bad := name == "" || len(name) > longestName || strings.HasPrefix(name, ".")
	for _, c := range []byte(name) {
		bad = bad || c <= ' ' || c >= 0x7f || c == '/'
	}
	if bad {
		return fmt.Errorf("%.64q is not the name of a node", name)
	}
	return nil
}

// NewServer makes a netmaster's certificate, with a key of its own.
func NewServer(a *Authority, hosts []string, now time.Time, life time.Duration) (tls.Certificate, error) {
	key, err := NewKey()
	if err != nil {
		return tls.Certificate{}, err
	}
	der, err := a.SignServer(hosts, &key.PublicKey, now, life)
	if err != nil {
		return tls.Certificate{}, err
	}
	leaf, err := x509.ParseCertificate(der)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, err
}
