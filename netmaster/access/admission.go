package access

import (
	"context"
	"net/http"

	"github.com/flowkeep/flowkeep/api/inspect"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// ReviewsPath is the path of admission reviews, a resource that discovery does not list.
const ReviewsPath = inspect.Prefix + "/admissionreviews"

// apiServerUser is the user name of the API server itself.
const apiServerUser = "system:apiserver"

// admission serves an admission review, and reports whether the request is for that path. It accepts only the API
// server: a review names the user whose rights determine the response.
func (s *Server) admission(w http.ResponseWriter, r *http.Request, user *User) bool {
	switch {
	case r.URL.Path != ReviewsPath:
		return false
	case user.Name != apiServerUser:
		s.fail(
			w,
			status.Errorf(codes.PermissionDenied, "user %q is not the API server, which alone sends admission reviews",
				user.Name),
		)
	case s.cfg.Reviews == nil:
		s.fail(w, status.Error(codes.Unimplemented, "this netmaster answers no admission reviews"))
	default:
		s.results.WithLabelValues("review").Inc()
		s.cfg.Reviews.ServeHTTP(w, r)
	}
	return true
}

// MayDiff reports whether a user may create a diff, which shows all namespaces.
func (s *Server) MayDiff(ctx context.Context, user *User) (bool, error) {
	allowed, _, err := s.judge.review(ctx, &Request{User: *user, Verb: "create", Resource: inspect.AskDiff})
	return allowed, err
}
