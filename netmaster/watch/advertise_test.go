package watch

import (
	"context"
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// TestAdvertise: the slices name the leader that wrote last, and no other.
func TestAdvertise(t *testing.T) {
	client := fake.NewClientset()
	ports := map[string]uint16{"feed": 7443, "access": 7444}
	slices := func() (out []string) {
		list, err := client.DiscoveryV1().EndpointSlices("flowkeep-system").List(t.Context(), metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=netmaster"})
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range list.Items {
			text := s.Name
			for _, e := range s.Endpoints {
				text += fmt.Sprint(e.Addresses)
			}
			for _, p := range s.Ports {
				text += fmt.Sprint(" ", *p.Name, *p.Port)
			}
			out = append(out, text)
		}
		return out
	}
	for _, c := range []struct{ addresses, want string }{
		{"192.0.2.1 2001:db8::1", "[netmaster-leader-ipv4[192.0.2.1] access7444 feed7443 netmaster-leader-ipv6[2001:db8::1] access7444 feed7443]"},
		{"192.0.2.2", "[netmaster-leader-ipv4[192.0.2.2] access7444 feed7443]"},
		{"2001:db8::3", "[netmaster-leader-ipv6[2001:db8::3] access7444 feed7443]"},
	} {
		a := &Advertiser{Client: client, Namespace: "flowkeep-system", Service: "netmaster", Ports: ports}
		var one, two string
		if n, _ := fmt.Sscan(c.addresses, &one, &two); n == 2 {
			a.Addresses = append(a.Addresses, netip.MustParseAddr(two))
		}
		a.Addresses = append(a.Addresses, netip.MustParseAddr(one))
		if err := a.once(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(slices()); got != c.want {
			t.Errorf("%s: %s, want %s", c.addresses, got, c.want)
		}
	}
}

// A leader of before that stood still writes nothing over what the one of now has written: it does not know yet that it has lost.
func TestAdvertise_OnlyLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		var leads atomic.Bool
		a := &Advertiser{Client: client, Namespace: "flowkeep-system", Service: "netmaster", Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, Leads: leads.Load}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); a.Run(ctx, func(err error) { t.Error(err) }) }()
		synctest.Wait()
		if n := len(client.Actions()); n != 0 {
			t.Errorf("%d requests of one that does not lead", n)
		}
		leads.Store(true)
		time.Sleep(advertiseInterval)
		synctest.Wait()
		if len(client.Actions()) == 0 {
			t.Error("no requests of one that leads")
		}
		cancel()
		<-done
	})
}
