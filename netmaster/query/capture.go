package query

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/internal/frames/filter"
	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// capture streams the packets that the pod's node captures.
func (s *packetQueries) capture(ctx context.Context, q *inspect.Question, send func(any) error) error {
	if q.Capture == nil {
		return status.Error(codes.InvalidArgument, "no capture specified")
	}
	if _, err := filter.Parse(q.Capture.Filter); err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	node, err := s.nodeOf(ctx, q.ID)
	if err != nil {
		return err
	}
	return s.followNode(ctx, node, inspect.NodeQuery{
		Kind:    inspect.QueryCapture,
		Capture: &inspect.CaptureQuery{Pod: q.ID, CaptureSpec: *q.Capture},
	}, func(body []byte) error {
		var c inspect.Captured
		if err := json.Unmarshal(body, &c); err != nil {
			return fmt.Errorf("node %s: decode its response: %w", node, err)
		}
		c.Node, c.Pod = node, q.ID
		return send(&c)
	})
}

// nodeOf returns the node that a pod is attached to.
func (s *sources) nodeOf(ctx context.Context, pod string) (node string, err error) {
	doErr := s.cfg.Owner.Do(ctx, func(e *resolve.Engine) {
		v, ok := e.Endpoint(pod)
		switch {
		case !ok:
			err = status.Errorf(codes.NotFound, "there is no pod %s", pod)
		case v.Endpoint.HostNetwork:
			err = status.Errorf(codes.FailedPrecondition, "pod %s is in its node's network: it has no port of its own",
				pod)
		case v.Node == "":
			err = status.Errorf(codes.FailedPrecondition, "pod %s is on no node yet (it is %s)", pod, endpointState(&v))
		}
		node = v.Node
	})
	if doErr != nil {
		return "", doErr
	}
	return node, err
}

// followNode passes the responses of a streaming node query to each.
func (s *sources) followNode(ctx context.Context, node string, q inspect.NodeQuery, each func([]byte) error) error {
	body, err := json.Marshal(q)
	if err != nil {
		return err
	}
	err = s.cfg.Nodes.QueryStream(ctx, node, body, each)
	if err != nil && strings.Contains(err.Error(), "knows no query") {
		return status.Errorf(codes.Unimplemented, "node %s: %v: it is older than this netmaster (%s), upgrade it",
			node, err, s.cfg.Version)
	}
	return err
}
