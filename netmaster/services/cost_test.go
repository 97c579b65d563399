package services_test

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apifeed "github.com/flowkeep/flowkeep/api/feed"
	"github.com/flowkeep/flowkeep/internal/mtls"
	"github.com/flowkeep/flowkeep/internal/testkit/cputime"
	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/netmaster/feed"
	"github.com/flowkeep/flowkeep/netmaster/services"
	"github.com/flowkeep/flowkeep/netmaster/watch"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/service"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

// The cluster of BenchmarkServices, and the environment of the process that has its nodes.
const (
	manyServices  = 10_000
	manyEndpoints = 100_000
	changesOfASec = 100
	nodesOf       = "FLOWKEEP_BENCHMARK_NODES" // address of netmaster, directory of certificates, number
)

// TestMain has a process of BenchmarkServices be its nodes.
func TestMain(m *testing.M) {
	if os.Getenv(nodesOf) == "" {
		os.Exit(m.Run())
	}
	if err := drain(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// drain connects nodes, and prints a line for each that has the whole set.
func drain(server, pki, count string) error {
	n, err := strconv.Atoi(count)
	if err != nil {
		return err
	}
	failed := make(chan error, n)
	for i := range n {
		go func() { failed <- drainOne(server, pki, fmt.Sprint("node", i)) }()
	}
	return <-failed
}

func drainOne(server, pki, node string) error {
	files := mtls.Files{CA: pki + "/ca.crt", Cert: pki + "/" + node + ".crt", Key: pki + "/" + node + ".key"}
	config, err := files.ClientConfig()
	if err != nil {
		return err
	}
	large := grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(apifeed.MaxMasterMessage))
	conn, err := grpc.NewClient("passthrough:///"+server, grpc.WithTransportCredentials(credentials.NewTLS(config)), large)
	if err != nil {
		return err
	}
	stream, err := apifeed.NewFeedClient(conn).Stream(context.Background())
	if err != nil {
		return err
	}
	for part := range wire.HelloParts(&wire.Hello{Node: node, Program: "test", Versions: wire.Own()}) {
		if err := stream.Send(part); err != nil {
			return err
		}
	}
	for whole := false; ; {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		k := m.GetKeyed()
		if !whole && k.GetSet() == apifeed.KeyedSet_KEYED_SET_SERVICES && len(k.GetSum()) > 0 {
			whole = true
			fmt.Println("holds all")
		}
	}
}

// cluster is an API server with many Services of ten endpoints each, a slice each.
type cluster struct {
	mu   sync.Mutex
	next *watch.ServiceBatch
	wake chan struct{}
	r    *rand.Rand
}

func (c *cluster) Wake() <-chan struct{} { return c.wake }

func (c *cluster) Take() *watch.ServiceBatch {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := c.next
	c.next = &watch.ServiceBatch{Slices: map[string]*service.Slice{}}
	return out
}

func (c *cluster) CatchUp(context.Context, watch.Lister) error { return nil }

func (c *cluster) slice(i int) *service.Slice {
	name := fmt.Sprintf("service-%d", i)
	s := &service.Slice{
		Namespace: fmt.Sprintf("namespace-%d", i%500),
		Name:      name + "-x2v9k",
		Service:   name,
		Ports:     []service.SlicePort{{Name: "http", Protocol: policy.TCP, Port: 8080}},
	}
	for j := range manyEndpoints / manyServices {
		n := i*10 + j
		s.Endpoints = append(s.Endpoints, service.Endpoint{
			Address: netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)}),
			Pod:     fmt.Sprintf("%s/%s-7d9c5b8f6d-%05x", s.Namespace, name, n*7919%1_000_000),
			Node:    fmt.Sprintf("ip-10-0-%d-%d.eu-central-1.compute.internal", n%5000>>8, n%5000&255),
			Ready:   c.r.IntN(4) > 0,
			Serving: true,
		})
	}
	return s
}

// change changes an endpoint of a Service.
func (c *cluster) change() {
	c.mu.Lock()
	s := c.slice(c.r.IntN(manyServices))
	c.next.Slices[s.ID()] = s
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func newCluster() *cluster {
	c := &cluster{wake: make(chan struct{}, 1), r: rand.New(rand.NewPCG(1, 1)), next: &watch.ServiceBatch{
		Services: map[string]*service.Service{},
		Slices:   map[string]*service.Slice{},
	}}
	for i := range manyServices {
		slice := c.slice(i)
		s := &service.Service{
			Namespace:  slice.Namespace,
			Name:       slice.Service,
			ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{172, 20, byte(i >> 8), byte(i)})},
			Ports:      []service.Port{{Name: "http", Protocol: policy.TCP, Port: 80}},
		}
		c.next.Services[s.ID()], c.next.Slices[slice.ID()] = s, slice
	}
	c.wake <- struct{}{}
	return c
}

// counted counts bytes that are written.
type counted struct {
	net.Listener
	bytes atomic.Int64
}

func (l *counted) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return &countedConn{c, &l.bytes}, err
}

type countedConn struct {
	net.Conn
	bytes *atomic.Int64
}

func (c *countedConn) Write(b []byte) (int, error) {
	c.bytes.Add(int64(len(b)))
	return c.Conn.Write(b)
}

// serve has a netmaster serve a cluster's Services to nodes of another process, and returns when all hold them.
func serve(b *testing.B, c *cluster, nodes int) *counted {
	pki := b.TempDir()
	if err := mtls.Init(pki); err != nil {
		b.Fatal(err)
	}
	if err := mtls.IssueServer(pki, []string{"127.0.0.1"}); err != nil {
		b.Fatal(err)
	}
	for i := range nodes {
		if err := mtls.IssueNode(pki, fmt.Sprint("node", i)); err != nil {
			b.Fatal(err)
		}
	}
	own := func(name string) string { return filepath.Join(pki, name) }
	creds, err := mtls.ServerCredentials(mtls.Files{CA: own("ca.crt"), Cert: own("server.crt"), Key: own("server.key")})
	if err != nil {
		b.Fatal(err)
	}
	s := feed.NewServer(feed.Config{
		Logger: slog.New(slog.DiscardHandler),
		Events: func(context.Context, feed.Event) error { return nil },
	})
	keeper := services.New(c, s, nil, service.DefaultBudgets, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(context.Background())
	go keeper.Run(ctx)
	s.Ready()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	bytes := &counted{Listener: listener}
	g := grpc.NewServer(grpc.Creds(creds), grpc.MaxSendMsgSize(apifeed.MaxMasterMessage))
	apifeed.RegisterFeedServer(g, s)
	go func() { _ = g.Serve(bytes) }() // until it is stopped
	child := exec.Command(os.Args[0], listener.Addr().String(), pki, fmt.Sprint(nodes))
	child.Env, child.Stderr = append(os.Environ(), nodesOf+"=1"), os.Stderr
	out, err := child.StdoutPipe()
	if err == nil {
		err = child.Start()
	}
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = child.Process.Kill()
		_ = child.Wait()
		g.Stop()
		cancel()
	})
	lines := bufio.NewScanner(out)
	for range nodes {
		if !lines.Scan() {
			b.Fatal("the nodes' process has ended")
		}
	}
	return bytes
}

// BenchmarkServices is a second of a cluster with 10,000 Services, 100,000 endpoints and 100 changes a second. Its nodes
// are connected by TLS from another process. It reports the CPU time of netmaster and the bytes for a node, both a
// second, and the same of the first connection of all nodes:
//
//	go test -run '^$' -bench Services -benchtime 20x ./netmaster/services
func BenchmarkServices(b *testing.B) {
	for _, nodes := range []int{1, 500} {
		b.Run(fmt.Sprint(nodes), func(b *testing.B) {
			c, begun := newCluster(), cputime.Process()
			bytes := serve(b, c, nodes)
			tick := time.NewTicker(time.Second / changesOfASec)
			defer tick.Stop()
			before, sent := cputime.Process(), bytes.bytes.Load()
			for b.Loop() {
				for range changesOfASec {
					<-tick.C
					c.change()
				}
			}
			b.ReportMetric(float64((before - begun).Milliseconds()), "cpu-ms/join")
			b.ReportMetric(float64(sent)/float64(nodes)/1000, "kB/node/join")
			seconds := b.Elapsed().Seconds()
			b.ReportMetric(float64((cputime.Process()-before).Milliseconds())/seconds, "cpu-ms/s")
			b.ReportMetric(float64(bytes.bytes.Load()-sent)/float64(nodes)/seconds/1000, "kB/node/s")
		})
	}
}
