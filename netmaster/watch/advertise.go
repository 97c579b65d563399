package watch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/flowkeep/flowkeep/api/wellknown"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applydiscovery "k8s.io/client-go/applyconfigurations/discovery/v1"
	"k8s.io/client-go/kubernetes"
)

// Advertiser points a Service to the leader by writing its EndpointSlices.
type Advertiser struct {
	Client             kubernetes.Interface
	Namespace, Service string
	Addresses          []netip.Addr
	Ports              map[string]uint16 // by their names in the Service
	// Leads reports whether this instance still holds the Lease. Nil: always.
	Leads func() bool
}

// Timeout and interval of writing the leader's address.
const (
	advertiseTimeout  = 2 * time.Second
	advertiseInterval = 10 * time.Second
)

// Run writes the EndpointSlices repeatedly until ctx ends, which corrects changes by others. It calls failed with
// errors.
func (a *Advertiser) Run(ctx context.Context, failed func(error)) {
	for ctx.Err() == nil {
		wait := advertiseInterval
		if a.Leads != nil && !a.Leads() {
			wait = time.Second
		} else if err := a.once(ctx); err != nil && ctx.Err() == nil {
			failed(err)
			wait = time.Second
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
}

func (a *Advertiser) once(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, advertiseTimeout)
	defer cancel()
	return errors.Join(a.slice(ctx, "ipv4", discoveryv1.AddressTypeIPv4, netip.Addr.Is4),
		a.slice(ctx, "ipv6", discoveryv1.AddressTypeIPv6, netip.Addr.Is6))
}

// slice writes the addresses of a family. Without any it deletes the slice of an earlier leader.
func (a *Advertiser) slice(ctx context.Context, family string, kind discoveryv1.AddressType,
	of func(netip.Addr) bool) error {
	name := a.Service + "-leader-" + family
	client := a.Client.DiscoveryV1().EndpointSlices(a.Namespace)
	var texts []string
	for _, addr := range a.Addresses {
		if of(addr) {
			texts = append(texts, addr.String())
		}
	}
	if len(texts) == 0 {
		if err := client.Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete EndpointSlice %s: %w", name, err)
		}
		return nil
	}
	slice := applydiscovery.EndpointSlice(name, a.Namespace).WithAddressType(kind).
		WithLabels(map[string]string{
			discoveryv1.LabelServiceName: a.Service,
			wellknown.LabelManagedBy:     wellknown.ManagedByNetmaster,
		}).
		WithEndpoints(applydiscovery.Endpoint().
			WithAddresses(texts...).
			WithConditions(applydiscovery.EndpointConditions().WithReady(true).WithServing(true)))
	for _, port := range slices.Sorted(maps.Keys(a.Ports)) {
		slice.WithPorts(
			applydiscovery.EndpointPort().
				WithName(port).
				WithPort(int32(a.Ports[port])).
				WithProtocol(corev1.ProtocolTCP),
		)
	}
	options := metav1.ApplyOptions{FieldManager: "flowkeep-netmaster", Force: true}
	if _, err := client.Apply(ctx, slice, options); err != nil {
		return fmt.Errorf("write EndpointSlice %s: %w", name, err)
	}
	return nil
}
