package watch

import "context"

// Guard waits until ctx ends, or until a list or watch through the Link finds that the API server was restored to an
// older state. It then returns an error that wraps etcdrestore.ErrRestored, and a new Watcher is needed.
func (w *Watcher) Guard(ctx context.Context) error {
	select {
	case err := <-w.link.restored:
		return err
	case <-ctx.Done():
		return nil
	}
}
