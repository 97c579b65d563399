package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/internal/process"
	"github.com/flowkeep/flowkeep/netplugin/cni"
	"github.com/flowkeep/flowkeep/netplugin/endpoints"
)

// portList is a switch that records which ports are deleted, and can be away.
type portList struct {
	deleted chan string
	away    bool
}

func (p *portList) EnsurePort(context.Context, string, *endpoints.Endpoint) (uint32, error) {
	return 0, errors.New("unexpected creation of a port")
}

func (p *portList) DeletePort(_ context.Context, name string, _ *endpoints.Endpoint) error {
	if p.away {
		return errors.New("Open vSwitch is away")
	}
	p.deleted <- name
	return nil
}

// A pod that ended while netplugin was away has lost its port before any pod can be added.
func TestServeCNI_DeletesWhatEndedMeanwhile(t *testing.T) {
	a, _, _ := running(t)
	a.cfg.Health = new(process.Health)
	a.cfg.CNISocket = filepath.Join(t.TempDir(), "cni.sock")
	a.cfg.AddTimeout = time.Minute
	if err := cni.NoteDeleted(a.cfg.CNISocket, "c1", "eth0"); err != nil {
		t.Fatal(err)
	}
	ports := &portList{deleted: make(chan string, 9)}
	manager, err := endpoints.Open(endpoints.Config{StateDir: t.TempDir(), Logger: a.log, Switch: ports, Realizer: &a.pods})
	if err != nil {
		t.Fatal(err)
	}
	r := &runner{agent: a, manager: manager}
	ports.away = true
	r.deleteNoted(t.Context())
	if len(ports.deleted) > 0 {
		t.Error("a port was deleted though the switch is away")
	}
	ports.away = false
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	served := make(chan error, 1)
	go func() { served <- r.serveCNI(ctx) }()
	<-ports.deleted // it is recorded until it is deleted
	for {
		if conn, err := net.Dial("unix", a.cfg.CNISocket); err == nil {
			fmt.Fprintf(conn, "GET %s HTTP/1.0\r\n\r\n", inspect.ContestedPath)
			if response, err := io.ReadAll(conn); err != nil || !strings.HasPrefix(string(response), "HTTP/1.0 200") {
				t.Errorf("contested objects: %q (%v)", response, err)
			}
			conn.Close()
			break
		}
		select {
		case err := <-served:
			t.Fatalf("it ended: %v", err)
		case <-time.After(time.Millisecond):
		}
	}
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
}
