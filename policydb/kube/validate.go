package kube

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Validate returns the errors that the API server would reject a NetworkPolicy with.
func Validate(np *networkingv1.NetworkPolicy) field.ErrorList {
	errs := apivalidation.ValidateObjectMeta(&np.ObjectMeta, true, apivalidation.NameIsDNSSubdomain,
		field.NewPath("metadata"))
	spec := field.NewPath("spec")
	errs = append(errs, validSelector(&np.Spec.PodSelector, spec.Child("podSelector"))...)
	for i, r := range np.Spec.Ingress {
		at := spec.Child("ingress").Index(i)
		errs = append(errs, validRule(at, at.Child("from"), r.From, r.Ports)...)
	}
	for i, r := range np.Spec.Egress {
		at := spec.Child("egress").Index(i)
		errs = append(errs, validRule(at, at.Child("to"), r.To, r.Ports)...)
	}
	return append(errs, validTypes(np.Spec.PolicyTypes, spec.Child("policyTypes"))...)
}

func validSelector(s *metav1.LabelSelector, at *field.Path) field.ErrorList {
	return metavalidation.ValidateLabelSelector(s, metavalidation.LabelSelectorValidationOptions{}, at)
}

func validTypes(types []networkingv1.PolicyType, at *field.Path) (errs field.ErrorList) {
	known := []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}
	if len(types) > len(known) {
		return field.ErrorList{field.Invalid(at, types, "may not specify more than two policyTypes")}
	}
	for i, t := range types {
		if t != known[0] && t != known[1] {
			errs = append(errs, field.NotSupported(at.Index(i), t, known))
		}
	}
	return errs
}

func validRule(
	at, side *field.Path, peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort,
) (errs field.ErrorList) {
	for i := range ports {
		errs = append(errs, validPort(&ports[i], at.Child("ports").Index(i))...)
	}
	for i := range peers {
		errs = append(errs, validPeer(&peers[i], side.Index(i))...)
	}
	return errs
}

func validPort(p *networkingv1.NetworkPolicyPort, at *field.Path) (errs field.ErrorList) {
	if _, ok := protocolOf(p.Protocol); !ok {
		errs = append(errs,
			field.NotSupported(at.Child("protocol"), *p.Protocol,
				[]corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP}))
	}
	end := at.Child("endPort")
	switch {
	case p.Port == nil && p.EndPort != nil:
		errs = append(errs, field.Invalid(end, *p.EndPort, "may not be specified when `port` is not specified"))
	case p.Port == nil:
	case p.Port.Type == intstr.String:
		errs = append(errs, invalid(at.Child("port"), p.Port.StrVal, validation.IsValidPortName(p.Port.StrVal))...)
		if p.EndPort != nil {
			errs = append(errs, field.Invalid(end, *p.EndPort, "may not be specified when `port` is non-numeric"))
		}
	default:
		errs = append(errs, invalid(at.Child("port"), p.Port.IntVal, validation.IsValidPortNum(int(p.Port.IntVal)))...)
		if p.EndPort == nil {
			break
		}
		if *p.EndPort < p.Port.IntVal {
			errs = append(errs, field.Invalid(end, *p.EndPort, "must be greater than or equal to `port`"))
		}
		errs = append(errs, invalid(end, *p.EndPort, validation.IsValidPortNum(int(*p.EndPort)))...)
	}
	return errs
}

func invalid(at *field.Path, value any, messages []string) (errs field.ErrorList) {
	for _, m := range messages {
		errs = append(errs, field.Invalid(at, value, m))
	}
	return errs
}

func validPeer(p *networkingv1.NetworkPolicyPeer, at *field.Path) (errs field.ErrorList) {
	if p.PodSelector != nil {
		errs = append(errs, validSelector(p.PodSelector, at.Child("podSelector"))...)
	}
	if p.NamespaceSelector != nil {
		errs = append(errs, validSelector(p.NamespaceSelector, at.Child("namespaceSelector"))...)
	}
	selects := p.PodSelector != nil || p.NamespaceSelector != nil
	switch {
	case p.IPBlock != nil && selects:
		errs = append(errs, field.Forbidden(at, "may not specify both ipBlock and another peer"))
	case p.IPBlock == nil && !selects:
		errs = append(errs, field.Required(at, "must specify a peer"))
	}
	if p.IPBlock != nil {
		errs = append(errs, validBlock(p.IPBlock, at.Child("ipBlock"))...)
	}
	return errs
}

// validBlock accepts what API servers of some versions accept with a warning, such as bits behind the prefix. The
// conversion reports what is enforced then.
func validBlock(b *networkingv1.IPBlock, at *field.Path) (errs field.ErrorList) {
	if b.CIDR == "" {
		return field.ErrorList{field.Required(at.Child("cidr"), "")}
	}
	errs = validation.IsValidCIDRForLegacyField(at.Child("cidr"), b.CIDR, false, nil)
	outer, err := netip.ParsePrefix(b.CIDR)
	known := err == nil
	for i, text := range b.Except {
		where := at.Child("except").Index(i)
		wrong := validation.IsValidCIDRForLegacyField(where, text, false, nil)
		errs = append(errs, wrong...)
		inner, err := netip.ParsePrefix(text)
		if len(wrong) == 0 && err == nil && known && (!outer.Contains(inner.Addr()) || inner.Bits() <= outer.Bits()) {
			errs = append(errs, field.Invalid(where, text, "must be a strict subset of `cidr`"))
		}
	}
	return errs
}

// combine returns the list as one error: its first five errors, shortened.
func combine(errs field.ErrorList) error {
	if len(errs) == 0 {
		return nil
	}
	const most = 5
	var texts []string
	for _, e := range errs[:min(len(errs), most)] {
		texts = append(texts, shorten(strings.ReplaceAll(e.Error(), "\n", " ")))
	}
	if more := len(errs) - most; more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", more))
	}
	return errors.New(strings.Join(texts, "; "))
}
