// Package look reads the facts of the node that it runs on. It changes nothing, loads no module, waits for nobody longer than it was given, and
// takes what it finds for what may be anything: files of any size and kind, sockets that never answer.
package look

import (
	"context"
	"os/exec"
	"strings"
	"time"

	"github.com/flowkeep/flowkeep/netctl/doctor"
)

// Options say where things are.
type Options struct {
	StateDir    string
	CNIConfDir  string
	CNIBinDir   string
	OVSRunDir   string
	CNISocket   string // netplugin's
	TrafficMode string
	Services    string
	// ServiceTable and RulePriority are the values of netplugin's flags of these names.
	ServiceTable, RulePriority int
	Peers                      []string      // addresses of other nodes
	Root                       string        // of /proc, /sys and /lib/modules; for tests
	Each                       time.Duration // how long one thing may take
	// API tells how far this node's clock is ahead of the API server's; nil: it is not asked.
	API func(context.Context) (doctor.Offset, error)
}

// longestListing bounds what a program may print.
const longestListing = 64 << 20

// output runs a program, and reads no more of it than fits.
func (o *Options) output(ctx context.Context, name string, args ...string) (text string, absent bool, err error) {
	path, err := exec.LookPath(name)
	if err != nil {
		for _, dir := range []string{"/usr/sbin/", "/sbin/"} { // not in the path of those who are not root
			if path, err = exec.LookPath(dir + name); err == nil {
				break
			}
		}
		if err != nil {
			return "", true, nil
		}
	}
	ctx, cancel := context.WithTimeout(ctx, o.Each)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.WaitDelay = time.Second
	out, problem := &limited{left: longestListing}, &limited{left: 4096}
	cmd.Stdout, cmd.Stderr = out, problem
	if err := cmd.Run(); err != nil {
		return "", false, &failed{name, err, ctx.Err(), o.Each, strings.TrimSpace(problem.String())}
	}
	return out.String(), false, nil
}

// limited keeps the beginning of what is written to it.
type limited struct {
	strings.Builder
	left int
}

func (l *limited) Write(p []byte) (int, error) {
	keep := p[:min(len(p), l.left)]
	l.left -= len(keep)
	l.Builder.Write(keep)
	return len(p), nil
}

// failed is a program's failure, with its first line of words.
type failed struct {
	name string
	err  error
	over error
	each time.Duration
	said string
}

func (f *failed) Error() string {
	if f.over != nil {
		return f.name + " did not end within " + f.each.String()
	}
	first, _, _ := strings.Cut(f.said, "\n")
	if first == "" {
		return f.name + ": " + f.err.Error()
	}
	return f.name + ": " + first
}
