package labelcache

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// pretend listens in memcached's place, and sends to each request for an item what respond returns until it returns "".
func pretend(t *testing.T, respond func(key string, n int) string) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "m")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	serve := func(conn net.Conn) {
		defer conn.Close()
		for in := bufio.NewScanner(conn); in.Scan(); {
			verb, key, _ := strings.Cut(in.Text(), " ")
			if verb == "version" {
				fmt.Fprint(conn, "VERSION 1\r\n")
				continue
			}
			for n := 0; ; n++ {
				text := respond(key, n)
				if text == "" {
					break
				}
				if _, err := fmt.Fprint(conn, text); err != nil {
					return
				}
			}
		}
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go serve(conn)
		}
	}()
	return socket
}

// once returns a response of one piece.
func once(text string) func(string, int) string {
	return func(key string, n int) string {
		if n > 0 {
			return ""
		}
		return strings.ReplaceAll(text, "KEY", strings.TrimSpace(strings.TrimPrefix(key, "s ")))
	}
}

// unhurried returns a server with time for each request.
func unhurried(t *testing.T, socket string) *server {
	s := newServer(socket)
	s.client.Timeout = time.Minute
	t.Cleanup(s.close)
	return s
}

// TestServer_BoundsResponses: a program in memcached's place makes a request neither endless nor large.
func TestServer_BoundsResponses(t *testing.T) {
	value := func(size string) string { return "VALUE KEY 0 " + size + "\r\n" }
	for name, respond := range map[string]func(string, int) string{
		"4 GiB":           once(value("4294967295") + "x"),
		"one byte more":   once(value(fmt.Sprint(maxItem+1)) + "x"),
		"2^63":            once(value("9223372036854775808")),
		"negative":        once(value("-3")),
		"no size":         once("VALUE KEY 0\r\n"),
		"two items":       once(value("1") + "x\r\n" + value("1") + "x\r\nEND\r\n"),
		"endless items":   func(_ string, _ int) string { return "VALUE k 0 1\r\nx\r\n" },
		"an endless line": func(_ string, _ int) string { return strings.Repeat("x", 1000) },
	} {
		t.Run(name, func(t *testing.T) {
			s := unhurried(t, pretend(t, respond))
			if got, err := s.get("k"); err == nil {
				t.Errorf("%d bytes", len(got))
			}
		})
	}
	s := unhurried(t, pretend(t, once(value("4294967295"))))
	if _, err := s.get("k"); !errors.Is(err, errTooMuch) {
		t.Errorf("the error is %v", err)
	}
	item := strings.Repeat("x", maxItem)
	s = unhurried(t, pretend(t, once(value(fmt.Sprint(maxItem))+item+"\r\nEND\r\n")))
	for range 2 { // on one connection
		if got, err := s.get("k"); err != nil || string(got) != item {
			t.Errorf("%d bytes, %v", len(got), err)
		}
	}
}

// TestLookups_WaitOnce: all look-ups for one answer together wait for memcached as long as one may. Then they look in
// process alone.
func TestLookups_WaitOnce(t *testing.T) {
	var requests atomic.Int64
	socket := pretend(t, func(_ string, n int) string {
		if n > 0 {
			return ""
		}
		requests.Add(1)
		return "END\r\n"
	})
	c := patient(Config{Servers: []string{socket}})
	t.Cleanup(c.servers[0].close)
	c.fetchTimeout = 1 // so one request takes all of the time
	c.Put("here", at(1), []byte("in process"), false)
	lookups := c.Lookups()
	for n := range 1000 {
		if _, _, ok := lookups.Get(fmt.Sprint("q", n), at(1)); ok {
			t.Fatal("an empty memcached has a value")
		}
	}
	if n := requests.Load(); n != 1 {
		t.Errorf("memcached had %d requests", n)
	}
	if v, from, ok := lookups.Get("here", at(1)); !ok || from != InProcess || string(v) != "in process" {
		t.Errorf("%q from %s, %v", v, from, ok)
	}
	if c.Get("q", at(1)); requests.Load() != 2 {
		t.Error("another answer does not look in memcached")
	}
}
