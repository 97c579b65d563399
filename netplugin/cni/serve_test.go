package cni

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flowkeep/flowkeep/netplugin/endpoints"
	"google.golang.org/grpc/test/bufconn"
)

// slow is a manager whose ADD says when it has begun and then does as it is told.
type slow struct {
	manager
	begun chan struct{}
	add   func(context.Context) error
}

func (s *slow) Add(ctx context.Context, _ endpoints.Request) (*endpoints.Result, error) {
	close(s.begun)
	return new(endpoints.Result), s.add(ctx)
}

// begin serves cfg at a path of its own, and returns the socket and what ends it.
func begin(t *testing.T, cfg Config) (socket string, end func() <-chan error) {
	t.Helper()
	if cfg.Socket == "" {
		dir, err := os.MkdirTemp("", "cni")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
		cfg.Socket = filepath.Join(dir, "s")
	}
	l, err := listen(cfg.Socket) // what is tested here comes after listening: no waiting for it
	if err != nil {
		t.Fatal(err)
	}
	return cfg.Socket, beginOn(t, l, cfg)
}

func beginOn(t *testing.T, l net.Listener, cfg Config) (end func() <-chan error) {
	cfg.Logger = slog.New(slog.DiscardHandler)
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	done := make(chan error, 1)
	go func() { done <- serveOn(ctx, l, cfg) }()
	return func() <-chan error { cancel(); return done }
}

func post(socket, body string) <-chan Response {
	out := make(chan Response, 1)
	go func() {
		conn, err := net.Dial("unix", socket)
		if err != nil {
			out <- Response{Error: err.Error()}
			return
		}
		out <- postOn(conn, body)
	}()
	return out
}

func postOn(conn net.Conn, body string) Response {
	defer conn.Close()
	fmt.Fprintf(conn, "POST /ADD HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	return answer(conn)
}

func answer(conn net.Conn) (r Response) {
	got, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return Response{Error: "no answer: " + err.Error()}
	}
	defer got.Body.Close()
	text, _ := io.ReadAll(got.Body)
	_ = json.Unmarshal(text, &r)
	return r
}

// The process goes on until the last request is answered: what an ADD began must not be left half done.
func TestShutdown_DrainsRequests(t *testing.T) {
	release := make(chan struct{})
	m := &slow{begun: make(chan struct{}), add: func(context.Context) error { <-release; return nil }}
	socket, end := begin(t, Config{Timeout: time.Minute, Grace: time.Minute, Manager: m})
	answered := post(socket, pod)
	<-m.begun
	ended := end()
	select {
	case err := <-ended:
		t.Fatalf("ended with an ADD under way: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	close(release)
	if r := <-answered; r.Error != "" {
		t.Errorf("the ADD was answered %+v", r)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// One that waits too long is told to stop, and may take back what it made.
func TestTheEndCutsWaitingShort(t *testing.T) {
	undone := false
	m := &slow{begun: make(chan struct{})}
	m.add = func(ctx context.Context) error {
		<-ctx.Done()
		undone = true
		return ctx.Err()
	}
	socket, end := begin(t, Config{Timeout: time.Minute, Grace: 20 * time.Millisecond, Manager: m})
	answered := post(socket, pod)
	<-m.begun
	if err := <-end(); err != nil || !undone {
		t.Errorf("ended with %v, undone: %v", err, undone)
	}
	if r := <-answered; r.Error == "" || r.Code != 11 {
		t.Errorf("the ADD was answered %+v", r)
	}
}

// A client that went away wants no pod any more.
func TestAClientThatGoesAwayEndsItsRequest(t *testing.T) {
	ended := make(chan struct{})
	m := &slow{begun: make(chan struct{}), add: func(ctx context.Context) error { <-ctx.Done(); close(ended); return ctx.Err() }}
	socket, end := begin(t, Config{Timeout: time.Minute, Manager: m})
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "POST /ADD HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(pod), pod)
	<-m.begun
	conn.Close()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Error("the ADD goes on for nobody")
	}
	<-end()
}

// A request must arrive in time; to be answered it may take longer.
func TestSlowClients(t *testing.T) { synctest.Test(t, testSlowClients) }

func testSlowClients(t *testing.T) {
	const arrival = 5 * time.Second
	m := &slow{begun: make(chan struct{})}
	m.add = func(ctx context.Context) error {
		select {
		case <-time.After(3 * arrival):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	l := bufconn.Listen(1 << 10)
	end := beginOn(t, l, Config{Timeout: time.Minute, Arrival: arrival, Manager: m})
	dial := func() net.Conn {
		conn, err := l.Dial()
		if err != nil {
			t.Fatal(err)
		}
		return conn
	}
	conn, began := dial(), time.Now()
	defer conn.Close()
	fmt.Fprintf(conn, "POST /ADD HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
	if r := answer(conn); !strings.Contains(r.Error, "timeout") || r.Code != 6 || time.Since(began) != arrival {
		t.Errorf("half a request was answered %+v after %v", r, time.Since(began))
	}
	began = time.Now()
	if r := postOn(dial(), pod); r.Error != "" || time.Since(began) != 3*arrival {
		t.Errorf("an ADD that takes longer than requests may take to arrive: %+v after %v", r, time.Since(began))
	}
	<-end()
}

// TestCommand_ThatNeverEnds waits for a disk that hangs, say: it is answered all the same, and before flowkeep-cni gives up.
func TestCommand_ThatNeverEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		m := &slow{begun: make(chan struct{}), add: func(context.Context) error { <-release; return nil }}
		l := bufconn.Listen(1 << 10)
		end := beginOn(t, l, Config{Timeout: 30 * time.Second, Manager: m})
		conn, err := l.Dial()
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		r := postOn(conn, pod)
		if r.Code != 11 || !strings.Contains(r.Error, "does the node's disk hang?") || time.Since(began) != 45*time.Second {
			t.Errorf("answered %+v after %v", r, time.Since(began))
		}
		close(release)
		<-end()
	})
}

// A process that ends leaves its successor's socket alone, and what is no socket is nobody's to remove.
func TestTheSocketIsTheSuccessors(t *testing.T) {
	first, endFirst := begin(t, Config{Timeout: time.Minute, Manager: new(manager)})
	_, endSecond := begin(t, Config{Socket: first, Timeout: time.Minute, Manager: new(manager)})
	if err := <-endFirst(); err != nil {
		t.Error(err)
	}
	if r := <-post(first, pod); r.Error != "" {
		t.Errorf("the successor: %+v", r)
	}
	<-endSecond()
	file := filepath.Join(t.TempDir(), "important")
	if err := os.WriteFile(file, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file, filepath.Dir(file), filepath.Join(file, "below")} {
		if err := Serve(t.Context(), Config{Socket: path, Manager: new(manager), Logger: slog.New(slog.DiscardHandler)}); err == nil {
			t.Errorf("serves on %s", path)
		}
	}
	if text, err := os.ReadFile(file); string(text) != "text" {
		t.Errorf("a file in the socket's place: %q, %v", text, err)
	}
}

// An empty list takes all apart; one that is missing, nothing.
func TestGCWithoutAList(t *testing.T) {
	m := new(manager)
	socket, _ := serve(t, m, time.Minute)
	for _, body := range []string{"{}", `{"valid": null}`, "null"} {
		if r, _ := ask(t, socket, "GC", body); r.Code != 7 {
			t.Errorf("GC %s: %+v", body, r)
		}
	}
	if len(m.asked) > 0 {
		t.Fatalf("asked %v", m.asked)
	}
	if r, _ := ask(t, socket, "GC", `{"valid": []}`); r.Error != "" || len(m.asked) != 1 {
		t.Errorf("GC of all: %+v, asked %v", r, m.asked)
	}
}

func TestCodes(t *testing.T) {
	for err, code := range map[error]uint{
		endpoints.ErrNotReady: 11, endpoints.ErrUnknown: 3, endpoints.ErrNetNS: 8, endpoints.ErrTaken: 4, endpoints.ErrChanged: 100, errors.New("no OVS"): 11,
		endpoints.ErrSwitch:      51,
		context.DeadlineExceeded: 11,
	} {
		m := &manager{err: fmt.Errorf("the operation: %w", err)}
		socket, stop := serve(t, m, time.Minute)
		if r, _ := ask(t, socket, "CHECK", pod); r.Code != code || !strings.Contains(r.Error, err.Error()) {
			t.Errorf("%v: %+v, want code %d", err, r, code)
		}
		_ = stop()
	}
}

// Names that skel lets no plugin say are refused here too: the socket may be asked by others.
func TestOddNames(t *testing.T) {
	m := new(manager)
	socket, _ := serve(t, m, time.Minute)
	for _, names := range [][2]string{{"../../etc/passwd", "eth0"}, {"c1", "../eth0"}, {"c1", "sixteen-chars-00"}, {"c 1", "eth0"}, {"c1", "."}, {"c1", "eth0\n"}, {"c1\x00", "eth0"}} {
		body := fmt.Sprintf(`{"namespace": "shop", "name": "db", "containerID": %q, "ifName": %q, "netns": "/x"}`, names[0], names[1])
		body = strings.ReplaceAll(body, `\x00`, `\u0000`)
		if r, _ := ask(t, socket, "ADD", body); r.Code != 4 {
			t.Errorf("%q: %+v", names, r)
		}
	}
	for _, command := range []string{"DEL", "CHECK"} {
		if r, _ := ask(t, socket, command, `{"containerID": "c1"}`); r.Code != 4 {
			t.Errorf("%s: %+v", command, r)
		}
	}
	if len(m.asked) > 0 {
		t.Errorf("asked %v", m.asked)
	}
}

// FuzzCommands: whatever command comes with whatever text, the manager is asked at most once, only with names that a file and a
// link may have, and GC never without a list. What fails has a code.
func FuzzCommands(f *testing.F) {
	for _, command := range []string{"ADD", "DEL", "CHECK", "GC", "STATUS", "", "../ADD", "add"} {
		for _, body := range []string{pod, "{}", "null", `{"valid": []}`, `{"valid": null}`, `{"valid": [null]}`, `{"containerID": "c", "ifName": "a/b"}`, pod + pod} {
			f.Add(command, body)
		}
	}
	f.Fuzz(func(t *testing.T, command, body string) {
		m := new(manager)
		s := &server{Config{Arrival: time.Minute, Timeout: time.Minute, Manager: m, Logger: slog.New(slog.DiscardHandler)}}
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body))
		r.URL.Path = "/" + command
		w := httptest.NewRecorder()
		s.routes().ServeHTTP(w, r)
		var resp Response
		switch {
		case w.Code != http.StatusOK:
			if len(m.asked) > 0 {
				t.Fatalf("%s was answered %d, and the manager asked %v", command, w.Code, m.asked)
			}
			return
		case json.Unmarshal(w.Body.Bytes(), &resp) != nil:
			t.Fatalf("answered %q", w.Body)
		case (resp.Error == "") != (len(m.asked) == 1), (resp.Error == "") != (resp.Code == 0):
			t.Fatalf("asked %v, answered %+v", m.asked, resp)
		}
		var in Request
		_ = json.Unmarshal([]byte(body), &in)
		if len(m.asked) == 1 && (command == "GC" && in.Valid == nil || command == "ADD" && (strings.ContainsAny(in.ContainerID+in.IfName, "/ \x00") || len(in.IfName) > 15)) {
			t.Fatalf("asked %q for %q", m.asked, body)
		}
	})
}
