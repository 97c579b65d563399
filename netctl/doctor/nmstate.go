package doctor

import "strings"

const nmstateGroup = ".nmstate.io"

// nmstateVersion is the further version of the two kinds that kubernetes-nmstate has too.
const nmstateVersion = "v1beta1"

// NmstateOperator is the name of the Deployment of kubernetes-nmstate's operator.
const NmstateOperator = "nmstate-operator"

// OfNmstate reports whether a CustomResourceDefinition is kubernetes-nmstate's.
func OfNmstate(c CRD) bool { return strings.HasSuffix(c.Name, nmstateGroup) && !OwnCRD(c) }

// nmstate looks for kubernetes-nmstate, whose objects have the kinds of Flowkeep's node state. Its operator runs before
// there is a DaemonSet or an object.
func (b *book) nmstate(f *ClusterFacts) {
	const check = "nmstate"
	if !f.Operators.known() {
		b.unknown(check, "the cluster's Deployments", f.Operators.Error, "kubectl auth can-i list deployments -A")
	}
	var found []string
	for _, d := range f.Operators.Value {
		found = append(found, "Deployment "+d.Namespace+"/"+d.Name)
	}
	for _, d := range f.DaemonSets.Value {
		if d.Name == "nmstate-handler" {
			found = append(found, "DaemonSet "+d.Namespace+"/"+d.Name)
		}
	}
	for _, o := range f.Nmstate {
		if o.Count.known() {
			found = append(found, count(o.Count.Value, "object", "objects")+" of "+o.CRD)
		} else {
			found = append(found, "objects of "+o.CRD+" ("+o.Count.Error+")")
		}
	}
	if len(found) > 0 {
		b.add(check, Warning, "kubernetes-nmstate is there: "+strings.Join(found, ", "),
			"only one of the two can keep nodes' networks: docs/kubernetes-nmstate.md says how to come from it; "+
				"or leave out Flowkeep's node-state")
	}
}
