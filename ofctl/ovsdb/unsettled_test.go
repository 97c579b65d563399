package ovsdb

import (
	"bytes"
	"context"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/ofctl/ovstest"
)

// cut is a proxy before ovsdb-server that ends each connection with the first request that creates a port, and accepts
// none after that.
type cut struct {
	listener net.Listener
	once     sync.Once
}

// cutBefore starts a proxy before a server's socket. It returns its endpoint. It ends with the test.
func cutBefore(t *testing.T, server string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "cut")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	c := &cut{listener: l}
	t.Cleanup(c.end)
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			go c.serve(client, server)
		}
	}()
	return "unix:" + path
}

func (c *cut) end() { c.once.Do(func() { _ = c.listener.Close() }) }

// serve passes on what a client and the server send.
func (c *cut) serve(client net.Conn, path string) {
	defer func() { _ = client.Close() }()
	server, err := net.Dial("unix", path)
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	go pass(client, server, func([]byte) bool { return true })
	pass(server, client, func(data []byte) bool {
		creates := bytes.Contains(data, []byte(`"op":"insert"`)) && bytes.Contains(data, []byte(`"lost"`))
		if creates {
			c.end()
		}
		return !creates
	})
}

// pass copies until an end, or data that is not wanted.
func pass(to, from net.Conn, wanted func([]byte) bool) {
	data := make([]byte, 1<<16)
	for {
		n, err := from.Read(data)
		if err != nil || !wanted(data[:n]) {
			return
		}
		if _, err := to.Write(data[:n]); err != nil {
			return
		}
	}
}

// TestDeletePort_AfterLostConnection: a port of which the creation got no response, because the connection was lost,
// does not count as deleted while ovsdb-server may still execute the request.
func TestDeletePort_AfterLostConnection(t *testing.T) {
	sw := ovstest.Start(t, 0)
	db, err := Open(t.Context(), cutBefore(t, sw.OVSDB()[len("unix:"):]))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	if _, err := db.EnsurePort(t.Context(), PortSpec{Bridge: sw.Bridge, Name: "lost", Internal: true}); err == nil {
		t.Fatal("the port is created")
	}
	if _, unsettled := db.unsettled.Load("lost"); !unsettled {
		t.Error("DeletePort does not know that ovsdb-server may make the port later")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := db.DeletePort(ctx, sw.Bridge, "lost"); err == nil {
		t.Error("the port counts as deleted")
	}
}
