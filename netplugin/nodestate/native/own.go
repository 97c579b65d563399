package native

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/flowkeep/flowkeep/netplugin/hostnet"
)

// Own says what on the node is Flowkeep's, and nobody else's to change.
type Own struct {
	Bridge string // that Flowkeep enforces policies on
}

// tunnel names are those of the links by which the kernel's datapath sends what a bridge's tunnels carry, Flowkeep's too.
var tunnel = regexp.MustCompile(`^(vxlan|genev|gre|erspan|gtpu|bareudp|lisp|srv6)_sys(_[0-9]+)?$`)

// why tells why an interface of the name is not to be touched, "" if that is nowhere in its name.
func (o Own) why(name string) string {
	switch {
	case name != "" && name == o.Bridge:
		return fmt.Sprintf("%s is the bridge on which Flowkeep enforces network policies: it cannot be changed by a state document", name)
	case strings.HasPrefix(name, "fk-"):
		return fmt.Sprintf("%s is Flowkeep's own: it cannot be changed by a state document", name)
	case strings.HasPrefix(name, hostnet.PodPrefix):
		return fmt.Sprintf("%s is a pod's interface, which Flowkeep made: it cannot be changed by a state document", name)
	case name == "ovs-system" || name == "ovs-netdev" || tunnel.MatchString(name):
		return name + " is Open vSwitch's own: it cannot be changed by a state document"
	}
	return ""
}

// rule tells whether a routing rule is Flowkeep's.
func (o Own) rule(r *rule) bool {
	return r.Iif != "" && o.why(r.Iif) != "" || r.Table == hostnet.ServiceTable
}
