package podresources

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/macvtap"
	"google.golang.org/grpc"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"
)

type lister struct {
	api.UnimplementedPodResourcesListerServer
	answer *api.ListPodResourcesResponse
	err    error
}

func (l *lister) List(context.Context, *api.ListPodResourcesRequest) (*api.ListPodResourcesResponse, error) {
	return l.answer, l.err
}

func pod(name, resource string, ids ...string) *api.PodResources {
	return &api.PodResources{Namespace: "vms", Name: name, Containers: []*api.ContainerResources{
		{Name: "sidecar"}, {Name: "compute", Devices: []*api.ContainerDevices{{ResourceName: resource, DeviceIds: ids}}},
	}}
}

func TestList(t *testing.T) {
	dir, err := os.MkdirTemp("", "pr")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	socket := filepath.Join(dir, "kubelet.sock")
	if _, _, err := List(t.Context(), socket); err == nil || !strings.Contains(err.Error(), "--pod-resources") {
		t.Error(err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	answers := &lister{answer: &api.ListPodResourcesResponse{PodResources: []*api.PodResources{
		pod("b", "macvtap.network.kubevirt.io/data", "data:eth0:1", "data:eth0:0"), pod("c", "example.com/gpu", "0"),
		pod("a", "macvtap.network.kubevirt.io/quick", "quick:eth0:0"), nil,
	}}}
	server := grpc.NewServer()
	api.RegisterPodResourcesListerServer(server, answers)
	go func() { _ = server.Serve(l) }()
	defer server.Stop()
	got, pods, err := List(t.Context(), socket)
	want := []macvtap.Holder{
		{Resource: "data", Device: "data:eth0:0", Namespace: "vms", Pod: "b", Container: "compute"},
		{Resource: "data", Device: "data:eth0:1", Namespace: "vms", Pod: "b", Container: "compute"},
		{Resource: "quick", Device: "quick:eth0:0", Namespace: "vms", Pod: "a", Container: "compute"},
	}
	if err != nil || pods != 4 || !slices.Equal(got, want) {
		t.Errorf("%v: %v of %d pods", err, got, pods)
	}
	answers.err = errors.New("not now")
	if _, _, err := List(t.Context(), socket); err == nil || !strings.Contains(err.Error(), "not now") {
		t.Error(err)
	}
}
