// Package doctor judges whether a node or a cluster is fit for Flowkeep, and what to do where it is not. It is pure: functions of facts that
// netctl gathers (netctl/doctor/look on a node, netctl itself from the API server). A fact that could not be read is told as such; nothing is
// concluded from it.
package doctor

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// Level is how much a finding matters.
type Level string

// Levels.
const (
	OK      Level = "ok"
	Note    Level = "note"    // may well be meant
	Unknown Level = "unknown" // could not be looked at
	Warning Level = "warning" // something will not be as it should
	Problem Level = "problem" // Flowkeep does not work here
)

// Levels are all, from the one that matters most.
var Levels = []Level{Problem, Warning, Unknown, Note, OK}

// Finding is one thing that was looked at.
type Finding struct {
	Check string `json:"check"`
	Level Level  `json:"level"`
	Seen  string `json:"seen"`
	Why   string `json:"why,omitempty"` // it matters
	Do    string `json:"do,omitempty"`
}

// Report is all that was looked at, in the order of the checks.
type Report struct {
	Of       string        `json:"of"` // node or cluster
	Name     string        `json:"name"`
	Counts   map[Level]int `json:"counts"`
	Findings []Finding     `json:"findings"`
}

// Worst returns the worst level: problems count more than checks that could not run.
func (r *Report) Worst() Level {
	for _, l := range Levels {
		if r.Counts[l] > 0 {
			return l
		}
	}
	return OK
}

// Fact is what was read, or why it could not be.
type Fact[T any] struct {
	Value T
	Error string
}

// Read makes a fact of what a function returns.
func Read[T any](v T, err error) Fact[T] {
	if err != nil {
		return Fact[T]{Error: err.Error()}
	}
	return Fact[T]{Value: v}
}

// Known returns a fact that was read.
func Known[T any](v T) Fact[T] { return Fact[T]{Value: v} }

func (f *Fact[T]) known() bool { return f.Error == "" }

// book collects findings.
type book struct{ list []Finding }

func (b *book) add(check string, l Level, seen, do string) {
	b.list = append(b.list, Finding{Check: check, Level: l, Seen: short(seen), Why: whys[check], Do: do})
}

func (b *book) ok(check, format string, args ...any) {
	b.add(check, OK, fmt.Sprintf(format, args...), "")
}

func (b *book) unknown(check, what, err, do string) {
	b.add(check, Unknown, fmt.Sprintf("%s could not be read: %s", what, err), do)
}

func (b *book) report(of, name string) Report {
	r := Report{Of: of, Name: name, Counts: map[Level]int{}, Findings: b.list}
	for _, f := range b.list {
		r.Counts[f.Level]++
	}
	return r
}

// longest bounds what a finding quotes of what others wrote.
const longest = 1000

func short(text string) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) <= longest {
		return text
	}
	cut := longest
	for !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut] + "…"
}

// mostNamed bounds how many names stand in a sentence.
const mostNamed = 8

// some names things, not all if there are many.
func some(names []string) string {
	names = slices.Clone(names)
	slices.Sort(names)
	names = slices.Compact(names)
	if len(names) > mostNamed {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:mostNamed], ", "), len(names)-mostNamed)
	}
	return strings.Join(names, ", ")
}

// quoted quotes a word for a shell, if it needs quotes.
func quoted(word string) string {
	if word != "" && strings.Trim(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./:@%+,=-") == "" {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// whys tell of each check why it matters.
var whys = map[string]string{
	"kernel":          "the switch's flows use the connection tracker's original tuple and meters, which older kernels have not",
	"modules":         "the kernel's datapath forwards and tracks connections by these; without openvswitch packets are forwarded in userspace, which is slower",
	"openvswitch":     "every packet of a pod is judged by Open vSwitch",
	"mtu":             "what is larger than the way to the other nodes takes is lost; a Geneve tunnel adds 50 bytes to a packet, 70 between IPv6 addresses",
	"cni":             "the container runtime takes the first configuration in the directory, by name, and wires all pods by it",
	"other-networks":  "what two networks do with the same pods' packets is judged by neither",
	"rules":           "rules that another network left go on dropping, redirecting and masquerading",
	"firewall":        "a packet that one chain of the kernel's drops no other lets through, and pods' packets to other nodes and beyond are forwarded by the node",
	"clock":           "certificates and tokens are valid by the clock, and what nodes tell is put in order by it",
	"ports":           "netmaster, netplugin and the tunnels listen on these",
	"forwarding":      "pods' packets are routed by the node; netplugin sets it, where it may",
	"conntrack":       "a pod's connection takes an entry, or two to a Service; a full table takes no more",
	"numbers":         "netplugin leaves what others have alone, and a first installation refuses their numbers",
	"host-network":    "without a rule, a route or a table, allowed packets are lost until netplugin has restored it",
	"state-directory": "the last good rules, the pods' addresses and the policy DB are kept there, and a node that cannot write them cannot start pods",
	"programs":        "netplugin sets the node's own rules by nft",
	"kubernetes":      "CustomResourceDefinitions refuse nonsense by rules (1.25), and nodes get their certificates by tokens that name the node (1.30)",
	"nodes":           "netplugin runs on Linux",
	"pod-cidrs":       "each node gives its pods addresses of its own podCIDRs and the others send them there",
	"cluster-cidrs":   "packets between pods are masqueraded outside of these, and policies take them for the node's",
	"kube-proxy":      "Flowkeep leaves Services to kube-proxy",
	"aggregation":     "netctl and the page ask netmaster through the API server, which proves who asks by the front proxy's certificate",
	"nmstate":         "its objects have the kinds of Flowkeep's node state, and both would change the same interfaces",
	"crds":            "Flowkeep's objects are stored by its CustomResourceDefinitions; of those with the same name there can only be one",
	"policies":        "Flowkeep enforces NetworkPolicy (networking.k8s.io/v1), and no policies of other kinds",
	"lint":            "Flowkeep enforces what is written, which may not be what was meant",
}
