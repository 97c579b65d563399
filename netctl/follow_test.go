package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"testing"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Follow sends what stream does, or three answers, and then what Ask would fail with.
func (m *netmaster) Follow(ctx context.Context, q *inspect.Question, send func(*inspect.Answer) error) error {
	m.asked = *q
	if m.stream != nil {
		return m.stream(ctx, func(v any) error {
			body, err := json.Marshal(v)
			if err != nil {
				return err
			}
			return send(&inspect.Answer{Body: body})
		})
	}
	for i := range 3 {
		body, err := json.Marshal(i)
		if err != nil {
			return err
		}
		if err := send(&inspect.Answer{Body: body}); err != nil {
			return err
		}
	}
	return m.failure()
}

// A stream is the same by both ways: in order, ended by netmaster, by a failure, or by who follows.
func TestFollow(t *testing.T) {
	directly := newBench(t, nil)
	through, s := newCluster(t, nil)
	s.refuse = func(w http.ResponseWriter, r *http.Request) bool {
		w.Header().Set(inspect.ServedBy, "v1")
		err := s.Follow(r.Context(), &inspect.Question{Kind: "drops"}, func(a *inspect.Answer) error {
			_, err := fmt.Fprintf(w, "\n{\"type\":\"ANSWER\",\"object\":%s}\n", a.Body)
			return err
		})
		if err != nil {
			f, _ := json.Marshal(inspect.NewFailure(status.Code(err), message(err)))
			fmt.Fprintf(w, "{\"type\":\"ERROR\",\"object\":%s}\n", f)
		}
		return true
	}
	enough := errors.New("enough")
	for name, b := range map[string]*bench{"directly": directly, "through the API server": through} {
		o := &options{}
		cmd := &cobra.Command{}
		o.accessFlags(cmd)
		if err := cmd.ParseFlags(b.flags); err != nil {
			t.Fatal(err)
		}
		cmd.SetContext(t.Context())
		follows := func(most int) (got []int, err error) {
			err = follow(cmd, o, inspect.Question{Kind: "drops"}, func(i int) error {
				if got = append(got, i); len(got) == most {
					return enough
				}
				return nil
			})
			return got, err
		}
		if got, err := follows(9); err != nil || !slices.Equal(got, []int{0, 1, 2}) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
		if got, err := follows(2); !errors.Is(err, enough) || len(got) != 2 {
			t.Errorf("%s: %v, %v", name, got, err)
		}
		b.fail(status.Error(codes.NotFound, "it is over"))
		if got, err := follows(9); status.Code(err) != codes.NotFound || len(got) != 3 {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}
