package ca

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"testing"

	"github.com/flowkeep/flowkeep/api/identity"
	"github.com/flowkeep/flowkeep/internal/mtls"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

func pemOf(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func verify(leaf *x509.Certificate, pool *x509.CertPool) error {
	_, err := leaf.Verify(x509.VerifyOptions{Roots: pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	return err
}

func askDoor(t *testing.T, k *Keeper, addr string, r *identity.SignRequest) (*identity.SignResponse, error) {
	t.Helper()
	m, err := k.Current()
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13, RootCAs: m.Trusted, ServerName: mtls.ServiceName})))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return identity.NewIdentityClient(conn).Sign(t.Context(), r)
}
