package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/flowkeep/flowkeep/netplugin/cni"
	"github.com/flowkeep/flowkeep/netplugin/endpoints"
	"github.com/flowkeep/flowkeep/netplugin/node/install"
)

// olderPlugin is a plugin of CNI 1.0.0 behind others: it refuses later versions and unknown commands as skel does.
const olderPlugin = `#!/bin/sh
refuse() { echo "{\"cniVersion\": \"1.0.0\", \"code\": $1, \"msg\": \"$2\"}"; exit 1; }
conf=$(cat)
case $CNI_COMMAND in ADD | DEL | CHECK) ;; *) refuse 4 "unknown CNI_COMMAND: $CNI_COMMAND" ;; esac
case $conf in *'"cniVersion":"1.1.0"'*) refuse 1 "incompatible CNI versions" ;; esac
[ $CNI_COMMAND != ADD ] || echo '{"cniVersion": "1.0.0", "ips": [{"address": "10.0.0.2/32"}]}'
`

// runtime is a container runtime's CNI library (libcni, which containerd 2 and CRI-O have), with the programs of the
// network configuration.
type runtime struct {
	*testing.T
	*libcni.CNIConfig
	socket string
}

func newRuntime(t *testing.T, m *manager) *runtime {
	t.Helper()
	t.Setenv("CNI_NETNS_OVERRIDE", "1")
	bin := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		install.Plugin: "#!/bin/sh\n" + asPlugin + "=1 exec " + self + "\n",
		"older":        olderPlugin,
	} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	build := exec.Command("go", "build", "-o", filepath.Join(bin, install.Portmap),
		"github.com/containernetworking/plugins/plugins/meta/portmap")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return &runtime{t, libcni.NewCNIConfigWithCacheDir([]string{bin}, t.TempDir(), nil), netplugin(t, m)}
}

func (r *runtime) list(conf []byte) *libcni.NetworkConfigList {
	r.Helper()
	list, err := libcni.NetworkConfFromBytes(conf)
	if err != nil {
		r.Fatal(err)
	}
	return list
}

// chain returns the configuration with a further plugin, as netplugin leaves it.
func (r *runtime) chain(plugin string) []byte {
	r.Helper()
	have := fmt.Appendf(nil, `{"plugins": [{"type": "flowkeep-cni"}, {"type": %q}]}`, plugin)
	conf, _, err := install.Merge(have, r.socket, "", true)
	if err != nil {
		r.Fatal(err)
	}
	return conf
}

var pod = &libcni.RuntimeConf{
	ContainerID: "c1",
	IfName:      "eth0",
	NetNS:       "/proc/self/ns/net",
	Args:        [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "shop"}, {"K8S_POD_NAME", "db"}},
}

// TestRuntime_CallsStatusAndGC has the library of container runtimes use the configuration that netplugin writes.
func TestRuntime_CallsStatusAndGC(t *testing.T) {
	m := new(manager)
	r := newRuntime(t, m)
	list := r.list(install.Configuration(r.socket, ""))
	if list.CNIVersion != "1.1.0" {
		t.Errorf("the runtime takes version %s", list.CNIVersion)
	}
	if _, err := r.AddNetworkList(t.Context(), list, pod); err != nil {
		t.Error(err)
	}
	if err := r.GetStatusNetworkList(t.Context(), list); err != nil {
		t.Error(err)
	}
	valid := []types.GCAttachment{{ContainerID: "c1", IfName: "eth0"}, {ContainerID: "c2", IfName: "eth0"}}
	if err := r.GCNetworkList(t.Context(), list, &libcni.GCArgs{ValidAttachments: valid}); err != nil {
		t.Error(err)
	}
	if !slices.Equal(m.valid, []string{"c1/eth0", "c2/eth0"}) {
		t.Errorf("netplugin was sent the list %v", m.valid)
	}
	if err := r.DelNetworkList(t.Context(), list, pod); err != nil {
		t.Error(err)
	}
	if err := os.Remove(filepath.Join(filepath.Dir(r.socket), cni.ReadyFile)); err != nil { // what fails now is not hidden
		t.Fatal(err)
	}
	for problem, code := range map[error]uint{endpoints.ErrNotReady: 50, endpoints.ErrSwitch: 51} {
		m.notReady.Store(&problem)
		var failed *types.Error
		if err := r.GetStatusNetworkList(t.Context(), list); !errors.As(err, &failed) || failed.Code != code ||
			!strings.Contains(failed.Msg, problem.Error()) {
			t.Errorf("STATUS: %v, want code %d: %v", err, code, problem)
		}
	}
}

// TestRuntime_ChainedPluginOfCNI100 starts a pod with a plugin that does not know CNI 1.1. A configuration that lists
// it nevertheless starts none, and its STATUS fails.
func TestRuntime_ChainedPluginOfCNI100(t *testing.T) {
	r := newRuntime(t, new(manager))
	conf := r.chain("older")
	list := r.list(conf)
	if _, err := r.AddNetworkList(t.Context(), list, pod); err != nil {
		t.Error(err)
	}
	err := errors.Join(r.GetStatusNetworkList(t.Context(), list), r.DelNetworkList(t.Context(), list, pod))
	if err != nil {
		t.Error(err)
	}
	list = r.list([]byte(strings.Replace(string(conf), `"plugins"`, `"cniVersions": ["1.1.0"], "plugins"`, 1)))
	if _, err := r.AddNetworkList(t.Context(), list, pod); err == nil {
		t.Error("a plugin of CNI 1.0.0 takes version 1.1.0")
	}
	if err := r.GetStatusNetworkList(t.Context(), list); err == nil {
		t.Error("a plugin of CNI 1.0.0 responds to STATUS")
	}
}

// TestRuntime_PodsOutliveTheVersion deletes a pod that was attached with CNI 1.1 after a plugin without it was chained,
// and the other way round.
func TestRuntime_PodsOutliveTheVersion(t *testing.T) {
	r := newRuntime(t, new(manager))
	alone, chained := r.list(install.Configuration(r.socket, "")), r.list(r.chain("older"))
	for _, c := range [][2]*libcni.NetworkConfigList{{alone, chained}, {chained, alone}} {
		if _, err := r.AddNetworkList(t.Context(), c[0], pod); err != nil {
			t.Error(err)
		}
		if err := r.DelNetworkList(t.Context(), c[1], pod); err != nil {
			t.Errorf("attached with %s, deleted with %s: %v", c[0].CNIVersion, c[1].CNIVersion, err)
		}
	}
}

// TestStatus_HidesShortFailures has netplugin fail before STATUS has succeeded, soon after it, and later.
func TestStatus_HidesShortFailures(t *testing.T) {
	m := new(manager)
	socket := netplugin(t, m)
	status := func(socket string) uint {
		conf := fmt.Appendf(nil, `{"cniVersion": "1.1.0", "name": "flowkeep", "socket": %q}`, socket)
		var failed *types.Error
		if err := (client{timeout}).status(&skel.CmdArgs{StdinData: conf}); errors.As(err, &failed) {
			return failed.Code
		}
		return 0
	}
	for name, c := range map[string]struct {
		socket  string
		problem error
		hidden  time.Duration
		code    uint
	}{
		"netplugin is away":      {socket + "x", nil, maxUnavailable, types.ErrPluginNotAvailable},
		"netplugin is not ready": {socket, endpoints.ErrNotReady, maxUnavailable, types.ErrPluginNotAvailable},
		"Open vSwitch is away":   {socket, endpoints.ErrSwitch, maxLimited, types.ErrLimitedConnectivity},
	} {
		fails := func(when string, want uint) {
			t.Helper()
			m.notReady.Store(nil)
			if c.problem != nil {
				m.notReady.Store(&c.problem)
			}
			if code := status(c.socket); code != want {
				t.Errorf("%s, %s: code %d, want %d", name, when, code, want)
			}
		}
		fails("after a boot", c.code)
		m.notReady.Store(nil)
		if code := status(socket); code != 0 {
			t.Errorf("netplugin is ready: code %d", code)
		}
		fails("at once", 0)
		ready := filepath.Join(filepath.Dir(socket), cni.ReadyFile)
		for age, want := range map[time.Duration]uint{c.hidden - 10*time.Second: 0, c.hidden: c.code, -time.Minute: c.code} {
			last := time.Now().Add(-age)
			if err := os.Chtimes(ready, last, last); err != nil {
				t.Fatal(err)
			}
			fails(age.String()+" after the last success", want)
		}
		m.notReady.Store(nil)
		if code := status(socket); code != 0 {
			t.Errorf("netplugin is ready again: code %d", code)
		}
		fails("after another success", 0)
		if err := os.Remove(ready); err != nil {
			t.Fatal(err)
		}
	}
}
