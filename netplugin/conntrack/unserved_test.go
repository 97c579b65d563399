package conntrack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// ofTranslations is the zone of connections to Services here.
const ofTranslations = 65519

// byAService is a connection of alice's to a Service that was translated to a server.
func byAService(protocol string, sport int, to string, port int) string {
	return fmt.Sprintf("%[1]s,orig=(src=10.0.0.2,dst=10.96.0.1,sport=%[2]d,dport=53),"+
		"reply=(src=%[3]s,dst=10.0.0.2,sport=%[4]d,dport=%[2]d),zone=65519", protocol, sport, to, port)
}

// TestUnserved_Ends: of an endpoint that serves no more the connections are deleted and counted, those of its protocol
// and port alone, and where the switch is away as soon as it is back.
func TestUnserved_Ends(t *testing.T) {
	kept := []string{
		byAService("tcp", 4, "10.0.0.1", 5353),
		byAService("udp", 5, "10.0.0.1", 9),
		byAService("udp", 6, "10.0.0.3", 5353),
		strings.Replace(byAService("udp", 7, "10.0.0.1", 5353), "10.96.0.1", "10.96.0.2", 1),
	}
	ct := &tracker{lines: append([]string{
		byAService("udp", 1, "10.0.0.1", 5353),
		byAService("udp", 2, "10.0.0.1", 5353),
	}, kept...), broken: errors.New("away")}
	counting(t, ct, func(_ context.Context, c *Counter) {
		c.Unserved([]ofctl.Connections{{
			Zone:     ofTranslations,
			Protocol: uint8(policy.UDP),
			Addr:     server,
			From:     true,
			Reply:    true,
			Port:     5353,
			To:       netip.MustParseAddrPort("10.96.0.1:53"),
		}})
		synctest.Wait()
		if _, sum, _ := c.Recent(); sum != 0 || len(ct.lines) != 6 {
			t.Errorf("while the switch is away: %d counted, left are %q", sum, ct.lines)
		}
		ct.set(nil)
		time.Sleep(time.Minute) // of the bubble
		synctest.Wait()
		recent, sum, problem := c.Recent()
		if sum != 2 || len(recent) != 1 || recent[0].Reason != ServiceGone || problem != nil {
			t.Errorf("%d counted: %+v, %v", sum, recent, problem)
		} else if why := recent[0].Why(); !strings.Contains(why, "10.0.0.1:5353 serves its Service no more") {
			t.Errorf("why: %s", why)
		}
		if !slices.Equal(ct.lines, kept) {
			t.Errorf("left are %q", ct.lines)
		}
	})
}

// TestGone_ForgetsTranslations: with a pod its connections by Services go, as a client and as an endpoint.
func TestGone_ForgetsTranslations(t *testing.T) {
	other := byAService("udp", 3, "10.0.0.3", 5353)
	for _, gone := range []netip.Addr{alice, server} {
		ct := &tracker{lines: []string{byAService("tcp", 1, "10.0.0.1", 80), byAService("udp", 2, "10.0.0.1", 5353)}}
		if gone == server {
			ct.lines = append(ct.lines, other)
		}
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			cfg := configured(ct)
			cfg.Zones, cfg.Translated = []uint16{ofPolicies, ofTranslations}, ofTranslations
			c := New(cfg)
			go c.Run(ctx)
			c.Begin(allowing(alice))
			c.Gone(ctx, "shop/gone", []netip.Addr{gone})
			if err := c.Free(ctx, []netip.Addr{gone}); err != nil {
				t.Error(err)
			}
			if left := slices.DeleteFunc(ct.lines, func(l string) bool { return l == other }); len(left) > 0 {
				t.Errorf("of %v is left %q", gone, left)
			}
			cancel()
			synctest.Wait()
		})
	}
}
