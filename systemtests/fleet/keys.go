package fleet

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// The fleet's users. PolicySync's is called like the process.
var (
	admin      = user{"admin", "system:masters"}
	workAgent  = user{"work-agent", ""}
	policySync = user{PolicySync, ""}
	frontProxy = user{"front-proxy", ""}
)

type user struct{ name, group string }

// keys are of one authority, which all API servers trust.
type keys struct {
	dir   string
	ca    tls.Certificate
	roots *x509.CertPool
	users map[user]tls.Certificate
}

func newKeys(dir, ip string) (*keys, error) {
	k := &keys{dir: filepath.Join(dir, "keys"), roots: x509.NewCertPool(), users: map[user]tls.Certificate{}}
	if err := os.MkdirAll(k.dir, 0o700); err != nil {
		return nil, err
	}
	var err error
	k.ca, err = k.issue("ca", &x509.Certificate{Subject: pkix.Name{CommonName: "fleet"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	if err != nil {
		return nil, err
	}
	k.roots.AddCert(k.ca.Leaf)
	if _, err = k.issue("server", &x509.Certificate{Subject: pkix.Name{CommonName: "kube-apiserver"}, IPAddresses: []net.IP{net.ParseIP(ip)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}); err != nil {
		return nil, err
	}
	for _, u := range []user{admin, workAgent, policySync, frontProxy} {
		subject := pkix.Name{CommonName: u.name}
		if u.group != "" {
			subject.Organization = []string{u.group}
		}
		if k.users[u], err = k.issue(u.name, &x509.Certificate{Subject: subject, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
			return nil, err
		}
	}
	return k, nil
}

func (k *keys) file(name string) string { return filepath.Join(k.dir, name) }

// issue makes a pair of NAME.crt and NAME.key; the authority's own is the first.
func (k *keys) issue(name string, template *x509.Certificate) (pair tls.Certificate, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return pair, err
	}
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().AddDate(1, 0, 0)
	if template.SerialNumber, err = rand.Int(rand.Reader, big.NewInt(1<<62)); err != nil {
		return pair, err
	}
	parent, signer := template, any(key)
	if k.ca.Leaf != nil {
		parent, signer = k.ca.Leaf, k.ca.PrivateKey
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		return pair, err
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return pair, err
	}
	crt, secret := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: private})
	if err := os.WriteFile(k.file(name+".crt"), crt, 0o600); err != nil {
		return pair, err
	}
	if err := os.WriteFile(k.file(name+".key"), secret, 0o600); err != nil {
		return pair, err
	}
	pair, err = tls.X509KeyPair(crt, secret)
	return pair, err
}

func (k *keys) config(u user) *tls.Config {
	return &tls.Config{Certificates: []tls.Certificate{k.users[u]}, RootCAs: k.roots}
}

// FrontProxyCertificate returns the client certificate of the API servers' front proxy.
func (f *Fleet) FrontProxyCertificate() tls.Certificate { return f.keys.users[frontProxy] }

// kubeconfig writes one of a user; the first server's context is the current one.
func (k *keys) kubeconfig(path string, u user, servers ...*Server) error {
	var clusters, contexts []string
	for _, s := range servers {
		clusters = append(clusters, fmt.Sprintf("{name: %s, cluster: {server: %q, certificate-authority: %s}}", s.Name, s.url, k.file("ca.crt")))
		contexts = append(contexts, fmt.Sprintf("{name: %s, context: {cluster: %[1]s, user: %s}}", s.Name, u.name))
	}
	return os.WriteFile(path, fmt.Appendf(nil, `apiVersion: v1
kind: Config
current-context: %s
clusters: [%s]
users: [{name: %s, user: {client-certificate: %s, client-key: %s}}]
contexts: [%s]
`, servers[0].Name, strings.Join(clusters, ", "), u.name, k.file(u.name+".crt"), k.file(u.name+".key"), strings.Join(contexts, ", ")), 0o600)
}
