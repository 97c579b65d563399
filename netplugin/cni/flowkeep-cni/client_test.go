package main

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/flowkeep/flowkeep/netplugin/cni"
)

// listener is a socket on which somebody answers each request with answer.
func listener(t *testing.T, answer http.HandlerFunc) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "cni")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	h := &http.Server{Handler: answer}
	go func() { _ = h.Serve(l) }()
	t.Cleanup(func() { h.Close() })
	return socket
}

// Whatever comes from the socket, the runtime is told to try again, and why.
func TestAnswersThatAreNone(t *testing.T) {
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		want   string
	}{
		"never":       {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, "does not answer"},
		"not known":   {http.NotFound, "older than flowkeep-cni"},
		"no JSON":     {func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") }, "truncated"},
		"cut off":     {func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"mtu": 1`) }, "truncated"},
		"hung up":     {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "does not answer"},
		"no endpoint": {func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "{}") }, "has no endpoint"},
		"no address": {func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, `{"endpoint": {"addresses": ["10.0.0.2"]}, "gateways": ["x"]}`)
		}, "netplugin's response"},
	} {
		t.Run(name, func(t *testing.T) {
			patience := time.Minute
			if name == "never" {
				patience = 200 * time.Millisecond
			}
			resp, err := client{timeout: patience}.ask(&config{Socket: listener(t, c.answer)}, "ADD", new(cni.Request))
			if err == nil {
				_, err = resultOf(resp, new(skel.CmdArgs))
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
			var coded *types.Error
			if errors.As(err, &coded) && coded.Code != types.ErrTryAgainLater {
				t.Errorf("code %d", coded.Code)
			}
		})
	}
}

// DEL succeeds without a network namespace, with one that is gone, and without the pod's names.
func TestDelOfWhatIsGone(t *testing.T) {
	socket := netplugin(t, new(manager))
	for _, env := range []string{"CNI_NETNS=", "CNI_NETNS=/run/netns/gone", "CNI_ARGS="} {
		if out, err := plugin(t, "DEL", "1.1.0", socket, "", env, "CNI_NETNS_OVERRIDE="); err != nil && !strings.Contains(env, "ARGS") {
			t.Errorf("%s: %v (%v)", env, out, err)
		}
	}
}

func TestWrongSurroundings(t *testing.T) {
	m := new(manager)
	socket := netplugin(t, m)
	for _, c := range []struct {
		env  string
		code float64
	}{
		{"CNI_CONTAINERID=../c1", 4}, {"CNI_NETNS=", 4}, {"CNI_ARGS=nonsense", 4}, {"CNI_ARGS=K8S_POD_NAMESPACE=shop", 4},
	} {
		if out, err := plugin(t, "ADD", "1.1.0", socket, "", c.env); err == nil || out["code"] != c.code {
			t.Errorf("ADD with %s: %v (%v), want code %v", c.env, out, err, c.code)
		}
	}
	if m.added.Name != "" {
		t.Errorf("netplugin was asked %+v", m.added)
	}
}

// GC lists attachments under either name; null is what a runtime without any says.
func TestGCLists(t *testing.T) {
	for _, c := range []struct{ more, want string }{
		{`, "cni.dev/valid-attachments": null`, ""},
		{`, "cni.dev/attachments": [{"containerID": "c1", "ifname": "eth0"}]`, "c1/eth0"},
		{`, "cni.dev/valid-attachments": [], "cni.dev/attachments": [{"containerID": "c1", "ifname": "eth0"}]`, ""},
	} {
		m := new(manager)
		if out, err := plugin(t, "GC", "1.1.0", netplugin(t, m), c.more); err != nil || m.valid == nil || strings.Join(m.valid, " ") != c.want {
			t.Errorf("GC%s: %v (%v), kept %v", c.more, out, err, m.valid)
		}
	}
}
