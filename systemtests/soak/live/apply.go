package live

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
	"github.com/flowkeep/flowkeep/systemtests/soak"
)

type object = map[string]any

// changing bounds how long a pod or a namespace may take to come or go.
const changing = 90 * time.Second

func (p *player) apply(ctx context.Context, c soak.Change) error {
	switch {
	case c.Namespace != nil:
		return p.applyNamespace(ctx, *c.Namespace, c.Anew)
	case c.Pod != nil:
		return p.applyPod(ctx, *c.Pod, c)
	case c.Policy != nil:
		return p.applyPolicy(ctx, *c.Policy)
	case c.DeletePod != "":
		return p.deletePod(ctx, c.DeletePod, c.Forced)
	case c.DeletePolicy != "":
		ns, name, _ := strings.Cut(c.DeletePolicy, "/")
		delete(p.versions, c.DeletePolicy)
		p.state.Apply(c)
		return p.api.Do(ctx, http.MethodDelete, policies(ns)+"/"+name, nil)
	}
	return p.restart(ctx, c.Restart)
}

func policies(namespace string) string {
	return "/apis/networking.k8s.io/v1/namespaces/" + namespace + "/networkpolicies"
}

func core(namespace, what string) string { return "/api/v1/namespaces/" + namespace + "/" + what }

// ask sends an object and decodes the answer.
func (p *player) ask(ctx context.Context, method, path string, body, answer any) error {
	var text []byte
	var err error
	if body != nil {
		if text, err = json.Marshal(body); err != nil {
			return err
		}
	}
	text, err = p.api.Ask(ctx, method, path, text)
	if err == nil && answer != nil {
		err = json.Unmarshal(text, answer)
	}
	return err
}

func failedWith(err error, code int) bool {
	status, ok := errors.AsType[*cluster.StatusError](err)
	return ok && status.Code == code
}

func setLabels(labels any) []object {
	return []object{{"op": "replace", "path": "/metadata/labels", "value": labels}}
}

func (p *player) applyNamespace(ctx context.Context, ns soak.Namespace, anew bool) error {
	_, exists := p.state.Namespaces[ns.Name]
	if anew && exists {
		if err := p.deleteNamespace(ctx, ns.Name); err != nil {
			return err
		}
		exists = false
	}
	labels := maps.Clone(ns.Labels)
	p.parity[ns.Name] = map[string]string{"1": "0"}[p.parity[ns.Name]]
	if p.parity[ns.Name] == "" {
		p.parity[ns.Name] = "1"
	}
	labels["parity"], labels[soak.NameLabel] = p.parity[ns.Name], ns.Name
	p.state.Apply(soak.Change{Namespace: &ns, Anew: anew})
	if exists {
		return p.ask(ctx, http.MethodPatch, "/api/v1/namespaces/"+ns.Name, setLabels(labels), nil)
	}
	return p.createNamespace(ctx, ns.Name, labels)
}

// createNamespace makes what pods need there too, and a Service for each pod that may come.
func (p *player) createNamespace(ctx context.Context, name string, labels map[string]string) error {
	if err := p.ask(ctx, http.MethodPost, "/api/v1/namespaces", object{"metadata": object{"name": name, "labels": labels}}, nil); err != nil {
		return err
	}
	err := p.ask(ctx, http.MethodPost, core(name, "serviceaccounts"), object{"metadata": object{"name": "default"}}, nil)
	if err != nil && !failedWith(err, http.StatusConflict) {
		return err
	}
	for _, pod := range soak.PodNames {
		var made struct {
			Spec struct{ ClusterIPs []netip.Addr }
		}
		err := p.ask(ctx, http.MethodPost, core(name, "services"), object{"metadata": object{"name": pod}, "spec": object{
			"ipFamilyPolicy": "PreferDualStack", "selector": object{"pod": pod}, "ports": []object{
				{"name": "t", "port": soak.ServicePort, "targetPort": soak.ServiceTarget},
				{"name": "u", "port": soak.ServicePort, "targetPort": soak.ServiceTarget, "protocol": "UDP"}}}}, &made)
		if err != nil {
			return err
		}
		p.services[name+"/"+pod] = made.Spec.ClusterIPs
	}
	return nil
}

func (p *player) deleteNamespace(ctx context.Context, name string) error {
	err := p.ask(ctx, http.MethodDelete, "/api/v1/namespaces/"+name, nil, nil)
	if err != nil && !failedWith(err, http.StatusNotFound) {
		return err
	}
	if err := p.awaitGone(ctx, "/api/v1/namespaces/"+name); err != nil {
		return err
	}
	for id, pod := range p.pods {
		if strings.HasPrefix(id, name+"/") {
			pod.leave()
			delete(p.pods, id)
		}
	}
	maps.DeleteFunc(p.versions, func(id string, _ version) bool { return strings.HasPrefix(id, name+"/") })
	p.state.Apply(soak.Change{Namespace: &soak.Namespace{Name: name}, Anew: true})
	delete(p.state.Namespaces, name)
	return p.awaitForce(ctx) // netmaster has seen it go, or it might take what comes for what was
}

func (p *player) awaitGone(ctx context.Context, path string) error {
	return cluster.Until(ctx, changing, func() error {
		err := p.ask(ctx, http.MethodGet, path, nil, nil)
		switch {
		case failedWith(err, http.StatusNotFound):
			return nil
		case err != nil:
			return err
		}
		return fmt.Errorf("%s is still there", path)
	})
}

// clear removes what an earlier run left, and makes the canary: a policy for nobody whose peers are the pods of the namespaces
// with parity=1. Every change of a namespace changes its parity, so netmaster's list of the canary's peers shows that it has seen it.
func (p *player) clear(ctx context.Context) error {
	for _, name := range append([]string{canaryNamespace}, soak.NamespaceNames...) {
		err := p.ask(ctx, http.MethodDelete, "/api/v1/namespaces/"+name, nil, nil)
		if err != nil && !failedWith(err, http.StatusNotFound) {
			return err
		}
	}
	for _, name := range append([]string{canaryNamespace}, soak.NamespaceNames...) {
		if err := p.awaitGone(ctx, "/api/v1/namespaces/"+name); err != nil {
			return err
		}
	}
	if err := p.ask(ctx, http.MethodPost, "/api/v1/namespaces", object{"metadata": object{"name": canaryNamespace}}, nil); err != nil {
		return err
	}
	return p.ask(ctx, http.MethodPost, policies(canaryNamespace), object{"metadata": object{"name": "canary"}, "spec": object{
		"podSelector": object{"matchLabels": object{"canary": "nobody"}},
		"ingress":     []object{{"from": []object{{"namespaceSelector": object{"matchLabels": object{"parity": "1"}}}}}}}}, nil)
}

func (p *player) applyPolicy(ctx context.Context, pol soak.Policy) error {
	pol, err := pol.Resolve(p.addressOf)
	if err != nil {
		return err
	}
	method, path := http.MethodPost, policies(pol.Namespace)
	if _, exists := p.versions[pol.ID()]; exists {
		method, path = http.MethodPut, path+"/"+pol.Name
	}
	var made struct{ Metadata struct{ Generation int64 } }
	err = p.ask(ctx, method, path, object{"metadata": object{"name": pol.Name, "annotations": pol.Annotations()}, "spec": pol.Spec}, &made)
	if err == nil {
		p.versions[pol.ID()] = version{made.Metadata.Generation, pol.DryRun}
		p.state.Apply(soak.Change{Policy: &pol})
	}
	return err
}

// restart kills a process and starts it again. What only a switch knows, its connections, goes with it.
func (p *player) restart(ctx context.Context, process string) error {
	if strings.HasSuffix(process, "-vswitchd") {
		for _, s := range p.streams {
			s.close()
		}
		p.streams = nil
	}
	if err := p.Cluster.Kill(ctx, process); err != nil {
		return err
	}
	if err := p.Cluster.Start(ctx, process); err != nil {
		return err
	}
	if strings.HasSuffix(process, "-vswitchd") {
		return nil
	}
	return p.Cluster.AwaitReady(ctx, process, changing)
}
