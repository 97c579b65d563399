package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"github.com/flowkeep/flowkeep/api/inspect"
)

// Stream answers what netctl follows on this node.
func (ins *inspector) Stream(ctx context.Context, question []byte, send func([]byte) error) error {
	var q inspect.NodeQuery
	if err := json.Unmarshal(question, &q); err != nil {
		return fmt.Errorf("query: %w", err)
	}
	switch q.Kind {
	case inspect.QueryCapture:
		return ins.capture(ctx, q.Capture, send)
	case inspect.QuerySightings:
		return ins.look(ctx, q.Sightings, send)
	}
	return fmt.Errorf("this netplugin knows no query %q", q.Kind)
}

// capture captures packets of an attached pod and logs that. Only netmaster knows the user.
func (ins *inspector) capture(ctx context.Context, q *inspect.CaptureQuery, send func([]byte) error) error {
	if q == nil {
		return errors.New("a capture of no pod")
	}
	out := inspect.Captured{Node: ins.a.cfg.Node, Pod: q.Pod}
	if err := ins.a.do(ctx, func() {
		if p := ins.a.pods.byID[q.Pod]; p != nil {
			out.Interface = p.endpoint.HostIfName
		}
	}); err != nil {
		return err
	}
	if out.Interface == "" {
		return fmt.Errorf("pod %s is not wired on node %s", q.Pod, ins.a.cfg.Node)
	}
	log := ins.a.log.With("pod", q.Pod, "interface", out.Interface, "filter", q.Filter)
	begun := sync.OnceFunc(func() { log.Info("a pod's packets are captured") }) // from here on none is missed
	var counts inspect.CaptureCounts
	err := ins.captures.Run(ctx, &q.CaptureSpec, out, func(c *inspect.Captured) error {
		begun()
		counts = c.CaptureCounts
		body, err := json.Marshal(c)
		if err != nil {
			return err
		}
		return send(body)
	})
	log.Info("the capture has ended", "packets", counts.Packets, "dropped", counts.Dropped, "reason", err)
	return err
}

// look sends sightings of packets on all interfaces and logs that.
func (ins *inspector) look(ctx context.Context, q *inspect.SightingsQuery, send func([]byte) error) error {
	if q == nil {
		return errors.New("which packets are to be looked for is not said")
	}
	log := ins.a.log.With("from", q.From, "to", q.To, "protocol", q.Protocol, "ports", q.Ports)
	begun := sync.OnceFunc(func() { log.Info("packets are traced") })
	var counts inspect.CaptureCounts
	podAt := func(ifName string) string { return ins.podAt(ctx, ifName) }
	err := ins.captures.Look(ctx, q, ins.a.cfg.Node, podAt, func(s *inspect.Sighted) error {
		begun()
		counts = s.CaptureCounts
		body, err := json.Marshal(s)
		if err != nil {
			return err
		}
		return send(body)
	})
	log.Info("the trace has ended", "packets", counts.Packets, "dropped", counts.Dropped, "reason", err)
	return err
}

// podAt returns the pod with this host interface, "" if none has it.
func (ins *inspector) podAt(ctx context.Context, ifName string) (pod string) {
	_ = ins.a.do(ctx, func() {
		for id, p := range ins.a.pods.byID {
			if p.endpoint.HostIfName == ifName {
				pod = id
			}
		}
	})
	return pod
}
