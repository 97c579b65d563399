package mtls

import (
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// lifetime of certificates in files, which are not renewed.
const lifetime = 10 * 365 * 24 * time.Hour

// Init makes ca.crt and ca.key in dir and never replaces them.
func Init(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	a, err := NewAuthority(time.Now(), lifetime)
	if err != nil {
		return err
	}
	return write(dir, "ca", a.Cert.Raw, a.key.(*ecdsa.PrivateKey))
}

// IssueNode makes NAME.crt and NAME.key for a node.
func IssueNode(dir, node string) error {
	return issue(dir, node, func(a *Authority, key *ecdsa.PrivateKey) ([]byte, error) {
		return a.SignNode(node, &key.PublicKey, time.Now(), lifetime)
	})
}

// IssueAdmin makes admin.crt and admin.key for netctl.
func IssueAdmin(dir string) error {
	return issue(dir, "admin", func(a *Authority, key *ecdsa.PrivateKey) ([]byte, error) {
		return a.SignAdmin(&key.PublicKey, time.Now(), lifetime)
	})
}

// IssueAdminOf makes admin.crt and admin.key of an authority that is in no files, and ca.crt, whom to trust.
func IssueAdminOf(
	dir string, a *Authority, trusted []*x509.Certificate, now time.Time, life time.Duration,
) (until time.Time, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return time.Time{}, err
	}
	key, err := NewKey()
	if err != nil {
		return time.Time{}, err
	}
	der, err := a.SignAdmin(&key.PublicKey, now, life)
	if err != nil {
		return time.Time{}, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return time.Time{}, err
	}
	if err := write(dir, "admin", der, key); err != nil {
		return time.Time{}, err
	}
	return cert.NotAfter, os.WriteFile(filepath.Join(dir, "ca.crt"), Encode(trusted...), 0o644)
}

// IssueServer makes server.crt and server.key for a netmaster that is reached under these host names and addresses,
// and by the API server.
func IssueServer(dir string, hosts []string) error {
	return issue(dir, "server", func(a *Authority, key *ecdsa.PrivateKey) ([]byte, error) {
		return a.SignServer(hosts, &key.PublicKey, time.Now(), lifetime)
	})
}

func issue(dir, name string, sign func(*Authority, *ecdsa.PrivateKey) ([]byte, error)) error {
	var text [2][]byte
	for i, file := range []string{"ca.crt", "ca.key"} {
		var err error
		if text[i], err = os.ReadFile(filepath.Join(dir, file)); err != nil {
			return fmt.Errorf("read the authority: %w (netmaster pki init makes one)", err)
		}
	}
	a, err := ParseAuthority(text[0], text[1])
	if err != nil {
		return fmt.Errorf("read the authority in %s: %w", dir, err)
	}
	key, err := NewKey()
	if err != nil {
		return err
	}
	der, err := sign(a, key)
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
