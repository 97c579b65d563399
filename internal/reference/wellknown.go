package reference

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/api/wellknown"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

const generated = "Written by `scripts/generate` from api/wellknown, which the programs use.\n"

// Events returns the page of the Kubernetes Events that the programs write.
func Events() string {
	var b strings.Builder
	b.WriteString("# Events\n\n" + generated + "\n    kubectl get events -A --field-selector reason=NotInForce\n\nMessages are at most 1,024 bytes; equal ones are counted. They tell what logs and metrics tell too: " +
		"an Event may be lost while the API server is away.\n\n| reason | type | object | from | means | what to do |\n|---|---|---|---|---|---|\n")
	for _, e := range wellknown.Events {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s | %s |\n", e.Reason, e.Type(), e.Kind, e.Writer, cell.Replace(e.Means), cell.Replace(e.Do))
	}
	return b.String()
}

// Keys returns the page of annotations and labels.
func Keys() string {
	var b strings.Builder
	b.WriteString("# Annotations and labels\n\n" + generated + "\n| key | | on | who writes it | who reads it | values |\n|---|---|---|---|---|---|\n")
	for _, k := range wellknown.Keys {
		kind := "annotation"
		if k.Label {
			kind = "label"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s | %s |\n", k.Name, kind, cell.Replace(k.On), k.Writes, k.Reads, cell.Replace(k.Values))
	}
	b.WriteString("\nWhat the manifests make has the labels `app.kubernetes.io/part-of: flowkeep` and `app.kubernetes.io/name`, by which `netctl uninstall` finds it.\n")
	return b.String()
}

// Ports returns the page of the ports on which the programs listen.
func Ports() string {
	var b strings.Builder
	b.WriteString("# Ports and sockets\n\n" + generated + "\n## TCP and UDP\n\n| program | flag | default | in the manifests | what | who connects | how it is guarded |\n|---|---|---|---|---|---|---|\n")
	for _, p := range append(wellknown.Ports, wellknown.Others...) {
		flag, without, manifests := "", "", ""
		if p.Flag != "" {
			flag, without = "`--"+p.Flag+"`", "none"
		}
		if p.Default != "" {
			without = "`" + p.Default + "`"
		}
		if p.Manifests != 0 {
			manifests = fmt.Sprint(p.Manifests)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s |\n", p.Program, flag, without, manifests, p.Carries, p.Clients, cell.Replace(p.Guard))
	}
	b.WriteString("\n## Unix sockets\n\n| path | made by | what | who connects | who may |\n|---|---|---|---|---|\n")
	for _, s := range wellknown.Sockets {
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", s.Path, s.Made, s.Carries, s.Clients, s.Guard)
	}
	return b.String()
}

// listens matches a TCP address with a fixed port.
var listens = regexp.MustCompile(`^[^/ ]*:[0-9]{4,5}$`)

// CheckPorts fails a test where a command listens elsewhere than the reference says.
func CheckPorts(t testing.TB, root *cobra.Command) {
	t.Helper()
	told := map[string]string{}
	for _, p := range wellknown.Ports {
		if p.Program == root.Name() || strings.HasPrefix(p.Program, root.Name()+" ") {
			told[p.Program+" --"+p.Flag] = p.Default
		}
	}
	each(root, func(c *cobra.Command) {
		c.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
			name := c.CommandPath() + " --" + f.Name
			want, known := told[name]
			delete(told, name)
			if known && want != f.DefValue || !known && listens.MatchString(f.DefValue) {
				t.Errorf("%s is %q by default: api/wellknown says %q", name, f.DefValue, want)
			}
		})
	})
	for name := range told {
		t.Errorf("api/wellknown tells of %s, which there is not", name)
	}
}

// each calls f with a command and all that are below it.
func each(c *cobra.Command, f func(*cobra.Command)) {
	f(c)
	for _, below := range c.Commands() {
		each(below, f)
	}
}
