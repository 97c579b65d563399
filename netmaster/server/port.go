package server

import (
	"net"
	"time"

	"github.com/flowkeep/flowkeep/internal/limit"
	"github.com/flowkeep/flowkeep/internal/mtls"
	"google.golang.org/grpc/credentials"
)

// Limits of connections to the port for nodes and netctl. Only connections without a certificate are limited by
// address, since nodes may share one behind NAT.
const (
	maxOfAddress       = 256
	maxUnknown         = 1024
	maxOfNode          = 16
	maxOfAdministrator = 256
	excessDelay        = time.Second // until a connection above the limit of its certificate is closed
)

// Values of the metrics' label port.
const (
	portFeed   = "feed"
	portAccess = "access"
)

// bounded returns a listener on which no client can use up all connections.
func (s *server) bounded(l net.Listener) net.Listener {
	return limit.Listen(l, limit.Bounds{Each: maxOfAddress, Unknown: maxUnknown, Closed: s.closedAt(portFeed)})
}

// closedAt returns a function that counts connections closed because of a limit.
func (s *server) closedAt(port string) func(bound string) {
	return func(bound string) { s.metrics.closed.WithLabelValues(port, bound).Inc() }
}

// knownPeers limits connections by their client certificate.
type knownPeers struct {
	credentials.TransportCredentials
}

// ServerHandshake performs the TLS handshake.
func (k knownPeers) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, auth, err := k.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return conn, auth, err
	}
	info, ok := auth.(credentials.TLSInfo)
	if !ok || len(info.State.PeerCertificates) == 0 {
		return conn, auth, nil
	}
	cert, most := info.State.PeerCertificates[0], maxOfAdministrator
	if _, isNode := mtls.Node(cert); isNode {
		most = maxOfNode
	}
	if err := limit.Known(raw, cert.Subject.CommonName, most); err != nil {
		limit.Hold(raw, excessDelay)
		_ = conn.Close()
		return nil, nil, err
	}
	return conn, auth, nil
}

// Clone implements credentials.TransportCredentials.
func (k knownPeers) Clone() credentials.TransportCredentials {
	return knownPeers{k.TransportCredentials.Clone()}
}
