package access

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// answer serves an authorised query.
func (s *Server) answer(w http.ResponseWriter, r *http.Request, req *Request) {
	leave, err := s.takePlace(r.Context(), req)
	if err != nil {
		s.fail(w, err)
		return
	}
	defer leave()
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTimeout))
	q, err := questionOf(w, r, req)
	if err != nil {
		s.fail(w, err)
		return
	}
	limit, err := within(r)
	if err != nil {
		s.fail(w, err)
		return
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // the deadline would end waiting requests
	if req.Verb == "watch" {
		s.watch(w, r, q)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), limit)
	defer cancel()
	a, err := s.cfg.Questions.Answer(ctx, q)
	if err != nil {
		s.fail(w, err)
		return
	}
	s.results.WithLabelValues("answered").Inc()
	w.Header().Set("Content-Type", "application/json")
	if a.Cached != nil {
		w.Header().Set(inspect.CachedHeader, a.Cached.String())
	}
	_, _ = w.Write(a.Body)
}

// watch writes a line for each response. It ends if the client reads nothing for writeTimeout.
func (s *Server) watch(w http.ResponseWriter, r *http.Request, q *inspect.Question) {
	limit, err := within(r)
	ctx, cancel := context.WithCancel(r.Context())
	if r.URL.Query().Has(inspect.WithinParam) && err == nil {
		ctx, cancel = context.WithTimeout(r.Context(), limit)
	}
	defer cancel()
	out := &lines{w: w, control: http.NewResponseController(w)}
	w.Header().Set("Content-Type", "application/json")
	if out.write(nil) != nil { // sends headers now, so that the client knows that it is connected
		return
	}
	beating := make(chan struct{})
	go func() { defer close(beating); s.beat(ctx, cancel, out) }()
	err = s.cfg.Questions.Watch(ctx, q, func(a *inspect.Answer) error {
		return out.event(inspect.EventAnswer, a.Body, a.Cached)
	})
	cancel()
	<-beating
	if err == nil {
		s.results.WithLabelValues("answered").Inc()
		return
	}
	f := s.failure(err)
	if body, err := json.Marshal(f); err == nil {
		_ = out.event(inspect.EventFailure, body, nil)
	}
}

// beat sends empty lines, so that neither the ends nor proxies between them time out.
func (s *Server) beat(ctx context.Context, gone func(), out *lines) {
	ticker := time.NewTicker(s.heartbeat)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			if out.write([]byte("\n")) != nil {
				gone()
			}
		}
	}
}

// lines writes whole lines. Safe for concurrent use.
type lines struct {
	mu      sync.Mutex
	w       http.ResponseWriter
	control *http.ResponseController
}

func (l *lines) event(kind string, object []byte, of *inspect.Cached) error {
	text, err := json.Marshal(inspect.Event{Type: kind, Object: object, Cached: of})
	if err != nil {
		return err
	}
	return l.write(append(text, '\n'))
}

func (l *lines) write(text []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	_ = l.control.SetWriteDeadline(time.Now().Add(writeTimeout))
	if _, err := l.w.Write(text); err != nil {
		return err
	}
	return l.control.Flush()
}

func (s *Server) fail(w http.ResponseWriter, err error) {
	f := s.failure(err)
	body, err := json.Marshal(f)
	if err != nil {
		f.Code = http.StatusInternalServerError
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(f.Code)
	_, _ = w.Write(body)
}

func (s *Server) failure(err error) inspect.Failure {
	st, ok := status.FromError(err)
	if !ok {
		st = status.New(codes.Internal, err.Error())
	}
	s.results.WithLabelValues(st.Code().String()).Inc()
	return inspect.NewFailure(st.Code(), st.Message())
}
