package hostnet

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"testing"
)

func TestDatapath(t *testing.T) {
	absent := fmt.Errorf("family: %w", syscall.ENOENT)
	for _, c := range []struct {
		wanted string
		probe  error
		want   string
		said   string
	}{
		{DatapathAuto, nil, DatapathSystem, "kernel's datapath"},
		{DatapathAuto, absent, DatapathNetdev, "no module openvswitch"},
		{DatapathAuto, errors.New("no netlink"), "", ""},
		{DatapathSystem, absent, DatapathSystem, ""},
		{DatapathNetdev, nil, DatapathNetdev, ""},
		{"dpdk", nil, "", ""},
	} {
		var said strings.Builder
		got, err := datapath(c.wanted, slog.New(slog.NewTextHandler(&said, nil)), func() error { return c.probe })
		if got != c.want || (err == nil) != (c.want != "") || !strings.Contains(said.String(), c.said) || (c.said == "") != (said.Len() == 0) {
			t.Errorf("%s where the kernel says %v: got %q, %v, said %q", c.wanted, c.probe, got, err, said.String())
		}
	}
}

// The kernel that the test runs on is asked: what it answers must be what it has.
func TestDatapathOfThisKernel(t *testing.T) {
	got, err := Datapath(DatapathAuto, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	_, err = os.Stat("/sys/module/openvswitch")
	if want := map[bool]string{true: DatapathSystem, false: DatapathNetdev}[err == nil]; got != want {
		t.Errorf("chose %s, and /sys/module/openvswitch says %s", got, want)
	}
}
