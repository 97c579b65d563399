package ca

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/flowkeep/flowkeep/api/identity"
	"github.com/flowkeep/flowkeep/internal/mtls"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Extra fields of the user of a pod-bound token.
const (
	extraNode = "authentication.kubernetes.io/node-name"
	extraPod  = "authentication.kubernetes.io/pod-name"
	// userPrefix precedes "namespace:name".
	userPrefix = "system:serviceaccount:"
)

// maxToken limits a token, in bytes. A ServiceAccount's has about 1,200.
const maxToken = 8 << 10

// claims are the unverified contents of a token.
type claims struct {
	Subject  string   `json:"sub"`
	Audience audience `json:"aud"`
	Expires  float64  `json:"exp"`
	Cluster  struct {
		Node struct {
			Name string `json:"name"`
		} `json:"node"`
	} `json:"kubernetes.io"`
}

type audience []string

// UnmarshalJSON accepts a string or a list.
func (a *audience) UnmarshalJSON(text []byte) error {
	var one string
	if json.Unmarshal(text, &one) == nil {
		*a = audience{one}
		return nil
	}
	return json.Unmarshal(text, (*[]string)(a))
}

// claim returns the node that a token claims. It only filters requests that the API server would reject: the claim
// is unverified.
func claim(token, user string, now time.Time) (node string, err error) {
	parts := strings.Split(token, ".")
	if len(token) > maxToken || len(parts) != 3 {
		return "", errors.New("not a ServiceAccount token")
	}
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return "", errors.New("not a ServiceAccount token")
	}
	var c claims
	switch err := json.Unmarshal(text, &c); {
	case err != nil:
		return "", errors.New("not a ServiceAccount token")
	case !slices.Contains(c.Audience, identity.Audience):
		return "", fmt.Errorf("the token is for %.80q, not for %s: project one with that audience", c.Audience,
			identity.Audience)
	case c.Subject != user:
		return "", fmt.Errorf("the token is of %.200q, not of %s", c.Subject, user)
	case c.Expires < float64(now.Add(-maxSkew).Unix()):
		return "", errors.New("the token has expired")
	case mtls.CheckNode(c.Cluster.Node.Name) != nil:
		return "", errors.New(
			"the token says of no pod on a node: it must be projected into a pod, by Kubernetes 1.30 or later")
	}
	return c.Cluster.Node.Name, nil
}

// Verdict is the API server's review of a token.
type Verdict = authenticationv1.TokenReviewStatus

// vouched returns the node of a reviewed token.
func vouched(v *Verdict, user string) (node string, err error) {
	names, pods := v.User.Extra[extraNode], v.User.Extra[extraPod]
	switch {
	case !v.Authenticated:
		return "", errors.New("the API server does not accept the token")
	// an authenticator without support for audiences returns none
	case !slices.Contains(v.Audiences, identity.Audience):
		return "", fmt.Errorf("the API server does not say that the token is for %s", identity.Audience)
	case v.User.Username != user:
		return "", fmt.Errorf("the token is of %s, not of %s", v.User.Username, user)
	case len(pods) != 1 || pods[0] == "" || len(names) != 1 || mtls.CheckNode(names[0]) != nil:
		return "", errors.New(
			"the API server does not say of which pod and node the token is: it must be projected into a pod, by " +
				"Kubernetes 1.30 or later",
		)
	}
	return names[0], nil
}

// Review sends a TokenReview to the API server.
func (c *Cluster) Review(ctx context.Context, token string) (*Verdict, error) {
	r := &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: []string{identity.Audience}},
	}
	out, err := c.client.AuthenticationV1().TokenReviews().Create(ctx, r, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	return &out.Status, nil
}
