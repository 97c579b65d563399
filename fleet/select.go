package fleet

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	fleetv1alpha1 "github.com/flowkeep/flowkeep/fleet/api/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	clusterv1beta1 "open-cluster-management.io/api/cluster/v1beta1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// Reasons of problems with what is selected.
const (
	ReasonInvalidParameters = "InvalidParameters"
	ReasonNotPlaced         = "NotPlaced"             // the gateway has no label that names a Placement
	ReasonPlacementNotFound = "PlacementNotFound"     // there is none of that name
	ReasonInvalid           = "Invalid"               // the object is not as its kind is
	ReasonConflicted        = "Conflicted"            // an older one has the same name on the spokes
	ReasonRefNotPermitted   = "RefNotPermitted"       // it targets a gateway of another namespace
	ReasonNamespace         = "NamespaceNotPermitted" // a set is not to write into its target namespace
	ReasonUnread            = "Unread"                // who asks may not read what decides about it
)

var errUnread = errors.New("cannot be read by this user, so that the copies to send are unknown")

// Class is what a GatewayClass says of its gateways.
type Class struct {
	Name       string
	Generation int64
	// Controller is ours; empty: the default one.
	Controller gatewayv1.GatewayController
	Parameters Parameters
	// Note names the parameters that are ignored.
	Note string
	// Err: the parameters can't be read. What went out with them before stays.
	Err error
	// Kinds of its list that are policies on the hub.
	Kinds []Kind
	// Problems are those with the others.
	Problems []Problem
	// Frozen says why the kinds' objects can't be read: what went out before stays. It is set by who lists them.
	Frozen string
	// Pending is set while the ConfigMap or the kinds' objects are being read: nothing is reported until then.
	Pending bool
}

// ReadClass reads a GatewayClass that is ours. The ConfigMap is the one that it names, nil if there is none.
func ReadClass(class *gatewayv1.GatewayClass, parameters *corev1.ConfigMap, definitions []Definition) *Class {
	c := &Class{Name: class.Name, Generation: class.Generation, Controller: class.Spec.ControllerName}
	name, err := ParametersRef(class)
	switch {
	case err != nil:
		c.Err = err
	case parameters == nil:
		c.Err = fmt.Errorf("there is no ConfigMap %s, which spec.parametersRef names", name)
	default:
		if c.Parameters, c.Note, err = ParseParameters(parameters.Data); err != nil {
			c.Err = fmt.Errorf("ConfigMap %s: %w", name, err)
		}
	}
	for _, ref := range c.Parameters.Kinds {
		kind, problem := JudgeKind(ref, definitions)
		if problem != nil {
			problem.Source = Source{gatewayv1.GroupName, "GatewayClass", Name{"", class.Name}}
			c.Problems = append(c.Problems, *problem)
			continue
		}
		c.Kinds = append(c.Kinds, kind)
	}
	c.Kinds = OneVersion(c.Kinds)
	return c
}

// GatewaySource names a hub Gateway as a source.
func GatewaySource(n Name) Source { return Source{gatewayv1.GroupName, kindGateway, n} }

// Selection is what becomes of a hub Gateway. Without a Gateway its copies go, unless they are Frozen.
type Selection struct {
	Gateway *Gateway
	// Frozen: it is not known what is wanted, so what was sent before stays as it is.
	Frozen bool
	// Pending is set if the class is: the Problem is not reported.
	Pending bool
	// Problem is why it goes nowhere, if it is ours at all.
	Problem *Problem
}

// Lookup is what there is on the hub other than gateways.
type Lookup struct {
	// Class is one of ours, nil if there is none of the name.
	Class func(name string) *Class
	// Placement reports whether there is one, Decisions are its.
	Placement func(Name) bool
	Decisions func(Name) []*clusterv1beta1.PlacementDecision
	// Kept returns the clusters that keep what a bundle sent there by a Placement although no decision names
	// them any more, with the begin of their grace period; nil: none do.
	Kept func(bundle Source, placement Name) Left
	// Secret returns one of the hub's; nil: they are not known.
	Secret func(Name) Secret
	// Namespaces of spokes that sets may write into.
	Namespaces Namespaces
}

// SelectGateway decides where a hub Gateway goes.
func SelectGateway(gateway Object, hub Lookup) Selection {
	name, ok := identity(gateway)
	if !ok || absent(gateway) {
		return Selection{}
	}
	class := hub.Class(textOf(object(gateway, "spec"), "gatewayClassName"))
	if class == nil {
		return Selection{}
	}
	problem := func(reason, format string, args ...any) *Problem {
		return &Problem{Source: GatewaySource(name), Reason: reason, Message: fmt.Sprintf(format, args...)}
	}
	placement := PlacementOf(gateway)
	switch {
	case placement.Name == "":
		return Selection{Problem: problem(ReasonNotPlaced, "it has no label %s, which names a Placement of its namespace", LabelPlacement)}
	case !hub.Placement(placement):
		return Selection{Problem: problem(ReasonPlacementNotFound, "there is no Placement %s", placement)}
	case errors.Is(class.Err, errUnread):
		return Selection{Frozen: true, Problem: problem(ReasonUnread, "GatewayClass %s: %v", class.Name, class.Err)}
	case class.Err != nil:
		return Selection{
			Frozen:  true,
			Pending: class.Pending,
			Problem: problem(ReasonInvalidParameters, "GatewayClass %s: %v", class.Name, class.Err),
		}
	case class.Frozen != "":
		return Selection{
			Frozen:  true,
			Pending: class.Pending,
			Problem: problem(ReasonKindUnreadable, "GatewayClass %s: %s", class.Name, class.Frozen),
		}
	}
	clusters, left := hub.clusters(GatewaySource(name), placement)
	g := &Gateway{
		Name:       name,
		Object:     gateway,
		Parameters: class.Parameters,
		Kinds:      class.Kinds,
		Clusters:   clusters,
		Kept:       slices.Sorted(maps.Keys(left)),
		Left:       left,
	}
	if class.Parameters.Secrets && hub.Secret != nil {
		for _, ref := range SecretRefs(gateway) {
			g.Secrets = append(g.Secrets, hub.Secret(ref))
		}
	}
	return Selection{Gateway: g}
}

// clusters returns where a bundle goes by a Placement, and which of these clusters no decision names.
func (l *Lookup) clusters(bundle Source, placement Name) (all []string, left Left) {
	all = DecidedClusters(l.Decisions(placement))
	if l.Kept == nil {
		return all, nil
	}
	left = l.Kept(bundle, placement)
	maps.DeleteFunc(left, func(c string, _ time.Time) bool { return slices.Contains(all, c) })
	all = slices.AppendSeq(all, maps.Keys(left))
	slices.Sort(all)
	return all, left
}

// DecidedClusters returns the clusters that decisions name, in order, each once.
func DecidedClusters(decisions []*clusterv1beta1.PlacementDecision) (clusters []string) {
	for _, d := range decisions {
		if d.DeletionTimestamp != nil {
			continue
		}
		for _, one := range d.Status.Decisions {
			if one.ClusterName != "" {
				clusters = append(clusters, one.ClusterName)
			}
		}
	}
	slices.Sort(clusters)
	return slices.Compact(clusters)
}

// Lists reports whether policies of the kind go with the gateway.
func (g *Gateway) Lists(k Kind) bool {
	return slices.ContainsFunc(g.Kinds, func(own Kind) bool { return own.Group == k.Group && own.Resource == k.Resource })
}

// Source is the policy's.
func (p *Policy) Source() Source { return Source{p.Kind.Group, p.Kind.Kind, p.Name} }

// Aimed is a policy with the gateways that it goes along with.
type Aimed struct {
	*Policy
	// Gateways in order of name.
	Gateways []*Gateway
	// Overrides of it, whichever clusters they are for.
	Overrides []*Override
	// Frozen: one of the gateways that it targets is; what was sent of the policy before stays.
	Frozen bool
}

// Aim finds what a policy goes along with. Nil: nothing. A policy that can't be read targets nothing, and is a problem.
func Aim(p *Policy, selection func(Name) Selection) (*Aimed, *Problem) {
	if _, named := identity(p.Object); !named || absent(p.Object) {
		return nil, nil
	}
	names, err := Targets(p.Object)
	if err != nil {
		return nil, &Problem{Source: p.Source(), Reason: ReasonInvalid, Message: err.Error()}
	}
	a := &Aimed{Policy: p}
	for _, name := range names {
		s := selection(name)
		a.Frozen = a.Frozen || s.Frozen
		if s.Gateway != nil && s.Gateway.Lists(p.Kind) {
			a.Gateways = append(a.Gateways, s.Gateway)
		}
	}
	if len(a.Gateways) == 0 && !a.Frozen {
		return nil, nil
	}
	return a, nil
}

// refused says why a policy does not go with a gateway that it targets, if it does not. Where a class puts all namespaces of the hub into one,
// a spoke's controller would take it for one of the gateway's own namespace, and ask for no consent (a ReferenceGrant); elsewhere that is the
// controller's matter, as it is on one cluster.
func (p *Policy) refused(g *Gateway) string {
	if g.Parameters.Namespace == "" || g.Namespace == p.Namespace {
		return ""
	}
	return fmt.Sprintf("it targets the Gateway %s, of another namespace; on the spokes both would be in %s (downstreamNamespace), where it would count "+
		"as one of the Gateway's own namespace: have it in %s", g.Name, g.Parameters.Namespace, g.Namespace)
}

// Bundle names the bundle that the policy goes with: that of its gateway, or its own if it has several.
func (a *Aimed) Bundle() Source {
	if len(a.Gateways) == 1 && !a.Frozen {
		return GatewaySource(a.Gateways[0].Name)
	}
	return a.Policy.Source()
}

// Set is a NetworkPolicySet with what it sends where.
type Set struct {
	Name
	TargetNamespace string
	// Clusters in order of name.
	Clusters []string
	// Left is the begin of the grace periods of clusters that no decision names any more.
	Left Left
	// Policies in order of name.
	Policies []Object

	conflicts map[place]bool // where a policy does not go
}

// SetSource names a NetworkPolicySet as a source.
func SetSource(n Name) Source { return Source{Group, fleetv1alpha1.KindSet, n} }

func networkPolicySource(n Name) Source { return Source{"networking.k8s.io", "NetworkPolicy", n} }

// SelectSets decides which NetworkPolicies go where. Of two NetworkPolicies that have one name on a spoke the older goes, the other is a
// problem. Of a set whose selector is invalid, or whose target namespace is not to be written into, nothing changes on the spokes: it is frozen.
func SelectSets(sets []*fleetv1alpha1.NetworkPolicySet, policies []Object, hub Lookup) (selected []*Set, frozen []Name, problems []Problem) {
	for _, o := range sets {
		if o.DeletionTimestamp != nil {
			continue
		}
		name := Name{o.Namespace, o.Name}
		placement, target := Name{o.Namespace, o.Spec.Placement}, cmp.Or(o.Spec.TargetNamespace, o.Namespace)
		selector, err := metav1.LabelSelectorAsSelector(&o.Spec.Selector)
		switch {
		case err != nil:
			frozen = append(frozen, name)
			problems = append(problems, Problem{Source: SetSource(name), Reason: ReasonInvalid, Message: "spec.selector: " + err.Error()})
			continue
		case !hub.Namespaces.Has(target):
			frozen = append(frozen, name)
			problems = append(problems, Problem{Source: SetSource(name), Reason: ReasonNamespace, Message: fmt.Sprintf(
				"sets may not write into namespaces %s of spokes (--set-namespaces %s); what was sent before stays", target, hub.Namespaces)})
			continue
		case !hub.Placement(placement):
			problems = append(problems, Problem{Source: SetSource(name), Reason: ReasonPlacementNotFound, Message: fmt.Sprintf("there is no Placement %s", placement)})
			continue
		}
		clusters, left := hub.clusters(SetSource(name), placement)
		selected = append(selected, &Set{
			Name:            name,
			TargetNamespace: target,
			Clusters:        clusters,
			Left:            left,
			Policies:        selectPolicies(policies, o.Namespace, selector),
		})
	}
	slices.SortFunc(selected, func(a, b *Set) int { return a.Compare(b.Name) })
	return selected, frozen, append(problems, findConflicts(selected)...)
}

func selectPolicies(policies []Object, namespace string, selector labels.Selector) (selected []Object) {
	for _, p := range policies {
		name, ok := identity(p)
		if ok && name.Namespace == namespace && !absent(p) && selector.Matches(labels.Set(texts(object(p, "metadata", "labels")))) {
			selected = append(selected, p)
		}
	}
	slices.SortFunc(selected, func(a, b Object) int { return nameOf(a).Compare(nameOf(b)) })
	return selected
}

// place is where a NetworkPolicy goes.
type place struct {
	cluster string
	Name
}

// findConflicts sets where a policy of a set does not go, because another one goes there under the same name: one of
// the namespace's own, or else the oldest. So no set takes away what a namespace has of its own, however old the policy
// is that is sent there from another.
func findConflicts(sets []*Set) (problems []Problem) {
	holders := map[place]Object{}
	for _, s := range sets {
		s.each(func(p Object, at place) {
			if held := holders[at]; held == nil || precedes(p, held, at.Namespace) {
				holders[at] = p
			}
		})
	}
	for _, s := range sets {
		s.each(func(p Object, at place) {
			holder := nameOf(holders[at])
			if holder == nameOf(p) {
				return
			}
			if s.conflicts == nil {
				s.conflicts = map[place]bool{}
			}
			s.conflicts[at] = true
			why := "which is older"
			if holder.Namespace == at.Namespace {
				why = "which is of that namespace"
			}
			problems = append(problems, Problem{
				Source: networkPolicySource(nameOf(p)), Cluster: at.cluster, Reason: ReasonConflicted,
				Message: fmt.Sprintf("the hub's NetworkPolicy %s, %s, has the name %s there", holder, why, at.Name),
			})
		})
	}
	return problems
}

func (s *Set) each(visit func(Object, place)) {
	for _, p := range s.Policies {
		for _, c := range s.Clusters {
			visit(p, place{c, Name{s.TargetNamespace, nameOf(p).Name}})
		}
	}
}

// precedes reports whether the first of two policies goes into a namespace.
func precedes(a, b Object, namespace string) bool {
	if own := nameOf(a).Namespace == namespace; own != (nameOf(b).Namespace == namespace) {
		return own
	}
	return older(a, b)
}

// older: creation, then name.
func older(a, b Object) bool {
	created := strings.Compare(textOf(object(a, "metadata"), "creationTimestamp"), textOf(object(b, "metadata"), "creationTimestamp"))
	return cmp.Or(created, nameOf(a).Compare(nameOf(b))) < 0
}

// nameOf is an object's name, if it has one.
func identity(o Object) (Name, bool) {
	n := nameOf(o)
	return n, n.Name != "" && n.Namespace != ""
}

func nameOf(o Object) Name {
	meta := object(o, "metadata")
	return Name{textOf(meta, "namespace"), textOf(meta, "name")}
}

// absent: an object that is being deleted counts as absent, and so does a copy, on a hub that is a spoke too.
func absent(o Object) bool {
	meta := object(o, "metadata")
	_, copied := object(meta, "annotations")[AnnotationSource]
	return copied || meta["deletionTimestamp"] != nil
}

// texts are those of the values that are texts.
func texts(o Object) map[string]string {
	found := make(map[string]string, len(o))
	for key, value := range o {
		if s, ok := value.(string); ok {
			found[key] = s
		}
	}
	return found
}
