package fleet

import (
	"errors"
	"fmt"
	"path"
	"strings"
)

// Namespaces are those of spokes that NetworkPolicySets may write into, as patterns: * stands for anything, and ! before one leaves out what it
// matches. None is all.
type Namespaces []string

// DefaultNamespaces leaves out those of Kubernetes and of Flowkeep.
var DefaultNamespaces = Namespaces{"*", "!kube-system", "!kube-public", "!kube-node-lease", "!flowkeep-system"}

// ParseNamespaces reads patterns.
func ParseNamespaces(patterns []string) (Namespaces, error) {
	in := false
	for _, p := range patterns {
		pattern, out := strings.CutPrefix(p, "!")
		if _, err := path.Match(pattern, ""); err != nil || pattern == "" || strings.ContainsAny(pattern, "!/ ") {
			return nil, fmt.Errorf("%q is no pattern of namespaces: give names, with * for anything, and ! before what is left out", p)
		}
		in = in || !out
	}
	if len(patterns) > 0 && !in {
		return nil, errors.New("all patterns begin with !, so that no namespace is left: put * before them")
	}
	return patterns, nil
}

// Has reports whether a namespace is one of them.
func (n Namespaces) Has(namespace string) bool {
	in := len(n) == 0
	for _, p := range n {
		pattern, out := strings.CutPrefix(p, "!")
		if is, err := path.Match(pattern, namespace); err != nil || !is {
			continue
		}
		if out {
			return false
		}
		in = true
	}
	return in
}

func (n Namespaces) String() string { return strings.Join(n, ",") }
