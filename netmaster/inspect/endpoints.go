package inspect

import (
	"context"
	"net/netip"
	"strings"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func (s *Server) endpoints(ctx context.Context, q *inspect.Question) (any, error) {
	out := []inspect.Endpoint{}
	err := s.cfg.Owner.Do(ctx, func(e *resolve.Engine) {
		for _, id := range e.Endpoints() {
			if q.ID != "" && q.ID != id || q.Namespace != "" && !strings.HasPrefix(id, q.Namespace+"/") {
				continue
			}
			if v, ok := e.Endpoint(id); ok {
				out = append(out, endpointOf(&v))
			}
		}
	})
	if err == nil && q.ID != "" && len(out) == 0 {
		err = status.Errorf(codes.NotFound, "there is no pod %s", q.ID)
	}
	return out, err
}

func endpointOf(v *resolve.EndpointView) inspect.Endpoint {
	e := v.Endpoint
	return inspect.Endpoint{Namespace: e.Namespace, Name: e.Name, Node: v.Node, Addresses: append([]netip.Addr{}, v.Addresses...), Labels: e.Labels, Ports: e.Ports,
		State: endpointState(v), Ingress: v.Ingress, Egress: v.Egress}
}

func endpointState(v *resolve.EndpointView) string {
	switch {
	case v.Endpoint.HostNetwork:
		return "host network"
	case len(v.Contested) > 0:
		return "contested address"
	case v.Endpoint.Finished && !v.Announced:
		return "finished"
	case len(v.Foreign) > 0:
		return "foreign address"
	case len(v.Addresses) == 0:
		return "no address"
	case v.Announced:
		return "wired"
	}
	return "known"
}
