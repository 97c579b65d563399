package server

import (
	"net"
	"testing"

	"google.golang.org/grpc/credentials"
)

// TestConnectionsWithoutCertificateDoNotBlockNodes: silent connections keep no node out, also with its address, which
// pods of the node have.
func TestConnectionsWithoutCertificateDoNotBlockNodes(t *testing.T) {
	for name, from := range map[string]string{"another address": "127.0.0.7", "its address": "127.0.0.1"} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, shop(t)...)
			m := w.start()
			m.ready()
			dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
			const n = 2000
			for range n {
				c, err := dialer.DialContext(t.Context(), "tcp", m.addr)
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
			}
			until(t, "the others are closed", func() bool {
				return m.metric("netmaster_connections_closed_total") == n-maxOfAddress
			})
			held(m, "node1")
		})
	}
}

// A connection with a certificate counts for the node, and no longer for the address; there is an end to both.
func TestConnectionsCountForTheirCertificate(t *testing.T) {
	w := newWorld(t)
	files := w.files("node1")
	conf, err := files.ClientConfig()
	if err != nil {
		t.Fatal(err)
	}
	m := w.start()
	m.ready()
	var open []net.Conn
	defer func() {
		for _, c := range open {
			c.Close()
		}
	}()
	connect := func() error {
		conf := conf.Clone()
		conf.NextProtos, conf.ServerName = []string{"h2"}, "127.0.0.1"
		raw, err := net.Dial("tcp", m.addr)
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, raw)
		conn, _, err := credentials.NewTLS(conf).ClientHandshake(t.Context(), "127.0.0.1", raw)
		if err != nil {
			return err
		}
		_, err = conn.Read(make([]byte, 9)) // the server's settings, or its end
		return err
	}
	for i := range maxOfNode {
		if err := connect(); err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
	}
	if connect() == nil {
		t.Errorf("more than %d connections of a node", maxOfNode)
	}
	open[0].Close()
	until(t, "a place is given on", func() bool { return connect() == nil })
}
