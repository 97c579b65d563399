package query

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netmaster/history"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// History returns past states of the cluster. Errors name the range of states that is kept.
type History interface {
	AtRevision(revision uint64) (*history.State, error)
	AtTime(t time.Time) (*history.State, error)
	Kept() (history.Kept, bool)
}

// back loads the past state that the query names into x.past. Nodes' addresses and Services stay those of now, which
// the response notes as a problem.
func (x *explanation) back(at *inspect.At) (err error) {
	h := x.s.cfg.History
	if h == nil {
		return status.Error(codes.Unimplemented, "this netmaster keeps no earlier revisions")
	}
	switch {
	case at.Revision > 0:
		x.past, err = h.AtRevision(at.Revision)
	case at.Time != nil:
		x.past, err = h.AtTime(*at.Time)
	case at.Ago > 0:
		x.past, err = h.AtTime(time.Now().Add(-at.Ago))
	default:
		return status.Error(codes.InvalidArgument, "name a revision or a time")
	}
	if err != nil {
		return status.Error(codes.NotFound, err.Error())
	}
	x.out.At = &inspect.Past{Revision: x.past.Revision, Since: x.past.At}
	if !x.past.Until.IsZero() {
		x.out.At.Until = &x.past.Until
	}
	x.out.Problems = []string{
		"a past state has no proof by traces; nodes' addresses are the present ones",
	}
	if n := len(x.past.Missing); n > 0 {
		x.out.Problems = append(x.out.Problems, fmt.Sprintf("no state of that time is kept for %d namespaces, %s: %s; "+
			"addresses of their pods are explained as if they had no pod", n, firstOf(x.past.Missing), overShare))
	}
	return nil
}

// overShare explains why a namespace is missing in a past state.
const overShare = "the changes of a namespace take at most an eighth of --history-mib"

// isMissing reports whether a past state lacks a pod's namespace because its changes exceeded their share of memory.
func isMissing(c cluster, pod string) bool {
	namespace, _, _ := strings.Cut(pod, "/")
	past, ok := c.(*history.State)
	return ok && slices.Contains(past.Missing, namespace)
}

// firstOf returns the first ten names and the number of the others.
func firstOf(names []string) string {
	const most = 10
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}

// historyOf returns the range of past states that netctl status shows; nil if none is kept.
func (s *sources) historyOf() *inspect.History {
	if s.cfg.History == nil {
		return nil
	}
	k, ok := s.cfg.History.Kept()
	if !ok {
		return nil
	}
	return &inspect.History{Oldest: k.Oldest.Revision, Since: k.Oldest.At, Changes: k.Changes, Bytes: k.Bytes}
}
