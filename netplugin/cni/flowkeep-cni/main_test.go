package main

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/netplugin/cni"
	"github.com/flowkeep/flowkeep/netplugin/endpoints"
)

// asPlugin makes the test's own program the plugin.
const asPlugin = "FLOWKEEP_CNI_TEST"

func TestMain(m *testing.M) {
	if os.Getenv(asPlugin) != "" {
		client{timeout: timeout}.run()
		return
	}
	os.Setenv("GORACE", os.Getenv("GORACE")+" atexit_sleep_ms=0") // under the race detector each plugin would sleep for a second as it ends
	os.Exit(m.Run())
}

type manager struct {
	err      error
	notReady atomic.Pointer[error] // of Ready, instead of err; may be set during requests
	added    endpoints.Request
	valid    []string
}

func (m *manager) Add(_ context.Context, r endpoints.Request) (*endpoints.Result, error) {
	m.added = r
	return &endpoints.Result{
		Endpoint: endpoints.Endpoint{HostIfName: "fkp1", MAC: endpoints.MAC{2, 0, 0, 0, 0, 7}, Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00::2")}},
		Network:  endpoints.Network{MTU: 1400, Gateways: []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")}}}, m.err
}
func (m *manager) Del(context.Context, string, string) error   { return m.err }
func (m *manager) Check(context.Context, string, string) error { return m.err }
func (m *manager) GC(_ context.Context, valid []string) error  { m.valid = valid; return m.err }
func (m *manager) Ready() error {
	if err := m.notReady.Load(); err != nil {
		return *err
	}
	return m.err
}

// netplugin answers on a socket; the address is returned.
func netplugin(t *testing.T, m *manager) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "cni")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	serveOn(t, socket, m)
	return socket
}

// serveOn serves a socket, and returns when it can be connected to.
func serveOn(t *testing.T, socket string, m *manager) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- cni.Serve(ctx, cni.Config{Socket: socket, Timeout: time.Minute, Manager: m, Logger: slog.New(slog.DiscardHandler)})
	}()
	t.Cleanup(func() { cancel(); <-done })
	for deadline := time.Now().Add(time.Minute); ; {
		if _, err := os.Stat(socket); err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("netplugin does not listen")
		}
	}
}

// plugin runs the plugin as a runtime does. conf is the network configuration without its socket.
func plugin(t *testing.T, command, version, socket, more string, env ...string) (map[string]any, error) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), asPlugin+"=1", "CNI_COMMAND="+command, "CNI_PATH=/nowhere", "CNI_CONTAINERID=c1", "CNI_IFNAME=eth0", "CNI_NETNS=/proc/self/ns/net",
		"CNI_NETNS_OVERRIDE=1", "CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=db;K8S_POD_UID=u1")
	cmd.Env = append(cmd.Env, env...)
	cmd.Stdin = strings.NewReader(`{"cniVersion": "` + version + `", "name": "flowkeep", "type": "flowkeep-cni", "socket": "` + socket + `"` + more + `}`)
	out, err := cmd.Output()
	var answer map[string]any
	if len(out) > 0 {
		if jsonErr := json.Unmarshal(out, &answer); jsonErr != nil {
			t.Fatalf("%s printed %q: %v", command, out, jsonErr)
		}
	}
	return answer, err
}

func TestAddInEveryVersion(t *testing.T) {
	m := new(manager)
	socket := netplugin(t, m)
	for _, version := range []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		out, err := plugin(t, "ADD", version, socket, "")
		if err != nil || out["cniVersion"] != version {
			t.Errorf("%s: %v (%v)", version, out, err)
			continue
		}
		ips, _ := json.Marshal(out["ips"])
		for _, want := range []string{`"address":"10.0.0.2/32"`, `"gateway":"10.0.0.1"`, `"address":"fd00::2/128"`, `"interface":1`} {
			if !strings.Contains(string(ips), want) {
				t.Errorf("%s: ips %s, want %s", version, ips, want)
			}
		}
	}
	if want := (endpoints.Request{Namespace: "shop", Name: "db", UID: "u1", ContainerID: "c1", IfName: "eth0", NetNS: "/proc/self/ns/net"}); !reflect.DeepEqual(m.added, want) {
		t.Errorf("netplugin was asked %+v", m.added)
	}
}

func TestFailuresHaveTheSpecificationsCodes(t *testing.T) {
	m := &manager{err: errors.New("no address left")}
	socket := netplugin(t, m)
	for name, c := range map[string]struct {
		command, version, socket, more string
		code                           float64
		text                           string
	}{
		"ADD fails":                   {"ADD", "1.1.0", socket, "", 11, "no address left"},
		"DEL fails":                   {"DEL", "1.1.0", socket, "", 11, "no address left"},
		"CHECK fails":                 {"CHECK", "1.1.0", socket, `, "prevResult": {"cniVersion": "1.1.0"}`, 11, "no address left"},
		"STATUS: not ready":           {"STATUS", "1.1.0", socket, "", 50, "no address left"},
		"netplugin is away":           {"ADD", "1.1.0", socket + "x", "", 11, "is it running"},
		"STATUS: netplugin is away":   {"STATUS", "1.1.0", socket + "x", "", 50, "is it running"},
		"a version that is none":      {"ADD", "7.0.0", socket, "", 1, "incompatible"},
		"a command that is none":      {"BOIL", "1.1.0", socket, "", 4, "BOIL"},
		"GC fails":                    {"GC", "1.1.0", socket, `, "cni.dev/valid-attachments": []`, 11, "no address left"},
		"GC without its list":         {"GC", "1.1.0", socket, "", 7, "all pods would lose their network"},
		"GC with no list":             {"GC", "1.1.0", socket, `, "cni.dev/valid-attachments": 7`, 6, "no list"},
		"GC in a version without it":  {"GC", "1.0.0", socket, `, "cni.dev/valid-attachments": []`, 1, "GC"},
		"an unknown name of the list": {"GC", "1.1.0", socket, `, "valid-attachments": []`, 7, "all pods would lose their network"},
		"configuration is of no type": {"ADD", "1.1.0", socket, `, "mtu": `, 6, ""},
	} {
		out, err := plugin(t, c.command, c.version, c.socket, c.more)
		text, _ := json.Marshal(out)
		if err == nil || out["code"] != c.code || !strings.Contains(string(text), c.text) {
			t.Errorf("%s: %s (%v), want code %v and %q", name, text, err, c.code, c.text)
		}
	}
}

// DEL succeeds without netplugin and is made up for when it is back. An ADD of the same attachment cancels it.
func TestDelWithoutNetplugin(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "none", "cni.sock")
	for _, container := range []string{"c1", "c2", "c2", "c3"} {
		if out, err := plugin(t, "DEL", "1.1.0", socket, "", "CNI_CONTAINERID="+container, "CNI_NETNS="); err != nil {
			t.Fatalf("%v (%v)", out, err)
		}
	}
	var deleted []string
	del := func(_ context.Context, container, ifName string) error {
		if container == "c2" && len(deleted) < 3 {
			deleted = append(deleted, "failed")
			return errors.New("not now")
		}
		deleted = append(deleted, container+"/"+ifName)
		return nil
	}
	if err := cni.DeleteNoted(t.Context(), socket, del); err == nil || !strings.Contains(err.Error(), "not now") {
		t.Errorf("got %v", err)
	}
	for range 2 {
		if err := cni.DeleteNoted(t.Context(), socket, del); err != nil {
			t.Error(err)
		}
	}
	if got := strings.Join(deleted, " "); got != "c1/eth0 failed c3/eth0 c2/eth0" {
		t.Errorf("deleted: %s", got)
	}
}

func TestAddCancelsDelWithoutNetplugin(t *testing.T) {
	socket := netplugin(t, new(manager))
	if err := cni.NoteDeleted(socket, "c1", "eth0"); err != nil {
		t.Fatal(err)
	}
	if out, err := plugin(t, "ADD", "1.1.0", socket, ""); err != nil {
		t.Fatalf("%v (%v)", out, err)
	}
	err := cni.DeleteNoted(t.Context(), socket, func(context.Context, string, string) error {
		t.Error("the attachment that was added again is deleted")
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestGarbageCollectionNamesWhatToKeep(t *testing.T) {
	m := new(manager)
	if out, err := plugin(t, "GC", "1.1.0", netplugin(t, m), `, "cni.dev/valid-attachments": [{"containerID": "c1", "ifname": "eth0"}, {"containerID": "c2", "ifname": "net1"}]`); err != nil {
		t.Fatal(out, err)
	}
	if got := strings.Join(m.valid, " "); got != "c1/eth0 c2/net1" {
		t.Errorf("kept: %s", got)
	}
}

func TestVersionsAreTold(t *testing.T) {
	out, err := plugin(t, "VERSION", "1.1.0", "", "")
	if err != nil || len(out["supportedVersions"].([]any)) < 6 {
		t.Errorf("%v (%v)", out, err)
	}
}

// The rates that the runtime took from the pod's annotations reach netplugin; bursts do not.
func TestAddWithBandwidth(t *testing.T) {
	m := new(manager)
	const runtime = `, "runtimeConfig": {"bandwidth": {"ingressRate": 1000000, "ingressBurst": 4294967295,
		"egressRate": 2000000, "egressBurst": 4294967295}}`
	if out, err := plugin(t, "ADD", "1.0.0", netplugin(t, m), runtime); err != nil {
		t.Fatal(out, err)
	}
	if want := (endpoints.Bandwidth{Ingress: 1e6, Egress: 2e6}); m.added.Bandwidth != want {
		t.Errorf("netplugin got %+v, want %+v", m.added.Bandwidth, want)
	}
}

// The ports that the runtime took from the pod's containers reach netplugin.
func TestAddWithHostPorts(t *testing.T) {
	m := new(manager)
	const runtime = `, "runtimeConfig": {"portMappings": [
		{"hostPort": 18080, "containerPort": 80, "protocol": "tcp", "hostIP": ""},
		{"hostPort": 53, "containerPort": 5353, "protocol": "udp", "hostIP": "192.0.2.1"}]}`
	if out, err := plugin(t, "ADD", "1.0.0", netplugin(t, m), runtime); err != nil {
		t.Fatal(out, err)
	}
	want := []endpoints.PortMapping{
		{HostPort: 18080, ContainerPort: 80, Protocol: "tcp"},
		{HostPort: 53, ContainerPort: 5353, Protocol: "udp", HostIP: "192.0.2.1"},
	}
	if !slices.Equal(m.added.HostPorts, want) {
		t.Errorf("netplugin got %+v, want %+v", m.added.HostPorts, want)
	}
}
