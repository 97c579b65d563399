package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/flowkeep/flowkeep/internal/process"
	"github.com/flowkeep/flowkeep/netplugin/cni"
)

// requestCNI sends a CNI command. ok is false while no server listens.
func requestCNI(t *testing.T, socket, command string) (resp cni.Response, ok bool) {
	t.Helper()
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}
	over := http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
	body := `{"namespace":"shop","name":"db","containerID":"c1","ifName":"eth0","netns":"/proc/self/ns/net"}`
	answer, err := over.Post("http://netplugin/"+command, "application/json", bytes.NewBufferString(body))
	if err != nil {
		return resp, false
	}
	defer answer.Body.Close()
	if err := json.NewDecoder(answer.Body).Decode(&resp); err != nil {
		t.Fatal(err)
	}
	return resp, true
}

// TestOpenSwitch_ServesCNI: while netplugin waits for Open vSwitch at its start, CNI requests get the reason, and a DEL
// is recorded. Another server can serve the socket when the wait has ended.
func TestOpenSwitch_ServesCNI(t *testing.T) {
	a, _, _ := running(t)
	a.cfg.Health, a.cfg.AddTimeout = new(process.Health), time.Minute
	a.cfg.OVSDB = "unix:" + filepath.Join(t.TempDir(), "no.sock")
	a.cfg.CNISocket = filepath.Join(t.TempDir(), "run", "cni.sock")
	ctx, cancel := context.WithCancel(t.Context())
	opened := make(chan error, 1)
	go func() { opened <- (&runner{agent: a}).openSwitch(ctx) }()
	for _, command := range []string{"ADD", "CHECK", "STATUS"} {
		var resp cni.Response
		until(t, "a response", func() (ok bool) { resp, ok = requestCNI(t, a.cfg.CNISocket, command); return ok })
		if !strings.Contains(resp.Error, "waits for Open vSwitch") || !strings.Contains(resp.Error, "no.sock") {
			t.Errorf("%s: %+v", command, resp)
		}
		if limited := resp.Code == types.ErrLimitedConnectivity; limited != (command == "STATUS") {
			t.Errorf("%s: code %d", command, resp.Code)
		}
	}
	if resp, ok := requestCNI(t, a.cfg.CNISocket, "DEL"); !ok || resp.Error != "" {
		t.Errorf("DEL: %+v", resp)
	}
	noted, err := os.ReadDir(filepath.Join(filepath.Dir(a.cfg.CNISocket), cni.DeletedDir))
	if err != nil || len(noted) != 1 {
		t.Errorf("recorded %v (%v)", noted, err)
	}
	cancel()
	if err := <-opened; err == nil {
		t.Error("it was opened")
	}
	if _, ok := requestCNI(t, a.cfg.CNISocket, "STATUS"); ok {
		t.Error("requests are served after the wait")
	}
}
