package ca

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"

	"github.com/flowkeep/flowkeep/internal/mtls"
)

// save stores netmaster's certificate and the CA bundle in CacheFile, without the CA's key.
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
		k.log.Warn("could not save netmaster's certificate: a restart will need the API server", "error", err)
	}
}

// restore loads a saved certificate, and reports whether it is usable.
func (k *Keeper) restore() bool {
	if k.cfg.CacheFile == "" {
		return false
	}
	m, err := k.cached()
	if errors.Is(err, os.ErrNotExist) {
		return false
	}
	if err != nil {
		k.log.Warn("the saved certificate is unusable", "file", filepath.Base(k.cfg.CacheFile),
			"error", err)
		return false
	}
	k.now.Store(&view{Material: m})
	k.log.Warn("serving with the saved certificate; certificate requests fail", "reason", k.Problem())
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
