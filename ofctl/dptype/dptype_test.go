package dptype

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"testing"
)

func TestChoose(t *testing.T) {
	absent := fmt.Errorf("family: %w", syscall.ENOENT)
	for _, c := range []struct {
		wanted string
		probe  error
		want   string
		said   string
	}{
		{Auto, nil, System, "kernel's datapath"},
		{Auto, absent, Netdev, "no module openvswitch"},
		{Auto, errors.New("no netlink"), "", ""},
		{System, absent, System, ""},
		{Netdev, nil, Netdev, ""},
		{"dpdk", nil, "", ""},
	} {
		var said strings.Builder
		got, err := choose(c.wanted, slog.New(slog.NewTextHandler(&said, nil)), func() error { return c.probe })
		if got != c.want || (err == nil) != (c.want != "") || !strings.Contains(said.String(), c.said) || (c.said == "") != (said.Len() == 0) {
			t.Errorf("%s where the kernel says %v: got %q, %v, said %q", c.wanted, c.probe, got, err, said.String())
		}
	}
}

// TestChoose_ThisKernel compares the choice with the modules of the kernel that runs the test.
func TestChoose_ThisKernel(t *testing.T) {
	got, err := Choose(Auto, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	_, err = os.Stat("/sys/module/openvswitch")
	if want := map[bool]string{true: System, false: Netdev}[err == nil]; got != want {
		t.Errorf("chose %s, and /sys/module/openvswitch says %s", got, want)
	}
}
