package certificates

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/flowkeep/flowkeep/api/identity"
	"github.com/flowkeep/flowkeep/internal/mtls"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

const (
	askTime = 20 * time.Second
	// mostSkew is by how much clocks may differ before somebody is told.
	mostSkew = 2 * time.Minute
)

// ask asks one netmaster. The token is shown to nobody whose certificate is not of the authority.
func (k *Keeper) ask(ctx context.Context, server string) (*tls.Certificate, error) {
	token, err := os.ReadFile(k.cfg.TokenFile)
	if err != nil {
		return nil, fmt.Errorf("read the token: %w", err)
	}
	pool, _, err := mtls.ReadBundle(k.cfg.CAFile)
	if err != nil {
		return nil, err
	}
	key, err := mtls.NewKey()
	if err != nil {
		return nil, err
	}
	request, err := mtls.NewRequest(k.cfg.Node, key)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	conf := &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: pool, ServerName: k.cfg.ServerName}
	conn, err := grpc.NewClient("passthrough:///"+server, grpc.WithTransportCredentials(credentials.NewTLS(conf)), grpc.WithNoProxy(), grpc.WithDisableServiceConfig(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(identity.MaxMessage)))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	answer, err := identity.NewIdentityClient(conn).Sign(ctx, &identity.SignRequest{Token: string(bytes.TrimSpace(token)), Request: request})
	if err != nil {
		return nil, err
	}
	now := k.cfg.Now()
	if skew := time.UnixMilli(answer.NowUnixMs).Sub(now); skew.Abs() > mostSkew {
		k.log.Warn("this node's clock differs from netmaster's: set it right", "netmaster-is-ahead-by", skew.Round(time.Second))
	}
	leaf, err := x509.ParseCertificate(answer.Certificate)
	if err != nil {
		return nil, fmt.Errorf("netmaster's answer is no certificate: %w", err)
	}
	own := &tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf}
	return own, check(own, k.cfg.Node, pool, now)
}

// check refuses what would be of no use.
func check(own *tls.Certificate, node string, pool *x509.CertPool, now time.Time) error {
	key := own.PrivateKey.(*ecdsa.PrivateKey)
	switch of, named := mtls.Node(own.Leaf); {
	case !named || of != node:
		return fmt.Errorf("netmaster's answer is a certificate of %q, not of node %s", own.Leaf.Subject.CommonName, node)
	case !key.PublicKey.Equal(own.Leaf.PublicKey):
		return errors.New("netmaster's answer is a certificate of another key")
	case now.Before(own.Leaf.NotBefore):
		return fmt.Errorf("the certificate is valid from %s on, and by this node's clock it is %s: set it right", own.Leaf.NotBefore.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	}
	if _, err := own.Leaf.Verify(x509.VerifyOptions{Roots: pool, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		return fmt.Errorf("netmaster's answer is of no use: %w", err)
	}
	return nil
}
