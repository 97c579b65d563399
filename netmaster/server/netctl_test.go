package server

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/flowkeep/flowkeep/internal/mtls"
)

// netctl is the program, with the certificate of an administrator.
type netctl struct {
	program string
	files   mtls.Files
}

// buildNetctl builds netctl, in a folder of the test.
func buildNetctl(t testing.TB, files mtls.Files) *netctl {
	t.Helper()
	n := &netctl{program: filepath.Join(t.TempDir(), "netctl"), files: files}
	build := exec.Command("go", "build", "-buildvcs=false", "-ldflags=-s -w", "-o", n.program,
		"github.com/flowkeep/flowkeep/netctl")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return n
}

// command returns a call of netctl that queries the netmaster at an address.
func (n *netctl) command(address string, args ...string) *exec.Cmd {
	flags := []string{"--server", address, "--tls-ca", n.files.CA, "--tls-cert", n.files.Cert, "--tls-key", n.files.Key}
	return exec.Command(n.program, append(flags, args...)...)
}

// changing is the text of a look-up that depends on the place in which it was found.
var changing = regexp.MustCompile(`, from [a-z-]+, revision \d+`)

// output returns what netctl prints to standard output, without where it was found, and the exit code.
func (n *netctl) output(t testing.TB, address string, args ...string) (text string, code int) {
	t.Helper()
	cmd := n.command(address, args...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	if exit := new(exec.ExitError); errors.As(err, &exit) && exit.ExitCode() == 1 && out.Len() > 0 {
		err = nil // the output is of a result that is not as it should be
	}
	if err != nil {
		t.Fatalf("netctl %q: %v: %s", args, err, &errOut)
	}
	return changing.ReplaceAllString(out.String(), ""), cmd.ProcessState.ExitCode()
}
