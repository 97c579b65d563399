package feed

import (
	"context"
	"errors"
	"fmt"

	"github.com/flowkeep/flowkeep/api/feed"
	"github.com/flowkeep/flowkeep/internal/keyed"
	"github.com/flowkeep/flowkeep/internal/wire"
)

// KeyedSet is a keyed set that a node holds. Methods are as those of keyed.Set.
type KeyedSet interface {
	Sums() []byte
	Clear()
	Apply(*keyed.Delta) error
}

// arrival is the state of a keyed set on one stream.
type arrival struct {
	stale bool // all was requested, and has not come
	whole bool // parts of all of it come
}

// keyed takes a change of a keyed set over.
func (s *session) keyed(ctx context.Context, in *feed.Keyed) error {
	switch {
	case in.Set == feed.KeyedSet_KEYED_SET_NODES:
		complete, err := s.nodes.take(ctx, s, in, &s.client.nodes)
		if err != nil || !complete {
			return err
		}
		infos, err := wire.NodeList(&s.client.nodes)
		if err != nil {
			s.client.nodes.Clear()
			return refused(err)
		}
		return s.client.cfg.Handler.Nodes(ctx, infos)
	case in.Set == feed.KeyedSet_KEYED_SET_SERVICES && s.client.cfg.Services != nil:
		_, err := s.services.take(ctx, s, in, s.client.cfg.Services)
		return err
	}
	return nil // of a newer version
}

// take applies a change, and reports whether the set is complete with it. Where the set is not what netmaster holds
// then, all of it is requested, and changes of it are passed over until it comes; the node uses what it had before.
func (a *arrival) take(ctx context.Context, s *session, in *feed.Keyed, set KeyedSet) (complete bool, err error) {
	d, err := wire.ToKeyed(in)
	if err != nil {
		set.Clear()
		return false, refused(err)
	}
	if d.Whole {
		a.stale, a.whole = false, true
	}
	if a.stale {
		return false, nil
	}
	switch err := set.Apply(&d); {
	case errors.Is(err, keyed.ErrMismatch) && a.whole:
		set.Clear()
		return false, refused(fmt.Errorf("the whole of %s has another sum than netmaster gives it", in.Set))
	case errors.Is(err, keyed.ErrMismatch):
		a.stale = true
		log := s.client.cfg.Logger.With("set", in.Set.String())
		log.Warn("a keyed set is not what netmaster holds: all of it is requested")
		return false, s.post(ctx, wire.FromResend(in.Set))
	case d.More:
		return false, nil
	}
	a.whole = false
	return true, nil
}
