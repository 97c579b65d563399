package live

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
	"github.com/flowkeep/flowkeep/systemtests/soak"
)

func (p *player) applyPod(ctx context.Context, pod soak.Pod, c soak.Change) error {
	_, exists := p.state.Pods[pod.ID()]
	if exists && !c.Anew {
		p.state.Apply(soak.Change{Pod: &pod})
		return p.ask(ctx, http.MethodPatch, core(pod.Namespace, "pods/"+pod.Name), setLabels(pod.Labels), nil)
	}
	if exists {
		if err := p.deletePod(ctx, pod.ID(), c.Forced); err != nil {
			return err
		}
	}
	if err := p.ask(ctx, http.MethodPost, core(pod.Namespace, "pods"), manifest(pod), nil); err != nil {
		return err
	}
	p.starting = append(p.starting, pod)
	p.state.Apply(soak.Change{Pod: &pod})
	return nil
}

// awaitPods waits for the pods that start: of a round its one, and all of the beginning.
func (p *player) awaitPods(ctx context.Context) error {
	for _, pod := range p.starting {
		at, err := p.awaitPod(ctx, pod)
		if err != nil {
			return err
		}
		p.pods[pod.ID()], p.known[pod.ID()] = at, at
	}
	p.starting = nil
	return nil
}

// manifest: pods of the host's network leave the ports of soak.Ports, on which the node itself answers, alone.
func manifest(pod soak.Pod) object {
	args, named := []string{"serve"}, []object{}
	for _, n := range soak.Ports {
		args = append(args, fmt.Sprint(n))
	}
	for _, n := range pod.Named {
		named = append(named, object{"name": n.Name, "protocol": n.Protocol, "containerPort": n.Number})
	}
	if pod.HostNetwork {
		args, named = []string{"serve", "0"}, nil
	}
	return object{"metadata": object{"name": pod.Name, "labels": pod.Labels}, "spec": object{
		"nodeName": pod.Node, "hostNetwork": pod.HostNetwork, "terminationGracePeriodSeconds": 1, "automountServiceAccountToken": false,
		"containers": []object{{"name": "probe", "image": "flowkeep.local/probe:sandbox", "imagePullPolicy": "Never", "args": args, "ports": named, "resources": cluster.Share}}}}
}

func (p *player) awaitPod(ctx context.Context, pod soak.Pod) (*place, error) {
	at := &place{name: pod.ID()}
	err := cluster.Until(ctx, changing, func() error {
		var seen struct {
			Status struct {
				PodIPs     []struct{ IP netip.Addr }
				Conditions []struct{ Type, Status string }
			}
		}
		if err := p.ask(ctx, http.MethodGet, core(pod.Namespace, "pods/"+pod.Name), nil, &seen); err != nil {
			return err
		}
		at.ips = at.ips[:0]
		for _, ip := range seen.Status.PodIPs {
			at.ips = append(at.ips, ip.IP)
		}
		ready := slices.ContainsFunc(seen.Status.Conditions, func(c struct{ Type, Status string }) bool { return c.Type == "Ready" && c.Status == "True" })
		if !ready || len(at.ips) == 0 {
			return fmt.Errorf("pod %s is not ready: %+v", pod.ID(), seen.Status)
		}
		return nil
	})
	if err != nil || pod.HostNetwork {
		return at, err
	}
	found, err := p.Cluster.Pod(ctx, pod.Namespace, pod.Name)
	if err == nil {
		at.NetNS, err = cluster.EnterNetNS(found.NetNS)
	}
	return at, err
}

func (p *player) deletePod(ctx context.Context, id string, forced bool) error {
	namespace, name, _ := strings.Cut(id, "/")
	path := core(namespace, "pods/"+name)
	var options any
	if forced {
		options = object{"gracePeriodSeconds": 0}
	}
	err := errors.Join(p.ask(ctx, http.MethodDelete, path, options, nil), p.awaitGone(ctx, path))
	if at := p.pods[id]; at != nil {
		at.leave()
	}
	delete(p.pods, id)
	p.state.Apply(soak.Change{DeletePod: id})
	return err
}
