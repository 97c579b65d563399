package nodeconfig

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	nmstatev1 "github.com/flowkeep/flowkeep/nodestate/api/v1"
	"github.com/flowkeep/flowkeep/nodestate/nmstate"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Policy is a NodeNetworkConfigurationPolicy, understood once for all nodes. It does not change; safe for concurrent use.
type Policy struct {
	Name       string
	Generation int64
	Priority   int32
	// Err says what is wrong with a policy that cannot be understood. Nodes keep what they have of it.
	Err error

	selector selector
	rules    []rule
	each     []map[string]any // desired state of each interface that matched, without its name
	fixed    pieces           // what does not depend on which interfaces match
	auto     *nmstatev1.AutoConfig
	most     intstr.IntOrString // maxUnavailable
}

// defaultUnavailable is maxUnavailable where a policy gives none.
var defaultUnavailable = intstr.FromString("50%")

// NewPolicy understands a policy, or says in Err why not. Only the spec, name and generation count.
func NewPolicy(o *nmstatev1.NodeNetworkConfigurationPolicy) *Policy {
	p := &Policy{Name: o.Name, Generation: o.Generation, Priority: o.Spec.Priority, auto: o.Spec.AutoConfig, most: defaultUnavailable}
	if o.Spec.MaxUnavailable != nil {
		p.most = *o.Spec.MaxUnavailable
	}
	p.Err = p.understand(&o.Spec)
	return p
}

func (p *Policy) understand(spec *nmstatev1.NodeNetworkConfigurationPolicySpec) (err error) {
	if spec.Capture != nil {
		return errors.New("capture is not supported: match finds interfaces, autoConfig makes bonds and VLANs")
	}
	if p.selector, err = newSelector(spec.NodeSelector, spec.Affinity, spec.Tolerations); err != nil {
		return err
	}
	if p.rules, err = newRules(spec.Match); err != nil {
		return err
	}
	if _, err := p.unavailable(1); err != nil {
		return err
	}
	hasState := spec.DesiredState != nil && len(spec.DesiredState.Raw) > 0
	if p.auto == nil && !hasState {
		return errors.New("it wants nothing: give autoConfig or desiredState")
	}
	if p.auto != nil {
		err = checkAuto(p.auto, p.rules)
	}
	if err == nil && hasState {
		err = p.understandState(spec.DesiredState.Raw)
	}
	return err
}

func checkAuto(auto *nmstatev1.AutoConfig, rules []rule) error {
	switch {
	case len(rules) == 0:
		return errors.New("autoConfig needs match, which selects the interfaces")
	case auto.Bonding == nil && auto.VLAN == nil:
		return errors.New("autoConfig: give bonding, vlan or both")
	case auto.VLAN != nil && len(vlanIDs(auto.VLAN)) == 0:
		return errors.New("autoConfig.vlan: give id or ids")
	}
	if b := auto.Bonding; b != nil {
		if err := nmstate.Check(nmstate.State{"interfaces": []any{map[string]any{"name": bondName(b)}}}, true); err != nil {
			return fmt.Errorf("autoConfig.bonding: %w", err)
		}
	}
	if auto.VLAN != nil {
		for _, id := range vlanIDs(auto.VLAN) {
			if id < 1 || id > 4094 {
				return fmt.Errorf("autoConfig.vlan: %d is no VLAN's id, which is between 1 and 4094", id)
			}
		}
	}
	return nil
}

// understandState splits the document into the state of each matched interface and the rest.
func (p *Policy) understandState(raw []byte) error {
	doc, err := nmstate.ParseTemplate(raw)
	if err != nil {
		return fmt.Errorf("desiredState: %w", err)
	}
	if slices.ContainsFunc(doc.Interfaces(), func(i nmstate.Interface) bool { return i.Name() == "" && i.Type() == nmstate.OVSBridge }) {
		return errors.New("desiredState: an OVS bridge needs a name; match is for interfaces that are there")
	}
	p.fixed = takeApart(nmstate.Canonical(doc))
	p.fixed = slices.DeleteFunc(p.fixed, func(one piece) bool {
		nameless := one.place == placeOf(interfaces, "")
		if nameless {
			p.each = append(p.each, one.content)
		}
		return nameless
	})
	if len(p.each) > 0 && len(p.rules) == 0 {
		return errors.New("desiredState: an interface without a name needs match, which selects the interfaces")
	}
	return nil
}

// unavailable is how many of so many nodes may change at once: at least 1; percentages are rounded up.
func (p *Policy) unavailable(nodes int) (int, error) {
	most, err := intstr.GetScaledValueFromIntOrPercent(&p.most, nodes, true)
	if err != nil {
		return 0, fmt.Errorf("maxUnavailable: %s is neither a number nor a percentage such as \"50%%\"", p.most.String())
	}
	return max(most, 1), nil
}

// inOrder sorts policies as they are laid over each other: the last one wins.
func inOrder(a, b *Policy) int {
	return cmp.Or(cmp.Compare(a.Priority, b.Priority), cmp.Compare(a.Name, b.Name))
}

func vlanIDs(v *nmstatev1.VLAN) []int32 {
	ids := slices.Clone(v.IDs)
	if v.ID != nil {
		ids = append(ids, *v.ID)
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}
