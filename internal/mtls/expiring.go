package mtls

import (
	"crypto/x509"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
)

// lookAgain is how often it is looked whether the peer of a connection is still trusted.
const lookAgain = time.Minute

// ServerCredentials require a client certificate of the authority. They close a connection when its certificate
// expires or the authority is no longer trusted, because a stream would otherwise outlast both. Clients reconnect with
// a new certificate.
func ServerCredentials(s Source) (credentials.TransportCredentials, error) {
	conf, err := ServerConfig(s)
	if err != nil {
		return nil, err
	}
	return expiring{credentials.NewTLS(conf), s, lookAgain}, nil
}

type expiring struct {
	credentials.TransportCredentials
	source Source
	every  time.Duration
}

// ServerHandshake performs the TLS handshake.
func (e expiring) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, auth, err := e.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return conn, auth, err
	}
	info, ok := auth.(credentials.TLSInfo)
	if !ok || len(info.State.PeerCertificates) == 0 {
		return conn, auth, nil
	}
	m := &mortal{
		Conn:    conn,
		leaf:    info.State.PeerCertificates[0],
		between: x509.NewCertPool(),
		source:  e.source,
		every:   e.every,
	}
	for _, c := range info.State.PeerCertificates[1:] {
		m.between.AddCert(c)
	}
	m.wait()
	return m, auth, nil
}

// Clone implements credentials.TransportCredentials.
func (e expiring) Clone() credentials.TransportCredentials {
	return expiring{e.TransportCredentials.Clone(), e.source, e.every}
}

// mortal is a connection that ends with the trust in its peer.
type mortal struct {
	net.Conn
	leaf    *x509.Certificate
	between *x509.CertPool
	source  Source
	every   time.Duration

	mu    sync.Mutex
	timer *time.Timer
	over  bool
}

func (m *mortal) wait() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.over {
		m.timer = time.AfterFunc(min(m.every, time.Until(m.leaf.NotAfter)), m.look)
	}
}

// look ends the connection, or looks again later. While it cannot be known whom to trust, only time ends it.
func (m *mortal) look() {
	trusted := time.Now().Before(m.leaf.NotAfter)
	if now, err := m.source.Current(); trusted && err == nil {
		_, err := m.leaf.Verify(x509.VerifyOptions{Roots: now.Trusted, Intermediates: m.between,
			KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
		trusted = err == nil
	}
	if !trusted {
		m.Close()
		return
	}
	m.wait()
}

// Close ends it now.
func (m *mortal) Close() error {
	m.mu.Lock()
	m.over = true
	m.timer.Stop()
	m.mu.Unlock()
	return m.Conn.Close()
}
