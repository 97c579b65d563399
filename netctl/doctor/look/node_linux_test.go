package look

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/netctl/doctor"
	"golang.org/x/sys/unix"
)

// tree writes files below a directory.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestModules(t *testing.T) {
	const dir = "lib/modules/6.1.0/"
	for name, row := range map[string]struct {
		files map[string]string
		want  [4]doctor.ModuleState // openvswitch, nf_conntrack, geneve, nf_tables; empty: unread
	}{
		"loaded":     {map[string]string{"sys/module/openvswitch/x": "", "sys/module/geneve/x": "", "sys/module/nf_tables/x": "", "proc/sys/net/netfilter/nf_conntrack_max": "1"}, [4]doctor.ModuleState{doctor.ModuleThere, doctor.ModuleThere, doctor.ModuleThere, doctor.ModuleThere}},
		"built in":   {map[string]string{dir + "modules.builtin": "kernel/net/openvswitch/openvswitch.ko\n", dir + "modules.dep": "kernel/drivers/net/geneve.ko.zst: kernel/net/ipv6/ip6_udp_tunnel.ko.zst\nkernel/net/netfilter/nf_tables.ko.xz: kernel/nfnetlink.ko.xz\n"}, [4]doctor.ModuleState{doctor.ModuleThere, doctor.ModuleAbsent, doctor.ModuleLoadable, doctor.ModuleLoadable}},
		"like named": {map[string]string{dir + "modules.dep": "kernel/net/vport-geneve.ko: kernel/net/openvswitch.ko\nkernel/x/nf_conntrack_ftp.ko:\n"}, [4]doctor.ModuleState{doctor.ModuleAbsent, doctor.ModuleAbsent, doctor.ModuleAbsent, doctor.ModuleAbsent}},
		"none loads": {map[string]string{"proc/x": ""}, [4]doctor.ModuleState{doctor.ModuleAbsent, doctor.ModuleAbsent, doctor.ModuleAbsent, doctor.ModuleAbsent}},
		"not told":   {map[string]string{"proc/modules": ""}, [4]doctor.ModuleState{}},
	} {
		o := &Options{Root: tree(t, row.files)}
		for i, m := range o.modules("6.1.0") {
			if m.State.Value != row.want[i] || (row.want[i] == "") != (m.State.Error != "") {
				t.Errorf("%s: %s: %+v, want %q", name, m.Name, m.State, row.want[i])
			}
		}
	}
}

// A directory of configurations in which everything is wrong that a file can be. Nothing is waited for, and no memory filled.
func TestHostileConfigurations(t *testing.T) {
	dir := tree(t, map[string]string{"10-good.conflist": `{"name": "n", "plugins": [{"type": "calico"}]}`, "20-junk.conf": "\x00\xff\x00", "50-deep.conf": strings.Repeat("[", 1<<19), "ignored.bak": "x"})
	if err := unix.Mkfifo(filepath.Join(dir, "00-pipe.conf"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "15-dir.conf"), 0o755); err != nil {
		t.Fatal(err)
	}
	huge, err := os.Create(filepath.Join(dir, "30-huge.conf"))
	if err == nil {
		err = huge.Truncate(1 << 40)
		huge.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{"40-zero.conf": "/dev/zero", "41-loop.conf": "41-loop.conf", "42-gone.conf": "nowhere"} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	o := &Options{CNIConfDir: dir}
	d, err := o.netConfs()
	if err != nil {
		t.Fatal(err)
	}
	var told []string
	for _, c := range d.Conf {
		told = append(told, c.File+": "+c.Error)
	}
	text := strings.Join(told, "\n")
	for _, want := range []string{"00-pipe.conf: it is no ordinary file", "10-good.conflist: \n", "15-dir.conf: it is no ordinary file", "20-junk.conf: it is no text", "30-huge.conf: it has more than 1024 KiB",
		"40-zero.conf: it is no ordinary file", "41-loop.conf: ", "42-gone.conf: ", "50-deep.conf: it is no CNI configuration"} {
		if !strings.Contains(text+"\n", want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if len(d.Conf) != 9 {
		t.Errorf("%d files:\n%s", len(d.Conf), text)
	}
	for i := range 2 * mostNetConfs {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("99-%d.conf", i)), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if d, err = o.netConfs(); err != nil || len(d.Conf) != mostNetConfs || d.More != 109 {
		t.Errorf("%d read, %d not, %v", len(d.Conf), d.More, err)
	}
}

// serve answers each connection with what is given, or not at all.
func serve(t *testing.T, path, answer string) {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { conn.Close() })
			go fmt.Fprint(conn, answer)
		}
	}()
}

func TestSwitchesThatDoNotAnswerWell(t *testing.T) {
	for name, row := range map[string]struct{ answer, want string }{
		"silent":  {"", "does not answer"},
		"junk":    {"SSH-2.0-x\r\n", "does not speak as Open vSwitch does"},
		"endless": {`{"result": "` + strings.Repeat("x", longestAnswer), "does not speak as Open vSwitch does"},
		"refuses": {`{"id": 0, "result": null, "error": "unknown database"}`, "unknown database"},
		"other":   {`{"id": 0, "result": {"a": 1}, "error": null}`, "cannot unmarshal"},
	} {
		t.Run(name, func(t *testing.T) {
			dir, err := os.MkdirTemp("", "fk-look")
			if err != nil {
				t.Fatal(err)
			}
			defer os.RemoveAll(dir)
			serve(t, filepath.Join(dir, "db.sock"), row.answer)
			o := &Options{OVSRunDir: dir, Each: time.Hour} // the answers' form and size end the call
			if row.answer == "" {
				o.Each = 300 * time.Millisecond
			}
			s := o.openvswitch(t.Context())
			if s.Absent || !strings.Contains(s.Database.Error, row.want) || s.Answers.Error != "" || s.Answers.Value != "" {
				t.Errorf("%+v, want %q", s, row.want)
			}
		})
	}
}

// A real Open vSwitch tells its version by itself; ovs-vswitchd that has ended is known for that.
func TestARealSwitch(t *testing.T) {
	const schema = "/usr/share/openvswitch/vswitch.ovsschema"
	if _, err := os.Stat(schema); err != nil {
		t.Skip("openvswitch-switch is not installed")
	}
	dir, err := os.MkdirTemp("", "fk-look")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	start := func(name string, args ...string) *exec.Cmd {
		cmd := exec.Command(name, args...)
		cmd.Env = append(os.Environ(), "OVS_RUNDIR="+dir, "OVS_LOGDIR="+dir, "OVS_DBDIR="+dir)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	end := func(cmd *exec.Cmd) { _ = cmd.Process.Kill(); _ = cmd.Wait() }
	if out, err := exec.Command("ovsdb-tool", "create", dir+"/conf.db", schema).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	db := start("ovsdb-server", dir+"/conf.db", "--remote=punix:"+dir+"/db.sock", "--unixctl="+dir+"/ovsdb.ctl", "-vconsole:off")
	defer end(db)
	vsctl := func(args ...string) {
		t.Helper()
		args = append([]string{"--db=unix:" + dir + "/db.sock", "--timeout=180"}, args...)
		if out, err := exec.Command("ovs-vsctl", args...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	vsctl("--retry", "--no-wait", "init")
	o := &Options{OVSRunDir: dir, Each: 3 * time.Minute}
	if s := o.openvswitch(t.Context()); s.Absent || s.Database.Error != "" || s.Answers.Value != "" || s.Answers.Error != "" || !strings.Contains(s.Program.Value, "Open vSwitch") {
		t.Errorf("without ovs-vswitchd: %+v", s)
	}
	vswitchd := start("ovs-vswitchd", "unix:"+dir+"/db.sock", "--enable-dummy=override", "--disable-system", "--unixctl="+dir+"/ovs-vswitchd.77.ctl", "-vconsole:off")
	vsctl("add-br", "br-x", "--", "set", "bridge", "br-x", "datapath_type=dummy")
	s := o.openvswitch(t.Context())
	if d := &s.Database.Value; len(d.Bridges) != 1 || d.Bridges[0] != "br-x" || len(d.Datapaths) == 0 || !strings.Contains(strings.Join(d.Ifaces, " "), "geneve") {
		t.Errorf("%+v", s)
	}
	if !strings.Contains(s.Program.Value, s.Answers.Value) || s.Answers.Value == "" {
		t.Errorf("it answers %q, and its program says %q", s.Answers.Value, s.Program.Value)
	}
	for _, waits := range []bool{true, false} {
		vsctl("--no-wait", "set", "Open_vSwitch", ".", fmt.Sprintf("other_config:flow-restore-wait=%v", waits))
		if s := o.openvswitch(t.Context()); s.Database.Value.Waits != waits || s.Database.Error != "" {
			t.Errorf("with flow-restore-wait=%v: %+v", waits, s.Database)
		}
	}
	end(vswitchd) // its socket stays
	if s := o.openvswitch(t.Context()); s.Answers.Value != "" || s.Answers.Error != "" {
		t.Errorf("when it has ended: %+v", s)
	}
}

// When a process was started is told by its socket's name, and of none that is not there.
func TestStarted(t *testing.T) {
	sleep := exec.Command("sleep", "60")
	if err := sleep.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sleep.Process.Kill(); _ = sleep.Wait() }()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		t.Fatal(err)
	}
	got := started(fmt.Sprintf("/run/openvswitch/ovs-vswitchd.%d.ctl", sleep.Process.Pid))
	if got == nil || *got > time.Duration(now.Nano()) || *got < time.Duration(now.Nano())-time.Minute {
		t.Errorf("%v after the kernel, and it is %v now", got, time.Duration(now.Nano()))
	}
	for _, socket := range []string{"", "/run/openvswitch/vswitchd.ctl", "ovs-vswitchd.0.ctl", "ovs-vswitchd.-1.ctl", "ovs-vswitchd.x.ctl"} {
		if got := started(socket); got != nil {
			t.Errorf("%q: %v", socket, got)
		}
	}
}

// Programs that hang, or print without an end, are given up.
func TestProgramsThatHang(t *testing.T) {
	dir := tree(t, nil)
	for name, text := range map[string]string{"hangs": "#!/bin/sh\nexec sleep 60\n", "floods": "#!/bin/sh\nexec yes :cali-x\n", "fails": "#!/bin/sh\necho first >&2; echo second >&2; exit 3\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	o := &Options{}
	for _, c := range []struct {
		name, want string
		each       time.Duration
	}{
		{"hangs", "did not end within 300ms", 300 * time.Millisecond},
		{"floods", "did not end within 300ms", 300 * time.Millisecond},
		{"fails", "fails: first", 3 * time.Minute},
	} {
		o.Each = c.each
		if _, absent, err := o.output(t.Context(), c.name); absent || err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if _, absent, err := o.output(t.Context(), "no-such-program-of-flowkeep"); !absent || err != nil {
		t.Errorf("absent %v, %v", absent, err)
	}
}

// The whole of it on the machine that runs the tests: what is there cannot be known, but that it is read.
func TestThisNode(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	o := &Options{StateDir: t.TempDir() + "/not/there", CNIConfDir: t.TempDir() + "/none", OVSRunDir: t.TempDir(), TrafficMode: "route", ServiceTable: 26214, RulePriority: 50, Peers: []string{"127.0.0.1", "::1"}, Each: 10 * time.Second,
		API: func(context.Context) (doctor.Offset, error) { return doctor.Offset{Ahead: time.Hour}, nil }}
	f, err := Node(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if f.Kernel.Value == "" || len(f.Links.Value) == 0 || f.State.Value.Free == 0 || len(f.Chains) != 5 || !f.Switch.Absent || f.Clock.API.Value.Ahead != time.Hour || f.Ways[0].Hop.Value.Device != "lo" {
		t.Errorf("%+v", f)
	}
	if r := doctor.Node(f); r.Counts[doctor.Problem] == 0 {
		t.Error("a clock that is an hour ahead is no problem")
	}
	port := l.Addr().(*net.TCPAddr).Port
	var found bool
	for _, s := range f.Sockets.Value {
		found = found || int(s.Port) == port && s.Protocol == "tcp" && s.Inode != 0
	}
	if !found {
		t.Errorf("port %d is not among %+v", port, f.Sockets)
	}
}
