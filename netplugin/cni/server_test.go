package cni

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netplugin/endpoints"
)

// manager answers as it is told and notes what it was asked.
type manager struct {
	asked []string
	err   error
	block bool
}

func (m *manager) note(ctx context.Context, parts ...string) error {
	m.asked = append(m.asked, strings.Join(parts, " "))
	if m.block {
		<-ctx.Done()
		return ctx.Err()
	}
	return m.err
}

func (m *manager) Add(ctx context.Context, r endpoints.Request) (*endpoints.Result, error) {
	err := m.note(ctx, "add", r.Namespace, r.Name, r.ContainerID, r.IfName, r.NetNS)
	return &endpoints.Result{Endpoint: endpoints.Endpoint{Name: r.Name, Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.2")}},
		Network: endpoints.Network{MTU: 1400, Gateways: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}}, err
}
func (m *manager) Del(ctx context.Context, c, i string) error   { return m.note(ctx, "del", c, i) }
func (m *manager) Check(ctx context.Context, c, i string) error { return m.note(ctx, "check", c, i) }
func (m *manager) GC(ctx context.Context, valid []string) error {
	return m.note(ctx, append([]string{"gc"}, valid...)...)
}
func (m *manager) Ready() error { return m.note(context.Background(), "ready") }

// serve runs a server on a socket of its own.
func serve(t *testing.T, m *manager, timeout time.Duration) (socket string, stop func() error) {
	t.Helper()
	dir, err := os.MkdirTemp("", "cni") // short: unix socket paths have 108 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket = filepath.Join(dir, "s")
	crashed, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"}) // a crash leaves its socket
	if err != nil {
		t.Fatal(err)
	}
	crashed.SetUnlinkOnClose(false)
	crashed.Close()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- Serve(ctx, Config{Socket: socket, Timeout: timeout, Manager: m, Logger: slog.New(slog.DiscardHandler)})
	}()
	stop = func() error { cancel(); return <-done }
	deadline := time.Now().Add(time.Minute)
	for {
		if conn, err := net.Dial("unix", socket); err == nil {
			conn.Close()
			return socket, stop
		}
		if time.Now().After(deadline) {
			t.Fatal("the server does not listen")
		}
	}
}

func ask(t *testing.T, socket, command, body string) (out Response, status int) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	defer client.CloseIdleConnections()
	answer, err := client.Post("http://x/"+command, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	if answer.StatusCode == http.StatusOK {
		if err := json.Unmarshal(text, &out); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
	}
	return out, answer.StatusCode
}

const pod = `{"namespace": "shop", "name": "db", "containerID": "c1", "ifName": "eth0", "netns": "/run/netns/x"}`

func TestCommandsReachTheManager(t *testing.T) {
	m := new(manager)
	socket, stop := serve(t, m, time.Minute)
	if info, err := os.Stat(socket); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket is open to others: %v (%v)", info.Mode(), err)
	}
	r, _ := ask(t, socket, "ADD", pod)
	if r.Error != "" || r.Endpoint == nil || r.Endpoint.Name != "db" || r.MTU != 1400 || r.Gateways[0] != "10.0.0.1" {
		t.Errorf("%+v", r)
	}
	for _, command := range []string{"DEL", "CHECK", "STATUS"} {
		if r, _ := ask(t, socket, command, pod); r.Error != "" {
			t.Errorf("%s: %+v", command, r)
		}
	}
	ask(t, socket, "GC", `{"valid": ["c1/eth0", "c2/eth0"]}`)
	if got, want := strings.Join(m.asked, "; "), "add shop db c1 eth0 /run/netns/x; del c1 eth0; check c1 eth0; ready; gc c1/eth0 c2/eth0"; got != want {
		t.Errorf("the manager was asked\n%s, want\n%s", got, want)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// TestServe_Contested: the contested objects are readable on the socket.
func TestServe_Contested(t *testing.T) {
	want := []inspect.NetworkProblem{{Kind: inspect.NetworkContested, Node: "node1", Text: "rule 60 (by ip)"}}
	cfg := Config{Manager: &manager{}, Contested: func() []inspect.NetworkProblem { return want }}
	w := httptest.NewRecorder()
	(&server{cfg}).routes().ServeHTTP(w, httptest.NewRequest(http.MethodGet, inspect.ContestedPath, nil))
	var got []inspect.NetworkProblem
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || !slices.Equal(got, want) {
		t.Errorf("%d %s (%v), want %+v", w.Code, w.Body, err, want)
	}
}

func TestWhatGoesWrongIsSaid(t *testing.T) {
	m := &manager{err: errors.New("no address left")}
	socket, _ := serve(t, m, time.Minute)
	for name, c := range map[string]struct{ command, body, want string }{
		"the manager fails":       {"ADD", pod, "no address left"},
		"no JSON":                 {"ADD", "half a", "read the request"},
		"another type":            {"ADD", `{"name": 7}`, "read the request"},
		"no container":            {"ADD", `{"namespace": "shop", "name": "db", "ifName": "eth0", "netns": "/x"}`, "names no container"},
		"no pod":                  {"ADD", `{"containerID": "c1", "ifName": "eth0", "netns": "/x"}`, "names no container"},
		"a body that is too long": {"DEL", `{"name": "` + strings.Repeat("x", maxRequest) + `"}`, "too large"},
	} {
		before := len(m.asked)
		r, _ := ask(t, socket, c.command, c.body)
		if !strings.Contains(r.Error, c.want) {
			t.Errorf("%s: %q", name, r.Error)
		}
		if c.want != "no address left" && len(m.asked) != before {
			t.Errorf("%s: the manager was asked %v", name, m.asked[before:])
		}
	}
	m.err = endpoints.ErrNotReady
	if r, _ := ask(t, socket, "STATUS", "{}"); !r.NotReady || r.Error == "" {
		t.Errorf("not ready: %+v", r)
	}
	if _, status := ask(t, socket, "BOIL", "{}"); status != http.StatusNotFound {
		t.Errorf("a command that is none: %d", status)
	}
}

// A request ends with the time that it was given, and the others do not wait for it.
func TestASlowAddEnds(t *testing.T) {
	socket, _ := serve(t, &manager{block: true}, 50*time.Millisecond)
	if r, _ := ask(t, socket, "ADD", pod); !strings.Contains(r.Error, "deadline") {
		t.Errorf("%+v", r)
	}
}

// FuzzRequest: whatever is asked is answered in JSON, and no pod is wired that has no name, container or namespace.
func FuzzRequest(f *testing.F) {
	for _, seed := range []string{pod, "{}", "null", "[]", `{"valid": null}`, `{"name": "\u0000", "containerID": "../../x"}`, `{"ifName": "` + strings.Repeat("e", 99) + `"}`, "{\"a\":", "\xff"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, body string) {
		m := new(manager)
		s := &server{Config{Arrival: time.Minute, Timeout: time.Minute, Manager: m, Logger: slog.New(slog.DiscardHandler)}}
		w := httptest.NewRecorder()
		s.handle("ADD", s.add)(w, httptest.NewRequest(http.MethodPost, "/ADD", bytes.NewReader([]byte(body))))
		var r Response
		if err := json.Unmarshal(w.Body.Bytes(), &r); err != nil {
			t.Fatalf("answered %q: %v", w.Body, err)
		}
		if (r.Error == "") != (len(m.asked) == 1) {
			t.Fatalf("asked %v, answered %+v", m.asked, r)
		}
		if len(m.asked) == 1 {
			var in Request
			_ = json.NewDecoder(strings.NewReader(body)).Decode(&in)
			if in.Name == "" || in.Namespace == "" || in.ContainerID == "" || in.IfName == "" || in.NetNS == "" {
				t.Fatalf("wired: %+v", in)
			}
		}
	})
}

// TestCodeOf_ErrorsThatStay: a runtime does not try again what cannot become well by itself.
func TestCodeOf_ErrorsThatStay(t *testing.T) {
	for _, c := range []struct {
		err  error
		code uint
	}{
		{endpoints.ErrSecondInterface, types.ErrInvalidNetworkConfig},
		{endpoints.ErrTaken, types.ErrInvalidEnvironmentVariables},
		{endpoints.ErrNotReady, types.ErrTryAgainLater},
	} {
		if got := codeOf(fmt.Errorf("pod shop/db: %w", c.err)); got != c.code {
			t.Errorf("%v: code %d, want %d", c.err, got, c.code)
		}
	}
}
