package fleet

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	goyaml "go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/util/validation"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/yaml"
)

// Keys of the ConfigMap that a GatewayClass names.
const (
	keyClass     = "downstreamClass"
	keyNamespace = "downstreamNamespace"
	keyPolicies  = "policies"
	// keyAnnotations holds annotations that all copies of policies get.
	keyAnnotations = "policyAnnotations"
	// keySecrets has the TLS Secrets of listeners sent along.
	keySecrets = "listenerSecrets"
	// keyOlder holds everything as JSON, as Kuadrant's multicluster gateway controller has it. It is read if there is none of the others.
	keyOlder = "params"
)

// parameterBytes bounds what is parsed of a value: a ConfigMap may have a megabyte.
const parameterBytes = 64 << 10

// kindsLimit bounds a list of kinds: each is a watch.
const kindsLimit = 64

// ParametersRef is the ConfigMap that a GatewayClass names.
func ParametersRef(class *gatewayv1.GatewayClass) (Name, error) {
	ref := class.Spec.ParametersRef
	switch {
	case ref == nil:
		return Name{}, errors.New("spec.parametersRef is missing: name a ConfigMap with the keys downstreamClass and policies")
	case ref.Group != "" || ref.Kind != "ConfigMap":
		return Name{}, fmt.Errorf("spec.parametersRef names a %s of group %q: name a ConfigMap, of group \"\"", ref.Kind, string(ref.Group))
	case ref.Namespace == nil || *ref.Namespace == "" || ref.Name == "":
		return Name{}, errors.New("spec.parametersRef needs the namespace and the name of the ConfigMap")
	}
	return Name{string(*ref.Namespace), ref.Name}, nil
}

// ParseParameters reads a ConfigMap's data. The note names the keys that are ignored.
func ParseParameters(data map[string]string) (p Parameters, note string, err error) {
	_, class := data[keyClass]
	_, namespace := data[keyNamespace]
	_, policies := data[keyPolicies]
	older, hasOlder := data[keyOlder]
	if !class && !namespace && !policies && hasOlder {
		if p, err = parseOlder(older); err == nil {
			err = p.parseOptions(data)
		}
	} else {
		p, err = parseKeys(data)
		if hasOlder {
			note = "the key " + keyOlder + " is passed by, as there are newer ones"
		}
	}
	if err == nil {
		err = p.check()
	}
	if err != nil {
		return Parameters{}, note, err
	}
	return p, note, nil
}

func parseKeys(data map[string]string) (p Parameters, err error) {
	if err := p.parseOptions(data); err != nil {
		return p, err
	}
	for key, value := range data {
		switch key {
		case keyClass:
			p.Class = strings.TrimSpace(value)
		case keyNamespace:
			p.Namespace = strings.TrimSpace(value)
		case keyPolicies:
			if p.Kinds, err = parseKinds(value); err != nil {
				return p, err
			}
		case keyOlder, keyAnnotations, keySecrets:
		default:
			known := strings.Join(knownKeys[:len(knownKeys)-1], ", ")
			return p, fmt.Errorf("key %.64q is not known: there are %s", leastKey(data, key), known)
		}
	}
	if p.Class == "" {
		return p, errors.New("downstreamClass is missing: name the GatewayClass that gateways have on the spokes")
	}
	return p, nil
}

// knownKeys are the keys that are read, the older form's last.
var knownKeys = []string{keyClass, keyNamespace, keyPolicies, keyAnnotations, keySecrets, keyOlder}

// parseOptions reads the keys that the older form can have too.
func (p *Parameters) parseOptions(data map[string]string) (err error) {
	if text := strings.TrimSpace(data[keySecrets]); text != "" {
		if p.Secrets, err = strconv.ParseBool(text); err != nil {
			return fmt.Errorf("%s %.64q: true or false is needed", keySecrets, text)
		}
	}
	text, has := data[keyAnnotations]
	if !has {
		return nil
	}
	if err := parse(text, &p.PolicyAnnotations); err != nil {
		return fmt.Errorf("%s: a map such as {kuadrant.io/policy-synced: \"true\"} is needed: %w", keyAnnotations, err)
	}
	for _, key := range slices.Sorted(maps.Keys(p.PolicyAnnotations)) {
		switch wrong := validation.IsQualifiedName(key); {
		case len(wrong) > 0:
			return fmt.Errorf("%s: %.64q is no name of an annotation: %s", keyAnnotations, key, wrong[0])
		case !isAuthors(key):
			return fmt.Errorf("%s: %.64q is not sent: it is policy sync's or a deployment tool's", keyAnnotations, key)
		}
	}
	return nil
}

// leastKey makes the message the same whichever unknown key is met first.
func leastKey(data map[string]string, found string) string {
	for key := range data {
		if !slices.Contains(knownKeys, key) && key < found {
			found = key
		}
	}
	return found
}

func parseKinds(text string) ([]KindRef, error) {
	var list []struct {
		Group    *string `json:"group"`
		Version  string  `json:"version"`
		Kind     string  `json:"kind"`
		Resource string  `json:"resource"`
	}
	if err := parse(text, &list); err != nil {
		return nil, fmt.Errorf("policies: a list such as [{group: kuadrant.io, kind: RateLimitPolicy}] is needed: %w", err)
	}
	var kinds []KindRef
	for i, one := range list {
		if one.Group == nil {
			return nil, fmt.Errorf("policies[%d]: group is missing", i)
		}
		if (one.Kind == "") == (one.Resource == "") {
			return nil, fmt.Errorf("policies[%d]: either kind or resource is needed", i)
		}
		kinds = append(kinds, KindRef{Group: *one.Group, Version: one.Version, Kind: one.Kind, Resource: one.Resource})
	}
	return kinds, nil
}

func parseOlder(text string) (p Parameters, err error) {
	type resource struct {
		Group    string `json:"group"`
		Version  string `json:"version"`
		Resource string `json:"resource"`
	}
	var older struct {
		DownstreamClass string `json:"downstreamClass"`
		// The RFC has the first name, Kuadrant's multicluster gateway controller the second one since 2024.
		PoliciesToSync         []resource `json:"policiesToSync"`
		ExperimentalPolicySync []resource `json:"experimentalPolicySync"`
	}
	if err := parse(text, &older); err != nil {
		return p, fmt.Errorf("params: %w", err)
	}
	p.Class = older.DownstreamClass
	if p.Class == "" {
		return p, errors.New("params: downstreamClass is missing: name the GatewayClass that gateways have on the spokes")
	}
	if len(older.PoliciesToSync) > 0 && len(older.ExperimentalPolicySync) > 0 {
		return p, errors.New("params: policiesToSync and experimentalPolicySync are two names of one list: give one")
	}
	for i, one := range append(older.PoliciesToSync, older.ExperimentalPolicySync...) {
		if one.Resource == "" {
			return p, fmt.Errorf("params: entry %d of the policies to sync: resource is missing", i)
		}
		p.Kinds = append(p.Kinds, KindRef{Group: one.Group, Version: one.Version, Resource: one.Resource})
	}
	return p, nil
}

// parse reads YAML, or JSON. It refuses unknown fields, fields that come twice, and aliases, which make much of little.
func parse(text string, into any) error {
	if len(text) > parameterBytes {
		return fmt.Errorf("it has %d bytes, at most %d are read", len(text), parameterBytes)
	}
	var document goyaml.Node
	if err := goyaml.Unmarshal([]byte(text), &document); err != nil {
		return fmt.Errorf("it cannot be read: %w", err)
	}
	if n := anchored(&document); n != nil {
		return fmt.Errorf("line %d: anchors (&) and aliases (*) of YAML are not accepted", n.Line)
	}
	return yaml.UnmarshalStrict([]byte(text), into)
}

// anchored returns the first node with an anchor or an alias, nil if there is none. The node of an alias is that of its
// anchor, which is not visited again.
func anchored(n *goyaml.Node) *goyaml.Node {
	if n.Anchor != "" || n.Kind == goyaml.AliasNode {
		return n
	}
	for _, child := range n.Content {
		if found := anchored(child); found != nil {
			return found
		}
	}
	return nil
}

// check holds what would make copies that no spoke takes.
func (p *Parameters) check() error {
	if wrong := validation.IsDNS1123Subdomain(p.Class); len(wrong) > 0 {
		return fmt.Errorf("downstreamClass %.64q is no name of a GatewayClass: %s", p.Class, wrong[0])
	}
	if p.Namespace != "" {
		if wrong := validation.IsDNS1123Label(p.Namespace); len(wrong) > 0 {
			return fmt.Errorf("downstreamNamespace %.64q is no name of a namespace: %s", p.Namespace, wrong[0])
		}
	}
	if len(p.Kinds) > kindsLimit {
		return fmt.Errorf("%d kinds of policies are listed, at most %d can be", len(p.Kinds), kindsLimit)
	}
	return nil
}
