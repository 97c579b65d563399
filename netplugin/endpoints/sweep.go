package endpoints

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
)

// Kept is a list of pods by reason: a sweep keeps them, though something of theirs is not where it should be.
type Kept map[string][]string

// Reasons of Kept.
const (
	// KeptNamespaceUnseen: the pod's link is there, the path of its network namespace is not.
	KeptNamespaceUnseen = "namespace-unseen"
	// KeptLinkUnseen: the pod's link is not seen, but nothing proves that the pod has ended.
	KeptLinkUnseen = "link-unseen"
	// KeptUnread: the disk did not give the pod's file.
	KeptUnread = "file-unread"
)

// KeptReasons lists the reasons.
var KeptReasons = []string{KeptNamespaceUnseen, KeptLinkUnseen, KeptUnread}

// advice is what an administrator can do, by reason.
var advice = map[string]string{
	KeptNamespaceUnseen: "mount the runtime's directory into netplugin with mountPropagation HostToContainer",
	KeptLinkUnseen:      "run netplugin in the node's network namespace (hostNetwork: true)",
	KeptUnread:          "look for errors of the node's disk; the pod is closed until its file is read",
}

// Sweep undoes what a crash left: endpoints that were never realised, pods that have ended, and addresses without an
// endpoint. A request under way is left alone. What could not be undone is logged, and joined in the error.
//
// A pod has ended if two things are missing: the node's end of its link, and the pod's end in its network namespace.
// Outside the node's own network namespace (Config.InHost) nothing is undone: all links are missing there.
func (m *Manager) Sweep(ctx context.Context) (Kept, error) {
	kept, errs := Kept{}, []error(nil)
	reader{m}.readAgain(ctx)
	s := sweep{m, m.cfg.inHost()}
	for _, e := range m.List() {
		reason, err := s.one(ctx, &e)
		if reason != "" {
			kept[reason] = append(kept[reason], podName(&e))
		}
		if err != nil {
			m.cfg.Logger.Error("could not remove a pod's attachment", "pod", e.ID(), "container", e.ContainerID,
				"error", err)
			errs = append(errs, err)
		}
	}
	if s.inHost == nil {
		if err := m.keepAddresses(); err != nil {
			m.cfg.Logger.Error("unused addresses not released", "error", err)
			errs = append(errs, err)
		}
	}
	s.report(kept)
	return kept, errors.Join(errs...)
}

func (c *Config) inHost() error {
	if c.InHost == nil {
		return nil
	}
	return c.InHost()
}

// sweep is one sweep.
type sweep struct {
	*Manager
	inHost error // why this may not be the node's network namespace
}

// one undoes the wiring of a pod that has ended, or returns the reason to keep it; "": it is as it should be.
func (m *sweep) one(ctx context.Context, e *Endpoint) (reason string, err error) {
	switch {
	case m.unread.has(m.files.path(e.ContainerID, e.IfName)):
		return KeptUnread, nil
	case e.Realised && !linkGone(e):
		if _, err := os.Stat(e.NetNS); errors.Is(err, os.ErrNotExist) {
			return KeptNamespaceUnseen, nil
		}
		return "", nil
	case m.inHost != nil || e.Realised && !hasEnded(e):
		return KeptLinkUnseen, nil //nolint:nilerr // it is a reason to keep the pod
	}
	return "", m.undoIf(ctx, e, "removing an incomplete attachment that a crash left", func(now *Endpoint) bool {
		return !now.Realised || hasEnded(now)
	})
}

// undoIf removes an attachment if the condition holds when no request works on the container: an ADD may have come
// first.
func (m *sweep) undoIf(ctx context.Context, e *Endpoint, why string, condition func(*Endpoint) bool) error {
	unlock, err := m.locks.lock(ctx, e.ContainerID)
	if err != nil {
		return err
	}
	defer unlock()
	now := m.get(keyOf(e.ContainerID, e.IfName))
	if now == nil || !condition(now) {
		return nil
	}
	m.cfg.Logger.Info(why, "pod", now.ID(), "container", now.ContainerID)
	return m.undo(ctx, now)
}

// hasEnded reports whether a pod has ended: its link is gone here, and its network namespace is gone or is without its
// end of the link. A namespace with that end proves that the link is in another network namespace or has another name.
func hasEnded(e *Endpoint) bool {
	if !linkGone(e) {
		return false
	}
	pod, err := ns.GetNS(e.NetNS)
	if err != nil {
		var absent ns.NSPathNotExistErr
		var another ns.NSPathNotNSErr
		return errors.As(err, &absent) || errors.As(err, &another)
	}
	defer pod.Close()
	has := true
	err = pod.Do(func(ns.NetNS) error {
		link, err := netlink.LinkByName(e.IfName)
		var gone netlink.LinkNotFoundError
		if errors.As(err, &gone) {
			has = false
			return nil
		}
		has = err != nil || bytes.Equal(link.Attrs().HardwareAddr, e.MAC[:])
		return err
	})
	return err == nil && !has
}

// Living returns the endpoints but those of pods that have certainly ended.
func (m *Manager) Living() []Endpoint {
	if m.cfg.inHost() != nil {
		return m.List()
	}
	return slices.DeleteFunc(m.List(), func(e Endpoint) bool { return hasEnded(&e) })
}

// podName names a pod in a log; one with an unread file has no other name than its container's.
func podName(e *Endpoint) string {
	if e.Name == "" {
		return "container " + e.ContainerID
	}
	return e.ID()
}

// maxNamed is how many pods a log line names.
const maxNamed = 8

// report logs the pods that are kept where they are others than before, a line for each reason.
func (m *sweep) report(kept Kept) {
	m.mu.Lock()
	before := m.reported
	m.reported = kept
	m.mu.Unlock()
	for _, reason := range slices.Sorted(maps.Keys(advice)) {
		pods := kept[reason]
		slices.Sort(pods)
		switch {
		case slices.Equal(pods, before[reason]):
		case len(pods) == 0:
			m.cfg.Logger.Info("no pods are kept for this reason now", "reason", reason)
		default:
			names := strings.Join(pods[:min(len(pods), maxNamed)], ", ")
			args := []any{"reason", reason, "count", len(pods), "pods", names}
			if reason == KeptLinkUnseen && m.inHost != nil {
				args = append(args, "error", m.inHost)
			}
			m.cfg.Logger.Warn("pods are kept although a part of their attachment is missing; "+advice[reason], args...)
		}
	}
}
