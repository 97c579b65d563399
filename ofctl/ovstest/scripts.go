package ovstest

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Files of the distribution's package.
const (
	scripts = "/usr/share/openvswitch/scripts/"
	units   = "/lib/systemd/system/"
)

// Scripted is a switch that the distribution's scripts and units start, stop and restart. It has the dummy datapath.
type Scripted struct{ *Switch }

// Command is a command that restarts Open vSwitch, as an administrator runs it.
type Command string

// Commands that save the flows, restart both daemons and restore the flows.
const (
	OVSCtlRestart   Command = "ovs-ctl restart"
	SystemctlReload Command = "systemctl reload openvswitch-switch"
)

// Moment is a moment of a restart at which the script waits for the test.
type Moment string

// Moments of a restart, in their order.
const (
	Saved     Moment = "saved"     // the flows are saved; the daemons have not been stopped yet
	Stopped   Moment = "stopped"   // ovs-vswitchd is stopped, and flow-restore-wait is set
	Restoring Moment = "restoring" // ovs-vswitchd has started and waits; the flows are restored next
	Restored  Moment = "restored"  // the flows are restored; flow-restore-wait is removed next
)

// options are of ovs-ctl, as /etc/default/openvswitch-switch has them: quoted for a shell.
const options = "--no-mlockall --ovs-vswitchd-options='--enable-dummy=override --disable-system'"

// StartByScripts boots a switch by the distribution's units, without a bridge; it ends with the test. The scripts are
// the installed ones, but for ovs-kmod-ctl: no module of the kernel is loaded. systemctl runs the commands that the
// units have, without systemd.
func StartByScripts(t testing.TB) *Scripted {
	t.Helper()
	for _, file := range []string{scripts + "ovs-ctl", units + "ovs-vswitchd.service"} {
		if _, err := os.Stat(file); err != nil {
			t.Skipf("openvswitch-switch is not installed as Debian has it: %v", err)
		}
	}
	s := &Scripted{newSwitch(t)}
	s.install(t)
	for _, unit := range []string{"ovsdb-server", "ovs-vswitchd"} {
		cmd, log := s.command(t, "systemctl", "start", unit)
		if err := cmd.Run(); err != nil {
			t.Fatalf("systemctl start %s: %v\n%s", unit, err, log())
		}
	}
	return s
}

// Restart runs a command that restarts the switch, and calls at at each moment, on the goroutine of the test. The
// command is killed where at returns false.
func (s *Scripted) Restart(t testing.TB, command Command, at func(Moment) bool) {
	t.Helper()
	moments, resume := s.openFIFO(t, "moment"), s.openFIFO(t, "resume")
	defer moments.Close()
	defer resume.Close()
	args := strings.Fields(string(command))
	if command == OVSCtlRestart {
		args = []string{"sh", "-c", `exec "$OVS_PKGDATADIR/scripts/ovs-ctl" --no-monitor --system-id=random ` +
			"--no-record-hostname restart " + options}
	}
	cmd, log := s.command(t, args...)
	cmd.Env = append(cmd.Env, "OVSTEST_MOMENTS=yes")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var failed error
	ended, reached := make(chan struct{}), make(chan Moment, 1)
	go func() { defer close(ended); failed = cmd.Wait() }()
	go func() {
		for lines := bufio.NewScanner(moments); lines.Scan(); {
			reached <- Moment(lines.Text())
		}
	}()
	runs := true
	defer func() {
		if runs { // the daemons are in sessions of their own
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
			<-ended
		}
	}()
	for late := time.After(5 * time.Minute); ; {
		select {
		case m := <-reached:
			if !at(m) {
				return
			}
			if _, err := resume.WriteString("\n"); err != nil {
				t.Fatal(err)
			}
		case <-ended:
			if runs = false; failed != nil {
				t.Fatalf("%s: %v\n%s", command, failed, log())
			}
			return
		case <-late:
			t.Fatalf("%s has not ended\n%s", command, log())
		}
	}
}

// install makes the switch's directory an installation of its own, by the variables of ovs-lib.
func (s *Scripted) install(t testing.TB) {
	t.Helper()
	for _, dir := range []string{"bin", "etc/openvswitch", "share/scripts", "tmp"} {
		if err := os.MkdirAll(s.path(dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, fifo := range []string{"moment", "resume"} {
		if err := syscall.Mkfifo(s.path(fifo), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ofctl, err := exec.LookPath("ovs-ofctl")
	if err != nil {
		t.Fatal(err)
	}
	appctl, err := exec.LookPath("ovs-appctl") // ovs-lib runs it in OVS_BINDIR
	if err != nil {
		t.Fatal(err)
	}
	links := map[string]string{"share/vswitch.ovsschema": schema, "bin/ovs-appctl": appctl}
	for _, name := range []string{"ovs-ctl", "ovs-lib", "ovs-save", "ovs-systemd-reload"} {
		links["share/scripts/"+name] = scripts + name
	}
	for name, target := range links {
		if err := os.Symlink(target, s.path(name)); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{
		"etc/openvswitch/system-id.conf": "ovstest\n",
		"share/scripts/ovs-kmod-ctl":     "#!/bin/sh\nexec moment stopped\n",
		"bin/moment":                     momentScript,
		"bin/ovs-ofctl":                  fmt.Sprintf(ofctlScript, ofctl),
		"bin/systemctl":                  fmt.Sprintf(systemctlScript, units, scripts),
	} {
		if err := os.WriteFile(s.path(name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// momentScript reports a moment, and waits until the test goes on.
const momentScript = `#!/bin/sh
[ -n "$OVSTEST_MOMENTS" ] || exit 0
exec timeout --foreground 300 sh -c 'echo "$1" >"$0/moment"; head -n 1 "$0/resume" >/dev/null' "$OVS_RUNDIR" "$1"
`

// ofctlScript is ovs-ofctl with moments around the commands by which ovs-save saves and restores flows.
const ofctlScript = `#!/bin/sh
case " $* " in
*" dump-flows "*) after=saved ;;
*" replace-flows "*) after=restored; moment restoring ;;
esac
%s "$@"
status=$?
[ -z "$after" ] || moment "$after" >/dev/null
exit $status
`

// systemctlScript runs the command that a unit has: systemctl [OPTION] VERB UNIT.
const systemctlScript = `#!/bin/sh
for arg; do verb=$unit; unit=$arg; done
case $verb in
start) key=ExecStart ;;
stop) key=ExecStop ;;
reload) key=ExecReload ;;
*) exit 1 ;;
esac
command=$(sed -e :a -e '/\\$/{N;ba' -e '}' -e 's/\\\n//g' "%s$unit.service" |
    sed -n "s,^$key=%s,$OVS_PKGDATADIR/scripts/,p")
eval "command=\"$command\"" # $OVS_CTL_OPTS
eval "exec $command"
`

// command returns a command of the installation, and a function that returns what it has printed.
func (s *Scripted) command(t testing.TB, args ...string) (*exec.Cmd, func() string) {
	t.Helper()
	log, err := os.CreateTemp(s.path("tmp"), "log")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { log.Close() })
	name := args[0]
	if name != "sh" {
		name = s.path("bin/" + name)
	}
	cmd := exec.Command(name, args[1:]...)
	cmd.Stdout, cmd.Stderr = log, log // daemons do not keep a file open
	cmd.Env = append(os.Environ(),
		"OVS_RUNDIR="+s.Dir,
		"OVS_LOGDIR="+s.Dir,
		"OVS_DBDIR="+s.Dir,
		"OVS_SYSCONFDIR="+s.path("etc"),
		"OVS_PKGDATADIR="+s.path("share"),
		"OVS_BINDIR="+s.path("bin"),
		"OVS_CTL_OPTS="+options,
		"TMPDIR="+s.path("tmp"),
		"PATH="+s.path("bin")+":"+os.Getenv("PATH")+":/usr/sbin:/sbin",
	)
	return cmd, func() string {
		text, _ := os.ReadFile(log.Name())
		return string(text)
	}
}

// openFIFO opens a FIFO for reading and writing: it does not wait for the other end.
func (s *Scripted) openFIFO(t testing.TB, name string) *os.File {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(s.Dir, name), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	return f
}
