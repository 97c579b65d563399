// Package podresources asks the kubelet which pod holds which device.
package podresources

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
	"time"

	"github.com/flowkeep/flowkeep/internal/macvtap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// DefaultSocket is where kubelets answer.
const DefaultSocket = "/var/lib/kubelet/pod-resources/kubelet.sock"

const (
	limit   = 10 * time.Second
	largest = 64 << 20 // bytes: an answer tells of all pods of a node, and of all their devices
)

// List asks who holds macvtap devices.
func List(ctx context.Context, socket string) ([]macvtap.Holder, error) {
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
	return holders(answer), nil
}

func holders(answer *api.ListPodResourcesResponse) (list []macvtap.Holder) {
	for _, p := range answer.GetPodResources() {
		for _, c := range p.GetContainers() {
			for _, d := range c.GetDevices() {
				name, ours := strings.CutPrefix(d.GetResourceName(), macvtap.Domain+"/")
				for _, id := range d.GetDeviceIds() {
					if ours {
						list = append(list, macvtap.Holder{Resource: name, Device: id, Namespace: p.GetNamespace(), Pod: p.GetName(), Container: c.GetName()})
					}
				}
			}
		}
	}
	macvtap.SortHolders(list)
	return list
}
