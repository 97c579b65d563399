package inspect

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
)

// Target is where a packet goes, as a person writes it: NAME[:PORT][/PROTOCOL]. NAME is a pod (namespace/name), a Service
// (ServiceOf), an IP address (IPv6 with a port in brackets), a node, or World.
type Target struct {
	Name string `json:"name"`
	// Port is a number, or a name that the pod or the Service gives it; empty: none was given.
	Port     string `json:"port,omitempty"`
	Protocol string `json:"protocol,omitempty"` // TCP, UDP, SCTP or ICMP; empty: none was given
}

// World is an address outside of the cluster.
const World = "world"

var (
	protocolSuffix = regexp.MustCompile(`(?i)^(.+)/(tcp|udp|sctp|icmp|icmpv6)$`)
	portName       = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,13}[a-z0-9])?$`) // RFC 6335
	namespaceName  = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	objectName     = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$`)
)

// ParseTarget fails on what cannot be a name, a port or a protocol, and says what can.
func ParseTarget(text string) (Target, error) {
	var t Target
	rest := text
	if m := protocolSuffix.FindStringSubmatch(text); m != nil && !isService(text) && (!IsPod(text) || m[1] == World || isService(m[1])) { // shop/tcp is a pod
		rest, t.Protocol = m[1], strings.ToUpper(m[2])
	}
	if t.Protocol == "ICMPV6" {
		t.Protocol = "ICMP"
	}
	name, port, err := cutPort(rest)
	if err != nil {
		return Target{}, err
	}
	t.Name, t.Port = name, port
	if err := ParseName(t.Name); err != nil && !isService(t.Name) {
		return Target{}, fmt.Errorf("%w; a Service is svc/namespace/name", err)
	}
	if err := checkPort(t.Port); err != nil {
		return Target{}, err
	}
	switch {
	case t.Protocol == "ICMP" && t.Port != "":
		return Target{}, errors.New("ICMP has no ports: leave out :" + t.Port)
	case t.Protocol == "ICMP" && servicePrefix.MatchString(t.Name):
		return Target{}, errors.New("Services translate only TCP, UDP and SCTP, not ICMP: query a pod behind the Service")
	}
	return t, nil
}

func isService(name string) bool {
	_, _, ok := ServiceOf(name)
	return ok
}

// cutPort takes the port off; what may be an IPv6 address with one needs brackets, as in URLs (RFC 3986).
func cutPort(text string) (name, port string, err error) {
	if inside, ok := strings.CutPrefix(text, "["); ok {
		name, port, ok = strings.Cut(inside, "]")
		if !ok || port != "" && port[0] != ':' || port == ":" {
			return "", "", fmt.Errorf("%q: write an IPv6 address with a port as [fd00::1]:80", text)
		}
		return name, strings.TrimPrefix(port, ":"), nil
	}
	if _, err := netip.ParseAddr(text); err == nil {
		return text, "", nil
	}
	i := strings.LastIndexByte(text, ':')
	if i < 0 {
		return text, "", nil
	}
	if i == len(text)-1 {
		return "", "", fmt.Errorf("%q: the port is missing behind the colon", text)
	}
	return text[:i], text[i+1:], nil
}

func checkPort(port string) error {
	if port == "" {
		return nil
	}
	if n, err := strconv.Atoi(port); err == nil {
		if n < 1 || n > 65535 {
			return fmt.Errorf("port %s: it is between 1 and 65535", port)
		}
		return nil
	}
	if !portName.MatchString(port) {
		return fmt.Errorf("port %q: write a number, or a port's name", port)
	}
	return nil
}

// IsPod reports whether a name can be a pod's: namespace/name. A Service's name can look the same.
func IsPod(name string) bool {
	namespace, pod, ok := strings.Cut(name, "/")
	return ok && namespaceName.MatchString(namespace) && objectName.MatchString(pod)
}

// ParseName checks the name of an end that packets come from: a pod, an address, a node or World.
func ParseName(name string) error {
	if servicePrefix.MatchString(name) {
		return fmt.Errorf("%s is a Service, from which no packet comes: write a pod behind it as namespace/name", name)
	}
	if a, err := netip.ParseAddr(name); err == nil {
		if a.Zone() != "" {
			return fmt.Errorf("%s: leave out the zone", name)
		}
		return nil
	}
	if IsPod(name) || objectName.MatchString(name) {
		return nil
	}
	return fmt.Errorf("%q: write a pod as namespace/name, an IP address, a node's name, or %s", name, World)
}
