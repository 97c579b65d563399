package appctl_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/ofctl/appctl"
	"github.com/flowkeep/flowkeep/ofctl/ovstest"
)

func TestCallsOfARealSwitch(t *testing.T) {
	sw := ovstest.Start(t, 1)
	socket, err := appctl.Socket(sw.Dir)
	if err != nil {
		t.Fatal(err)
	}
	if text, err := appctl.Call(t.Context(), socket, "version"); err != nil || !strings.Contains(text, "Open vSwitch") {
		t.Errorf("version: %q, %v", text, err)
	}
	if text, err := appctl.Call(t.Context(), socket, "ofproto/list"); err != nil || strings.TrimSpace(text) != sw.Bridge {
		t.Errorf("ofproto/list: %q, %v", text, err)
	}
	if text, err := appctl.Call(t.Context(), socket, "dpctl/ct-get-nconns", "dummy@ovs-dummy"); err != nil || strings.TrimSpace(text) != "0" {
		t.Errorf("dpctl/ct-get-nconns: %q, %v", text, err)
	}
	_, err = appctl.Call(t.Context(), socket, "fly/away", "now")
	if err == nil || !strings.Contains(err.Error(), `ovs-vswitchd refused fly/away: "fly/away" is not a valid command`) {
		t.Errorf("unknown command: %v", err)
	}
}

func TestSocketWithoutASwitch(t *testing.T) {
	dir := t.TempDir()
	if _, err := appctl.Socket(dir); err == nil {
		t.Error("found without a pid file")
	}
	for _, text := range []string{"", "x", "-1", "1 2"} {
		if err := os.WriteFile(filepath.Join(dir, "ovs-vswitchd.pid"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := appctl.Socket(dir); err == nil {
			t.Errorf("%q was taken for a pid", text)
		}
	}
}

// What answers wrongly, or not at all, is an error in time and never a hang.
func TestAStrangeSwitch(t *testing.T) {
	for name, answer := range map[string]string{"silence": "", "no JSON": "hello\n", "half": `{"result": "abc`, "nothing in it": `{"id":0,"result":null,"error":null}`} {
		t.Run(name, func(t *testing.T) {
			socket := filepath.Join(t.TempDir(), "ctl")
			l, err := net.Listen("unix", socket)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			go func() {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				defer conn.Close()
				_, _ = conn.Write([]byte(answer))
				if name == "silence" || name == "half" {
					_, _ = conn.Read(make([]byte, 1<<16))
					_, _ = conn.Read(make([]byte, 1)) // until the other end gives up
				}
			}()
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			if text, err := appctl.Call(ctx, socket, "version"); err == nil {
				t.Errorf("taken: %q", text)
			}
		})
	}
	if _, err := appctl.Call(t.Context(), filepath.Join(t.TempDir(), "none"), "version"); err == nil {
		t.Error("nobody listens, and no error")
	}
}
