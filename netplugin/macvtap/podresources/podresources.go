// Package podresources asks the kubelet which pod holds which device.
package podresources

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/flowkeep/flowkeep/internal/macvtap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// DefaultSocket is where kubelets answer.
const DefaultSocket = "/var/lib/kubelet/pod-resources/kubelet.sock"

// Holding is a device that a container has.
type Holding struct {
	Resource  string // without the domain
	Device    string
	Namespace string
	Pod       string
	Container string
}

const (
	limit   = 10 * time.Second
	largest = 64 << 20 // bytes: an answer tells of all pods of a node, and of all their devices
)

// List asks for all holdings of macvtap devices, by device.
func List(ctx context.Context, socket string) ([]Holding, error) {
	if _, err := os.Stat(socket); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("the kubelet does not tell which pods hold devices: there is no %s (give --pod-resources)", socket)
	}
	conn, err := grpc.NewClient("passthrough:///kubelet",
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"), grpc.WithNoProxy(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(largest)),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}))
	if err != nil {
		return nil, fmt.Errorf("reach the kubelet: %w", err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	answer, err := api.NewPodResourcesListerClient(conn).List(ctx, &api.ListPodResourcesRequest{})
	if err != nil {
		return nil, fmt.Errorf("ask the kubelet which pods hold devices: %w", err)
	}
	return holdings(answer), nil
}

func holdings(answer *api.ListPodResourcesResponse) (list []Holding) {
	for _, p := range answer.GetPodResources() {
		for _, c := range p.GetContainers() {
			for _, d := range c.GetDevices() {
				name, ours := strings.CutPrefix(d.GetResourceName(), macvtap.Domain+"/")
				for _, id := range d.GetDeviceIds() {
					if ours {
						list = append(list, Holding{name, id, p.GetNamespace(), p.GetName(), c.GetName()})
					}
				}
			}
		}
	}
	slices.SortFunc(list, func(a, b Holding) int {
		return cmp.Or(cmp.Compare(a.Device, b.Device), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Container, b.Container))
	})
	return list
}
