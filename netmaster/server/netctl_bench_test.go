package server

import (
	"bytes"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/internal/mtls"
	answers "github.com/flowkeep/flowkeep/netmaster/query"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

// netctlReads returns the calls of BenchmarkNetctl.
func netctlReads() map[string][]string {
	some := []string{"matrix"}
	for n := range 100 {
		some = append(some, "-n", fmt.Sprintf("ns-%d", n))
	}
	return map[string][]string{
		"policy ls":                {"policy", "ls"},
		"policy ls -o json":        {"policy", "ls", "-o", "json"},
		"endpoint ls":              {"endpoint", "ls"},
		"matrix of a namespace":    {"matrix", "-n", "ns-1"},
		"matrix of 100 namespaces": some,
		"lint of a namespace":      {"lint", "-n", "ns-1"},
	}
}

// BenchmarkNetctl measures netctl, from the start of the program to its end, at 100,000 pods and 10,000 policies, with
// and without memcached: the first time and again, from the leader and from a standby. A standby with an empty cache
// has the answer from memcached, or else from the leader. Clients, leader and standby are connected by TLS.
func BenchmarkNetctl(b *testing.B) {
	b.Run("memcached", func(b *testing.B) {
		socket, _ := memcached(b)
		measureNetctl(b, socket)
	})
	b.Run("alone", func(b *testing.B) { measureNetctl(b) })
}

func measureNetctl(b *testing.B, servers ...string) {
	r, dir := newReads(b, servers...), filepath.Join(b.TempDir(), "pki")
	for _, err := range []error{mtls.Init(dir), mtls.IssueServer(dir, []string{"127.0.0.1"}), mtls.IssueAdmin(dir)} {
		if err != nil {
			b.Fatal(err)
		}
	}
	n := buildNetctl(b, keyFiles(dir, "admin"))
	leader := listen(b, dir, r.leader)
	r.standby.Peer = connectedPeer(b, dir, leader)
	b.Run("--version", func(b *testing.B) {
		for b.Loop() {
			n.measure(b, "ms-first", leader, []string{"--version"})
		}
		b.ReportMetric(0, "ns/op")
	})
	for name, args := range netctlReads() {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				r.revision.Add(1) // so that nothing is cached
				r.owner.longest = 0
				n.measure(b, "ms-first", leader, args)
				b.ReportMetric(milliseconds(r.owner.longest), "ms-held")
				n.measure(b, "ms-again", leader, args)
				found, tries := 0.0, 1
				if len(servers) > 0 {
					tries = 20 // memcached is filled behind the leader's answer
				}
				var standby string
				for ; tries > 0 && found == 0; tries-- {
					standby = listen(b, dir, r.newStandby())
					if strings.Contains(n.measure(b, "ms-standby", standby, args), "(memcached)") {
						found = 1
					}
				}
				b.ReportMetric(found, "memcached")
				n.measure(b, "ms-standby-again", standby, args)
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// measure reports for how long netctl runs, with its CPU time, and returns what it prints to standard error.
func (n *netctl) measure(b *testing.B, unit, address string, args []string) string {
	b.Helper()
	var errOut bytes.Buffer
	cmd := n.command(address, args...)
	cmd.Stderr = &errOut
	began := time.Now()
	err := cmd.Run()
	took := time.Since(began)
	if err != nil && (args[0] != "lint" || cmd.ProcessState.ExitCode() != 1) { // lint has findings
		b.Fatalf("netctl %q: %v: %s", args, err, &errOut)
	}
	b.ReportMetric(milliseconds(took), unit)
	b.ReportMetric(milliseconds(cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime()), strings.Replace(unit, "ms-", "cpu-", 1))
	return errOut.String()
}

// listen has queries served as netmaster serves them, and returns the address.
func listen(b *testing.B, dir string, s *answers.Server) string {
	b.Helper()
	tls, err := mtls.ServerCredentials(keyFiles(dir, "server"))
	if err != nil {
		b.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	g := newGRPCServer(tls)
	inspect.Register(g, s)
	done := make(chan error)
	go func() { done <- g.Serve(l) }()
	b.Cleanup(func() { g.Stop(); <-done })
	return l.Addr().String()
}

// connectedPeer returns a standby's connection to the leader at an address.
func connectedPeer(b *testing.B, dir, address string) answers.Leader {
	b.Helper()
	config, err := keyFiles(dir, "admin").ClientConfig()
	if err != nil {
		b.Fatal(err)
	}
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { conn.Close() })
	var leader atomic.Value
	leader.Store("leader")
	return &peer{
		s:        &server{cfg: Config{Election: &named{leader: &leader}}},
		identity: "leader",
		conn:     conn,
	}
}
