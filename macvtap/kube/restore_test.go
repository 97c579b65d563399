package kube

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/internal/apitest"
	"github.com/flowkeep/flowkeep/internal/testkit/slow"
	"github.com/flowkeep/flowkeep/macvtap/api/v1alpha1"
	"k8s.io/client-go/rest"
)

// realServer is a real API server with the kinds of the agent, and an administrator's client of it.
type realServer struct {
	*testing.T
	*apitest.Server
	admin *Client
}

func startReal(t *testing.T) *realServer {
	t.Helper()
	s := &realServer{T: t, Server: apitest.New(t, "")}
	const crds = "../../deploy/crds/"
	s.must(s.Define(t.Context(), apitest.Admin, crds+"macvtapnetworknodepolicies.yaml", crds+"macvtapnodes.yaml"))
	s.admin = s.client()
	return s
}

func (s *realServer) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func (s *realServer) client() *Client {
	s.Helper()
	cfg := &rest.Config{Host: s.URL, BearerToken: "admin", QPS: 1000, Burst: 1000, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	c, err := newClient(cfg, "node1", slog.New(slog.DiscardHandler))
	s.must(err)
	return c
}

func (s *realServer) create(from rest.Interface, path string, o object) {
	s.Helper()
	text, err := json.Marshal(o)
	s.must(err)
	s.must(from.Post().AbsPath(path).Body(text).Do(s.Context()).Error())
}

// policy exposes eth0 as a resource of its own name.
func (s *realServer) policy(name string) {
	s.Helper()
	s.create(s.admin.macvtap, "/apis/macvtap.network.kubevirt.io/v1alpha1/namespaces/ns/macvtapnetworknodepolicies", object{
		"kind": "MacvtapNetworkNodePolicy", "apiVersion": "macvtap.network.kubevirt.io/v1alpha1", "metadata": object{"name": name},
		"spec": object{"parentSelector": []object{{"parentIface": "eth0", "resourceName": name}}},
	})
}

// reports has c report links until the API server has a summary.
func (s *realServer) reports(c *Client, want string, links ...string) {
	s.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(slow.Stretch(time.Minute)); ; <-tick.C {
		reported := c.Report(s.Context(), reportOf(c, links...))
		n := new(v1alpha1.MacvtapNode)
		err := s.admin.macvtap.Get().Resource(v1alpha1.ResourceNode).Name("node1").Do(s.Context()).Into(n)
		if err == nil && n.Status.Summary == want {
			return
		}
		if time.Now().After(end) {
			s.Fatalf("the status has %q, want %q: %v, %v", n.Status.Summary, want, reported, err)
		}
	}
}

// TestFollow_EtcdRestored restores a real etcd from a backup while the API server is followed: what came after the backup
// goes, what comes after the restore arrives, and the status, which was restored too, is written again.
func TestFollow_EtcdRestored(t *testing.T) {
	s := startReal(t)
	s.create(s.admin.core.RESTClient(), "/api/v1/nodes", object{"kind": "Node", "apiVersion": "v1", "metadata": object{"name": "node1"}})
	s.create(s.admin.core.RESTClient(), "/api/v1/namespaces", object{"kind": "Namespace", "apiVersion": "v1", "metadata": object{"name": "ns"}})
	s.policy("kept")
	c := s.client()
	await := follow(t, c)
	has := func(what string, names ...string) {
		t.Helper()
		await(what, func(n told) bool {
			if n.err != nil || n.intent.Absent {
				return false
			}
			var have []string
			for _, p := range n.intent.Policies {
				have = append(have, p.Name)
			}
			return slices.Equal(have, names)
		})
	}
	has("a policy", "kept")
	s.reports(c, "nothing", "eth1")
	s.must(s.Backup())
	s.reports(c, "kept (eth0)", "eth0")
	lost := []string{"kept"}
	for i := range 100 {
		lost = append(lost, fmt.Sprintf("lost%02d", i))
		s.policy(lost[i+1])
	}
	has("policies after the backup", lost...)
	s.must(s.Restore())
	s.policy("new")
	has("the policies of the backup and a new one", "kept", "new")
	s.reports(c, "kept (eth0), new (eth0)", "eth0")
}
