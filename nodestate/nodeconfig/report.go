package nodeconfig

import (
	"net"
	"reflect"
	"slices"
	"strings"

	nmstatev1 "github.com/flowkeep/flowkeep/nodestate/api/v1"
	"github.com/flowkeep/flowkeep/nodestate/nmstate"
)

// report is what a node says of its interfaces, as far as policies ask. It does not change.
type report struct {
	truncated bool // it leaves some of the node's interfaces out
	has       map[*nic]bool
	byName    []*nic
	byType    map[string][]*nic
	byMAC     map[string][]*nic
	byDriver  map[string][]*nic
	byVLAN    map[int64][]*nic
	bySystem  map[string][]*nic // by what its neighbours are called
}

// nic is an interface that the node has.
type nic struct {
	name, typ, driver string
	mac               string // as net.HardwareAddr prints it
	vlan              *int64
	neighbours        []seenNeighbour
}

// seenNeighbour is a neighbour by LLDP.
type seenNeighbour struct{ system, chassis, port string }

// newReport reads a report; there is none where nothing was reported. Interfaces that are as in an earlier one, if there is one, are the same.
func newReport(text *nmstatev1.State, truncated bool, earlier *report) (*report, error) {
	doc, err := parse(text)
	if err != nil || doc == nil {
		return nil, err
	}
	r := &report{truncated: truncated, has: map[*nic]bool{}, byType: map[string][]*nic{}, byMAC: map[string][]*nic{}, byDriver: map[string][]*nic{}, byVLAN: map[int64][]*nic{}, bySystem: map[string][]*nic{}}
	for _, i := range doc.Interfaces() {
		r.add(earlier.same(nicOf(i)))
	}
	slices.SortStableFunc(r.byName, func(a, b *nic) int { return strings.Compare(withoutSlashes(a.name), withoutSlashes(b.name)) })
	return r, nil
}

// same is the interface of the report that is exactly so, or else this one.
func (r *report) same(i *nic) *nic {
	if r == nil {
		return i
	}
	for _, known := range r.named(withoutSlashes(i.name)) {
		if reflect.DeepEqual(known, i) {
			return known
		}
	}
	return i
}

// since are the interfaces that were not in an earlier report.
func (r *report) since(earlier *report) (came []*nic) {
	for _, i := range r.byName {
		if !earlier.has[i] {
			came = append(came, i)
		}
	}
	return came
}

func (r *report) add(i *nic) {
	r.has[i] = true
	r.byName = append(r.byName, i)
	r.byType[i.typ] = append(r.byType[i.typ], i)
	r.byMAC[i.mac] = append(r.byMAC[i.mac], i)
	r.byDriver[i.driver] = append(r.byDriver[i.driver], i)
	if i.vlan != nil {
		r.byVLAN[*i.vlan] = append(r.byVLAN[*i.vlan], i)
	}
	for _, n := range i.neighbours {
		system := withoutSlashes(n.system)
		r.bySystem[system] = append(r.bySystem[system], i)
	}
}

// candidates are interfaces among which are all that match the rule: those that have the one thing of it that the fewest have.
func (r *report) candidates(rule rule) []*nic {
	fewest := r.named(rule.name.literal())
	narrow := func(asked bool, found []*nic) {
		if asked && len(found) < len(fewest) {
			fewest = found
		}
	}
	narrow(rule.typ != "", r.byType[rule.typ])
	narrow(rule.mac != "", r.byMAC[rule.mac])
	narrow(rule.driver != "", r.byDriver[rule.driver])
	if rule.vlan != nil {
		narrow(true, r.byVLAN[int64(*rule.vlan)])
	}
	if rule.lldp != nil {
		system := rule.lldp.system
		narrow(system != "" && system.literal() == string(system), r.bySystem[string(system)])
	}
	return fewest
}

// named are the interfaces whose names begin like this.
func (r *report) named(beginning string) []*nic {
	first, _ := slices.BinarySearchFunc(r.byName, beginning, func(i *nic, b string) int { return strings.Compare(withoutSlashes(i.name), b) })
	behind, _ := slices.BinarySearchFunc(r.byName[first:], beginning, func(i *nic, b string) int {
		if strings.HasPrefix(withoutSlashes(i.name), b) {
			return -1
		}
		return 1
	})
	return r.byName[first : first+behind]
}

func nicOf(i nmstate.Interface) *nic {
	driver, _ := i["driver"].(string)
	return &nic{name: i.Name(), typ: i.Type(), driver: driver, mac: macOf(i), vlan: vlanOf(i), neighbours: neighboursOf(i)}
}

// macOf is the permanent address where there is one: the ports of a bond all show the bond's, and would match no more, or
// all, once a policy has made them ports.
func macOf(i nmstate.Interface) string {
	text, ok := i["permanent-mac-address"].(string)
	if !ok || text == "" {
		text, _ = i["mac-address"].(string)
	}
	mac, err := net.ParseMAC(text)
	if err != nil {
		return ""
	}
	return mac.String()
}

func vlanOf(i nmstate.Interface) *int64 {
	switch id := i.Section("vlan")["id"].(type) {
	case int64:
		return &id
	case float64:
		if whole := int64(id); float64(whole) == id {
			return &whole
		}
	}
	return nil
}

// neighboursOf returns the neighbours of an interface: in nmstate's schema each is a list of maps with one of these
// keys.
func neighboursOf(i nmstate.Interface) (seen []seenNeighbour) {
	all, _ := i.Section("lldp")["neighbors"].([]any)
	for _, told := range all {
		var n seenNeighbour
		known := false
		facts, _ := told.([]any)
		for _, fact := range facts {
			f, _ := fact.(map[string]any)
			for key, to := range map[string]*string{"system-name": &n.system, "chassis-id": &n.chassis, "port-id": &n.port} {
				if text, ok := f[key].(string); ok {
					*to, known = text, true
				}
			}
		}
		if known {
			seen = append(seen, n)
		}
	}
	return seen
}
