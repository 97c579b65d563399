// Package podresources lists from the kubelet which pod holds which device.
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

	"github.com/flowkeep/flowkeep/macvtap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// DefaultSocket is where kubelets answer.
const DefaultSocket = "/var/lib/kubelet/pod-resources/kubelet.sock"

const (
	limit   = 10 * time.Second
	largest = 64 << 20 // bytes: a response lists all pods of a node, and all their devices
)

// List returns the holders of macvtap devices, and how many pods the kubelet lists, with devices or without.
func List(ctx context.Context, socket string) (holders []macvtap.Holder, pods int, err error) {
	if _, err := os.Stat(socket); errors.Is(err, fs.ErrNotExist) {
		return nil, 0, fmt.Errorf("list the holders of devices: the kubelet has no socket %s (give --pod-resources)", socket)
	}
	conn, err := grpc.NewClient("passthrough:///kubelet",
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"), grpc.WithNoProxy(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(largest)),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}))
	if err != nil {
		return nil, 0, fmt.Errorf("reach the kubelet: %w", err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	answer, err := api.NewPodResourcesListerClient(conn).List(ctx, &api.ListPodResourcesRequest{})
	if err != nil {
		return nil, 0, fmt.Errorf("list the holders of devices: %w", err)
	}
	return holdersIn(answer), len(answer.GetPodResources()), nil
}

// holdersIn returns the holders in a response, in order.
func holdersIn(answer *api.ListPodResourcesResponse) (list []macvtap.Holder) {
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
