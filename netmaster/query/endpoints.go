package query

import (
	"context"
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netmaster/attachment"
	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// endpointsAtATime is the number of endpoints read in one call on the owner goroutine: some milliseconds of work.
const endpointsAtATime = 400

func (s *policyQueries) endpoints(ctx context.Context, q *inspect.Question) (any, error) {
	ids := []string{q.ID}
	if q.ID == "" {
		var err error
		if ids, err = s.endpointIDs(ctx, q.Namespace); err != nil {
			return nil, err
		}
	}
	if q.Names {
		return namesOf(ids, func(namespace, name string) inspect.Endpoint {
			return inspect.Endpoint{Namespace: namespace, Name: name}
		}), nil
	}
	unattached := s.cfg.Unattached()
	out := []inspect.Endpoint{}
	for piece := range slices.Chunk(ids, endpointsAtATime) {
		views := make([]resolve.EndpointView, 0, len(piece))
		err := s.cfg.Owner.Do(ctx, func(e *resolve.Engine) {
			for _, id := range piece {
				v, ok := e.Endpoint(id)
				if ok && (q.Namespace == "" || v.Endpoint.Namespace == q.Namespace) {
					views = append(views, v)
				}
			}
		})
		if err != nil {
			return nil, err
		}
		for i := range views {
			e := endpointOf(&views[i])
			if isRunningUnannounced(&views[i]) && unattached.Lacks(views[i].Endpoint.ID()) {
				e.State, e.Remedy = "not wired", attachment.Remedy
			}
			out = append(out, e)
		}
	}
	if q.ID != "" && len(out) == 0 {
		return nil, status.Errorf(codes.NotFound, "there is no pod %s", q.ID)
	}
	return out, nil
}

// endpointIDs returns the sorted IDs of the endpoints of a namespace, or of all. It works off the owner goroutine.
func (s *policyQueries) endpointIDs(ctx context.Context, namespace string) (ids []string, err error) {
	_, world, err := s.world(ctx)
	if err != nil {
		return nil, err
	}
	for _, e := range world.Endpoints {
		if namespace == "" || e.Namespace == namespace {
			ids = append(ids, e.ID())
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

func endpointOf(v *resolve.EndpointView) inspect.Endpoint {
	e := v.Endpoint
	return inspect.Endpoint{
		Namespace: e.Namespace,
		Name:      e.Name,
		Node:      v.Node,
		Addresses: append([]netip.Addr{}, v.Addresses...),
		Labels:    e.Labels,
		Ports:     e.Ports,
		State:     endpointState(v),
		Ingress:   v.Ingress,
		Egress:    v.Egress,
	}
}

// isRunningUnannounced reports whether an endpoint may be a pod that Flowkeep did not attach. The set of these pods may
// be some seconds old.
func isRunningUnannounced(v *resolve.EndpointView) bool {
	return !v.Announced && !v.Endpoint.HostNetwork && !v.Endpoint.Finished
}

func endpointState(v *resolve.EndpointView) string {
	switch {
	case v.Endpoint.HostNetwork:
		return "host network"
	case v.Endpoint.LabelsLeftOut > 0:
		return "labels over budget"
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
