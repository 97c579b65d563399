package agent

import (
	"context"
	"encoding/json"
	"net/netip"
	"path/filepath"
	"slices"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netplugin/services"
	"github.com/flowkeep/flowkeep/policydb/service"
)

// openServices reads the Services that the node held before a restart.
func (tr *translation) openServices() (err error) {
	tr.services, err = services.Open(filepath.Join(tr.a.cfg.StateDir, "services.db"), tr.a.log)
	if err == nil {
		tr.services.Writing = tr.a.disk.writes.begin
	}
	return err
}

// local returns what the node knows of its own pods.
func (tr *translation) local() services.Local {
	out := services.Local{Node: tr.a.cfg.Node, PodCIDRs: tr.a.node.self().PodCIDRs, Pods: map[netip.Addr]string{}}
	for id, p := range tr.a.pods.byID {
		for _, address := range p.endpoint.Addresses {
			out.Pods[address] = id
		}
	}
	return out
}

// queryService returns a Service as the node holds it, and what its pods would get.
func (ins *inspector) queryService(ctx context.Context, id string) ([]byte, error) {
	var local services.Local
	var problems []string
	if err := ins.a.do(ctx, func() {
		local, problems = ins.a.translation.local(), ins.a.translation.problems[id]
	}); err != nil {
		return nil, err
	}
	has := ins.a.translation.services.Holding(ins.a.cfg.Node)
	out := inspect.NodeService{Holds: inspect.NodeServices{
		Services:  has.Services,
		Slices:    has.Slices,
		Endpoints: has.Endpoints,
	}}
	if has.Problem != nil {
		out.Holds.Problem = has.Problem.Error()
	}
	if s, all := ins.a.translation.services.Get(id, &local); s != nil {
		v := inspect.ServedAt(s, all, &service.Place{Node: ins.a.cfg.Node, Zone: has.Zone})
		v.Problems = slices.Concat(v.Problems, problems)
		out.Service = &v
	}
	return json.Marshal(out)
}

// reportService returns what the node does with a Service, and what its pods have opened to it.
func (ins *inspector) reportService(ctx context.Context, id string) ([]byte, error) {
	out := inspect.ServiceReport{Node: ins.a.cfg.Node, TranslatedBy: inspect.TranslatedByKubeProxy}
	if err := ins.a.do(ctx, func() { out.Refused = ins.a.translation.problems[id] }); err != nil {
		return nil, err
	}
	s, _ := ins.a.translation.services.Get(id, &services.Local{Node: ins.a.cfg.Node})
	out.Held = s != nil
	if !ins.a.cfg.translates() {
		return json.Marshal(out)
	}
	out.TranslatedBy = inspect.TranslatedByOVS
	if err := ins.a.counting.freshenOpened(ctx); err != nil {
		out.Problem = err.Error()
	}
	ledger := ins.a.counting.opened.ledger
	out.Since = ledger.Since()
	for _, c := range ledger.Of(id) {
		if !c.Endpoint.IsValid() {
			out.Unserved += c.Packets
			continue
		}
		out.Opened += c.Packets
		out.Endpoints = append(out.Endpoints, inspect.OpenedCount{
			Address:  c.Endpoint.Addr(),
			Protocol: c.Protocol,
			Port:     c.Endpoint.Port(),
			Opened:   c.Packets,
		})
	}
	return json.Marshal(out)
}
