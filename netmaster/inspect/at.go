package inspect

import (
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netmaster/history"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// History is what netmaster keeps of earlier states. Errors of both say what is kept.
type History interface {
	AtRevision(revision uint64) (*history.State, error)
	AtTime(t time.Time) (*history.State, error)
	Kept() (history.Kept, bool)
}

// back finds the state that was asked for. Whatever else the answer needs, it has as it is now, and says so.
func (x *explaining) back(at *inspect.At) (err error) {
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
		return status.Error(codes.InvalidArgument, "say which revision, or when")
	}
	if err != nil {
		return status.Error(codes.NotFound, err.Error())
	}
	x.out.At = &inspect.Past{Revision: x.past.Revision, Since: x.past.At}
	if !x.past.Until.IsZero() {
		x.out.At.Until = &x.past.Until
	}
	x.out.Problems = []string{"what switches hold is of now, so there is no proof; nodes' addresses are as they are now"}
	return nil
}

// historyOf is what status tells.
func (s *Server) historyOf() *inspect.History {
	if s.cfg.History == nil {
		return nil
	}
	k, ok := s.cfg.History.Kept()
	if !ok {
		return nil
	}
	return &inspect.History{Oldest: k.Oldest.Revision, Since: k.Oldest.At, Changes: k.Changes, Bytes: k.Bytes}
}
