package server

import (
	"net"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/internal/mtls"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// memcached runs a real one on a unix socket and gives a function that kills it.
func memcached(t testing.TB) (socket string, kill func()) {
	t.Helper()
	program, err := exec.LookPath("memcached")
	if err != nil {
		t.Skip("memcached is not installed: apt-get install memcached")
	}
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	socket = filepath.Join(t.TempDir(), "m")
	cmd := exec.Command(program, "-s", socket, "-u", me.Username)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	killed := false
	kill = func() {
		if !killed {
			killed = true
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	}
	t.Cleanup(kill)
	until(t, "memcached listens", func() bool {
		conn, err := net.Dial("unix", socket)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	return socket, kill
}

var web = policy.GroupSpec{Namespace: "ns", Pods: &policy.Selector{Requirements: []policy.Requirement{{Key: "app", Operator: policy.In, Values: []string{"web"}}}}}

// The end of memcached is shown, and policies are enforced as before.
func TestMemcachedEnds(t *testing.T) {
	socket, kill := memcached(t)
	w := newWorld(t, shop(t)...)
	m := w.start(func(c *Config) { c.Memcached = []string{socket} })
	n := held(m, "node1")
	until(t, "memcached is used", func() bool { return m.metric("labelcache_memcached_up") == 1 })
	kill()
	if err := w.client.NetworkingV1().NetworkPolicies("ns").Delete(t.Context(), "p", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, "the policy is gone", n.is(func() bool { return len(n.rules) == 0 }))
	until(t, "the outage is shown", func() bool {
		return m.metric("labelcache_memcached_up") == 0 && strings.Contains(strings.Join(m.status().Problems, " "), "memcached does not answer")
	})
}

func (m *master) ask(f func(grpc.ClientConnInterface) error) {
	m.Helper()
	_ = mtls.IssueAdmin(m.pki)
	config, err := m.files("admin").ClientConfig()
	if err != nil {
		m.Fatal(err)
	}
	conn, err := grpc.NewClient("passthrough:///"+m.addr, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	if err != nil {
		m.Fatal(err)
	}
	defer conn.Close()
	if err := f(conn); err != nil {
		m.Fatal(err)
	}
}

func (m *master) status() (out inspect.Status) {
	m.ask(func(c grpc.ClientConnInterface) (err error) {
		out, err = inspect.Ask[inspect.Status](m.Context(), c, inspect.Question{Kind: inspect.AskStatus})
		return err
	})
	return out
}

func (m *master) lookup() (out inspect.Lookup) {
	m.ask(func(c grpc.ClientConnInterface) (err error) {
		out, err = inspect.Ask[inspect.Lookup](m.Context(), c, inspect.Question{Kind: inspect.AskLookup, Namespace: "ns", Selector: web.Pods})
		return err
	})
	return out
}

// A look-up is answered from the cache until something happens that could change it, even where no policy is concerned.
func TestLookupIsNeverStale(t *testing.T) {
	objects := shop(t)
	w := newWorld(t, objects[:len(objects)-1]...) // no policy, so no revision changes
	m := w.start()
	m.ready()
	if a := m.lookup(); a.Source != "engine" || strings.Join(a.Endpoints, " ") != "ns/web" {
		t.Fatalf("%+v", a)
	}
	if a := m.lookup(); a.Source != "in-process" || strings.Join(a.Endpoints, " ") != "ns/web" {
		t.Fatalf("%+v", a)
	}
	if _, err := w.client.CoreV1().Pods("ns").Update(t.Context(), pod("db", "web", "node1", "10.0.1.1"), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, "the look-up sees the label", func() bool { return strings.Join(m.lookup().Endpoints, " ") == "ns/db ns/web" })
}
