package hostile

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/internal/mtls"
	"github.com/flowkeep/flowkeep/policydb/explain"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

const (
	queryUsers     = 8 // users of a flood, as many queries of each at a time
	queriesOfUser  = 8
	queryTimeout   = 10 * time.Second
	statusInterval = time.Second
	reviewsPath    = inspect.Prefix + "/admissionreviews"
)

func queryAttacks() []*Attack {
	pod := func(a *Arena, namespace, n int) string {
		pods := a.pods[namespace]
		return a.NamespaceName(namespace) + "/" + pods[n%len(pods)].Name
	}
	return []*Attack{
		queryAttack("explanations, 64 at a time", false, func(a *Arena, n int) *inspect.Question {
			to := inspect.Target{Name: pod(a, victimNamespace, n), Port: fmt.Sprint(1 + n%60_000), Protocol: "TCP"}
			from := pod(a, evilNamespace, n/7)
			return &inspect.Question{Kind: inspect.AskExplain, From: from, To: &to, Unproved: n%2 == 0}
		}),
		queryAttack("matrices of all pods, 64 at a time", true, func(_ *Arena, n int) *inspect.Question {
			port := uint16(1 + n%60_000) // the responses to all are different
			return &inspect.Question{Kind: inspect.AskMatrix, Matrix: &explain.Question{Protocol: 6, Port: port}}
		}),
		queryAttack("traces of packets that do not come, 64 at a time", false, func(a *Arena, n int) *inspect.Question {
			to := inspect.Target{Name: pod(a, evilNamespace, n+1)}
			spec := &inspect.TraceSpec{Count: 1, Duration: 2 * time.Second}
			return &inspect.Question{Kind: inspect.AskTrace, From: pod(a, evilNamespace, n), To: &to, Trace: spec}
		}),
		{Name: "dry runs of a policy with 16,500 rules, 16 at a time", run: reviews},
	}
}

// admin returns the configuration of a client with an administrator's certificate.
func (a *Arena) admin() (*tls.Config, error) {
	return a.keys("admin", func() error { return mtls.IssueAdmin(a.PKI()) })
}

// proxy returns a client of the aggregated API, as the API server's front proxy is one.
func (a *Arena) proxy() (*http.Client, error) {
	config, err := a.admin()
	if err != nil {
		return nil, err
	}
	config.Certificates = []tls.Certificate{a.FrontProxyCertificate()}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}}, nil
}

// send sends a request on behalf of a user, and returns the status of the response: a POST if there is a body.
func (a *Arena) send(ctx context.Context, proxy *http.Client, user, path string, body []byte) (code int, err error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	method := http.MethodGet
	if body != nil {
		method = http.MethodPost
	}
	req, err := http.NewRequestWithContext(ctx, method, "https://"+a.AccessAddress()+path, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	req.Header.Set("X-Remote-User", user)
	res, err := proxy.Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	_, err = io.Copy(io.Discard, res.Body)
	return res.StatusCode, err
}

// queryAttack is an attack with queries of several users, each of whom may make all queries.
func queryAttack(name string, short bool, question func(a *Arena, n int) *inspect.Question) *Attack {
	return &Attack{Name: name, Short: short, run: func(ctx context.Context, a *Arena) error {
		send := func(ctx context.Context, proxy *http.Client, user, n int) (int, error) {
			q := question(a, n)
			body, err := json.Marshal(q)
			if err != nil {
				return 0, err
			}
			path := inspect.PathOf(q)
			if q.Trace != nil { // a stream
				path += "?" + url.Values{inspect.WatchParam: {"true"}, inspect.QuestionParam: {string(body)}}.Encode()
				body = nil
			}
			return a.send(ctx, proxy, fmt.Sprintf("evil-%d", user), path, body)
		}
		return flooded(ctx, a, queryUsers, queriesOfUser, send)
	}}
}

// wrong are the statuses of requests that netmaster does not serve at any load.
var wrong = []int{http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound,
	http.StatusNotImplemented}

// flooded sends requests without pause, some of each user at a time. It fails if all of them failed.
func flooded(ctx context.Context, a *Arena, users, each int,
	send func(ctx context.Context, proxy *http.Client, user, n int) (int, error)) error {
	var all sync.WaitGroup
	var next, sent, failed atomic.Int64
	for i := range users * each {
		proxy, err := a.proxy()
		if err != nil {
			return err
		}
		all.Go(func() {
			defer proxy.CloseIdleConnections()
			for ctx.Err() == nil {
				switch code, err := send(ctx, proxy, i%users, int(next.Add(1))); {
				case err != nil, slices.Contains(wrong, code):
					failed.Add(1)
					fallthrough
				case code != http.StatusOK: // above a bound
					pause(ctx, 200*time.Millisecond)
					fallthrough
				default:
					sent.Add(1)
				}
			}
		})
	}
	all.Wait()
	if n := sent.Load(); n == failed.Load() {
		return fmt.Errorf("all of %d requests failed", n)
	}
	return nil
}

// reviews has netmaster compute what a large policy would change, as a tenant does by kubectl --dry-run=server.
func reviews(ctx context.Context, a *Arena) error {
	rule := func(i int) string { return fmt.Sprintf(`{"ports": [{"port": %d}]}`, 1+i) }
	object := func(rules int) string {
		return fmt.Sprintf(`{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": "x",
			"resource": {"group": "networking.k8s.io", "version": "v1", "resource": "networkpolicies"},
			"operation": "CREATE", "namespace": %q, "name": "evil", "dryRun": true,
			"userInfo": {"username": "evil-0"}, "object": {"metadata": {"name": "evil"},
			"spec": {"podSelector": {}, "ingress": [%s]}}}}`,
			a.NamespaceName(evilNamespace), list(rules, rule))
	}
	bodies := [][]byte{[]byte(object(16_500)), []byte(object(1900))} // the second is within the webhook's bounds
	return flooded(ctx, a, 1, 16, func(ctx context.Context, proxy *http.Client, _, n int) (int, error) {
		return a.send(ctx, proxy, "system:apiserver", reviewsPath+"?timeout=10s", bodies[n%len(bodies)])
	})
}

// permitQueries lets the attacker's users make their queries, and an administrator query the status.
func (a *Arena) permitQueries(ctx context.Context) error {
	const group = "/apis/rbac.authorization.k8s.io/v1/"
	for _, role := range []struct {
		name, resources, user string
		users                 int
	}{
		{"hostile", `"explain", "matrix", "trace"`, "evil-%d", queryUsers},
		{"hostile-administrator", `"status"`, "administrator-%d", 1},
	} {
		subject := func(i int) string {
			const format = `{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": %q}`
			return fmt.Sprintf(format, fmt.Sprintf(role.user, i))
		}
		object := fmt.Sprintf(`{"metadata": {"name": %q}, "rules": [{"apiGroups": ["inspect.flowkeep.io"],
			"resources": [%s], "verbs": ["get", "watch", "create"]}]}`, role.name, role.resources)
		binding := fmt.Sprintf(`{"metadata": {"name": %q}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io",
			"kind": "ClusterRole", "name": %[1]q}, "subjects": [%s]}`, role.name, list(role.users, subject))
		if err := cmp.Or(a.Hub.Do(ctx, http.MethodPost, group+"clusterroles", []byte(object)),
			a.Hub.Do(ctx, http.MethodPost, group+"clusterrolebindings", []byte(binding))); err != nil {
			return fmt.Errorf("rights to query: %w", err)
		}
	}
	return nil
}

// askStatus queries the status as an administrator, by new connections: through the front proxy, and as netctl
// --server does.
func (a *Arena) askStatus(ctx context.Context) error {
	proxy, err := a.proxy()
	if err != nil {
		return err
	}
	defer proxy.CloseIdleConnections()
	path := inspect.PathOf(&inspect.Question{Kind: inspect.AskStatus})
	if code, err := a.send(ctx, proxy, "administrator-0", path, []byte(`{"kind": "status"}`)); err != nil ||
		code != http.StatusOK {
		return errors.Join(err, fmt.Errorf("status through the front proxy: HTTP %d", code))
	}
	config, err := a.admin()
	if err != nil {
		return err
	}
	conn, err := grpc.NewClient(a.FeedAddress(), grpc.WithTransportCredentials(credentials.NewTLS(config)))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	if _, err := inspect.AskRaw(ctx, conn, &inspect.Question{Kind: inspect.AskStatus}); err != nil {
		return fmt.Errorf("netctl --server status: %w", err)
	}
	return nil
}

// keepAsking queries the status again and again until ctx ends. It returns the longest time of a query, and fails if
// one was not served.
func (a *Arena) keepAsking(ctx context.Context) (slowest time.Duration, err error) {
	for ctx.Err() == nil {
		began := time.Now()
		if err := a.askStatus(ctx); err != nil && ctx.Err() == nil {
			return slowest, fmt.Errorf("an administrator's query during the attack: %w", err)
		}
		if ctx.Err() == nil {
			slowest = max(slowest, time.Since(began))
		}
		pause(ctx, statusInterval)
	}
	return slowest, nil
}
