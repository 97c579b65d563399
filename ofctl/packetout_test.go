package ofctl_test

import (
	"context"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/ofctl/ovstest"
)

const udpFrame = "in_port(1),eth(src=02:00:00:00:00:01,dst=02:00:00:00:00:02),eth_type(0x0800)," +
	"ipv4(src=10.0.0.1,dst=10.0.0.2,proto=17,tos=0,ttl=64,frag=no),udp(src=4321,dst=53)"

// A packet goes to the connection of the controller that its action names, and to no other one.
func TestControllerGetsItsOwnPackets(t *testing.T) {
	sw := ovstest.Start(t, 2)
	s := connect(t, sw)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	flows := []ofctl.Flow{
		{Match: ofctl.Match{InPort: 1}, Actions: []ofctl.Action{{Kind: ofctl.Controller, Value: 128, Zone: 7}}},
		{Match: ofctl.Match{InPort: 2}, Actions: []ofctl.Action{{Kind: ofctl.Controller, Value: 128}}},
	}
	if err := s.Commit(ctx, mods(ofctl.Add, flows)); err != nil {
		t.Fatal(err)
	}
	if err := s.Dump(ctx, func(f ofctl.Flow, err error) error {
		if f.Match.InPort == 1 && f.Actions[0] != flows[0].Actions[0] {
			t.Errorf("%s comes back as %s", flows[0], f)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	got := map[uint16]chan *ofctl.PacketIn{}
	for _, id := range []uint16{0, 7} {
		packets := make(chan *ofctl.PacketIn, 100)
		got[id] = packets
		ear, err := ofctl.ConnectController(ctx, sw.Management(), id, 128, func(p *ofctl.PacketIn) { packets <- p })
		if err != nil {
			t.Fatal(err)
		}
		defer ear.Close()
		if err := ear.Barrier(ctx); err != nil {
			t.Fatal(err)
		}
	}
	sw.AppCtl(t, "netdev-dummy/receive", "p1", udpFrame)
	sw.AppCtl(t, "netdev-dummy/receive", "p2", udpFrame)
	for id, port := range map[uint16]uint32{0: 2, 7: 1} {
		select {
		case p := <-got[id]:
			if p.Match.InPort != port || len(got[id]) > 0 {
				t.Errorf("controller %d got a packet of port %d, and %d more", id, p.Match.InPort, len(got[id]))
			}
		case <-ctx.Done():
			t.Fatalf("controller %d got no packet", id)
		}
	}
}

// A frame leaves by the port that the actions name, with the Ethernet addresses that they set.
func TestSendPacketLeavesByItsPort(t *testing.T) {
	sw := ovstest.Start(t, 2)
	s := connect(t, sw)
	frame := make([]byte, 60)
	copy(frame, []byte{2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8, 8, 0, 0x45, 0, 0, 46})
	actions := []ofctl.Action{{Kind: ofctl.SetEthSrc, MAC: ofctl.MAC{2, 1}}, {Kind: ofctl.Output, Port: 2}}
	if err := s.SendPacket(frame, actions); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); sw.Sent(t, 2) == 0; {
		if time.Now().After(deadline) {
			t.Fatal("the frame did not leave")
		}
	}
	if n := sw.Sent(t, 1); n != 0 {
		t.Errorf("%d frames left by another port", n)
	}
	if err := s.SendPacket(make([]byte, ofctl.MaxPacketOut+1), actions); err == nil {
		t.Error("a frame longer than a message was sent")
	}
}
