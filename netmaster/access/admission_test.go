package access

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
)

func TestAdmission_IsForTheAPIServerAlone(t *testing.T) {
	reviews := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "reviewed") })
	p := newPlaceWith(t, func(s *Server) { s.cfg.Reviews = reviews })
	for user, want := range map[string]int{
		apiServerUser:     http.StatusOK,
		"jane":            http.StatusForbidden, // she may ask whatever there is
		"system:apiServe": http.StatusForbidden,
		"":                http.StatusUnauthorized,
	} {
		code, text := p.do(p.client(p.front, true), p.request(http.MethodPost, ReviewsPath, strings.NewReader("{}"), user))
		if code != want || (want == http.StatusOK) != (text == "reviewed") {
			t.Errorf("%q: %d %s", user, code, text)
		}
	}
	none := newPlace(t)
	code, text := none.do(none.client(none.front, true), none.request(http.MethodPost, ReviewsPath, strings.NewReader("{}"), apiServerUser))
	if code == http.StatusOK {
		t.Errorf("without a handler: %d %s", code, text)
	}
}

func TestMayDiff_AsksForAllNamespaces(t *testing.T) {
	p := newPlace(t)
	for user, want := range map[string]bool{"jane": true, "tenant": false} {
		if may, err := p.server.MayDiff(context.Background(), &User{Name: user}); err != nil || may != want {
			t.Errorf("%s: %v, %v", user, may, err)
		}
	}
	for _, r := range p.roles.asked {
		if r.Verb != "create" || r.Resource != "diff" || r.Namespace != "" {
			t.Errorf("%+v", r)
		}
	}
}
