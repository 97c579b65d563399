package authority

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"

	"github.com/flowkeep/flowkeep/internal/mtls"
)

// save keeps netmaster's own certificate and whom it trusts on disk. The authority's key is never there.
func (k *Keeper) save(v *view) {
	if k.cfg.CacheFile == "" {
		return
	}
	key, err := x509.MarshalPKCS8PrivateKey(v.Own.PrivateKey)
	if err == nil {
		text := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})
		text = append(text, mtls.Encode(v.Own.Leaf)...)
		text = append(text, mtls.Encode(v.state.Bundle()...)...)
		err = mtls.WriteFile(k.cfg.CacheFile, text)
	}
	if err != nil {
		k.log.Warn("netmaster's certificate is not kept on disk: a restart will need the API server", "error", err)
	}
}

// restore serves with what was saved, if it is of use.
func (k *Keeper) restore() bool {
	if k.cfg.CacheFile == "" {
		return false
	}
	m, err := k.cached()
	if errors.Is(err, os.ErrNotExist) {
		return false
	}
	if err != nil {
		k.log.Warn("the certificate that is kept on disk is of no use", "file", filepath.Base(k.cfg.CacheFile), "error", err)
		return false
	}
	k.now.Store(&view{Material: m})
	k.log.Warn("netmaster serves with its certificate of before, and signs none", "reason", k.Problem())
	return true
}

func (k *Keeper) cached() (mtls.Material, error) {
	text, err := os.ReadFile(k.cfg.CacheFile)
	if err != nil {
		return mtls.Material{}, err
	}
	own, err := tls.X509KeyPair(text, text)
	if err != nil {
		return mtls.Material{}, err
	}
	var pool []*x509.Certificate
	for _, der := range own.Certificate[1:] {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return mtls.Material{}, err
		}
		pool = append(pool, c)
	}
	own.Certificate = own.Certificate[:1]
	if !k.cfg.Now().Before(own.Leaf.NotAfter) || len(pool) == 0 {
		return mtls.Material{}, errors.New("it has expired")
	}
	return mtls.Material{Own: own, Trusted: mtls.Pool(pool)}, nil
}
