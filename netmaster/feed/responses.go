package feed

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/flowkeep/flowkeep/api/inspect"
)

// maxResponses limits the memory for all responses of nodes, in bytes.
const maxResponses = 128 << 20

// errResponses is returned when maxResponses is reached.
var errResponses = fmt.Errorf("responses of nodes take more than %d MB: retry later", maxResponses>>20)

// bound limits a response in bytes, JSON values, and objects and arrays among these. A value of a few bytes can take
// hundreds of bytes of memory once decoded.
type bound struct{ bytes, values, objects int }

// bounds are the limits by kind of query. The key "" is the default.
var bounds = map[string]bound{
	inspect.QueryStatus:      {64 << 10, 4_000, 1_000},
	inspect.QueryCounters:    {8 << 20, 500_000, 50_000},
	inspect.QueryDrops:       {8 << 20, 500_000, 50_000},
	inspect.QueryCuts:        {8 << 20, 500_000, 50_000},
	inspect.QueryConnections: {8 << 20, 500_000, 50_000},
	inspect.QueryFlows:       {64 << 20, 1_000_000, 250_000},
	"":                       {16 << 20, 1_000_000, 100_000},
}

// boundOf returns the limit of the response to a query.
func boundOf(query []byte) bound {
	var q struct {
		Kind string `json:"kind"`
	}
	_ = json.Unmarshal(query, &q) // an unknown kind gets an error response
	if b, ok := bounds[q.Kind]; ok {
		return b
	}
	return bounds[""]
}

// check returns an error if decoding a response would take too much memory.
func (b bound) check(body []byte) error {
	values, objects := count(body)
	if values > b.values || objects > b.objects {
		return fmt.Errorf("the response has %d values and %d objects, above the limits of %d and %d",
			values, objects, b.values, b.objects)
	}
	return nil
}

// count returns the minimal number of values, and the number of objects and arrays, of a JSON text.
func count(text []byte) (values, objects int) {
	quoted := false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			objects++
			values++
		case c == ',':
			values++
		}
	}
	return values, objects
}

// reply is an awaited response.
type reply struct {
	bound bound
	body  []byte
	done  chan error
}

// take adds a part of a response, and reports whether it was the last. The caller holds Server.mu.
func (s *Server) take(r *reply, body []byte, more bool, failure string) (ended bool) {
	switch {
	case failure != "":
		r.done <- errors.New(failure)
		return true
	case len(r.body)+len(body) > r.bound.bytes:
		r.done <- fmt.Errorf("the response is larger than %d bytes", r.bound.bytes)
		return true
	case s.responseBytes+len(body) > maxResponses:
		r.done <- errResponses
		return true
	}
	s.responseBytes += len(body)
	r.body = append(r.body, body...)
	if !more {
		r.done <- nil
	}
	return !more
}

// drop releases the memory budget of a response.
func (s *Server) drop(bytes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.responseBytes -= bytes
}
