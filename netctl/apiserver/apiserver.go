// Package apiserver is netctl's way to netmaster with nothing but a kubeconfig: through the API server, which knows who asks, and of
// which netmaster's answers are a group.
package apiserver

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // ways to sign in that a kubeconfig may name
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Options say which cluster, and who asks; all may be empty, as with kubectl.
type Options struct {
	Kubeconfig string // a file; empty: $KUBECONFIG, ~/.kube/config, or the pod that this runs in
	Context    string
	As         string // impersonated, if not empty
	AsGroups   []string
	UserAgent  string
}

// plainWithin is how long an answer may take that is no watch: the API server ends other requests after a minute, also those with
// questions too long to be watched.
const plainWithin = 50 * time.Second

// Unreachable is an answer that is not netmaster's, or none.
type Unreachable struct{ Err error }

func (u *Unreachable) Error() string { return u.Err.Error() }
func (u *Unreachable) Unwrap() error { return u.Err }

// Client asks netmaster. Safe for concurrent use.
type Client struct {
	base *url.URL
	http *http.Client
}

func loader(o Options) clientcmd.ClientConfig {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.Kubeconfig
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: o.Context})
}

// Contexts returns the names of the kubeconfig's contexts.
func Contexts(o Options) []string {
	raw, err := loader(o).RawConfig()
	if err != nil {
		return nil
	}
	var names []string
	for name := range raw.Contexts {
		names = append(names, name)
	}
	return names
}

// Namespace returns the namespace of the kubeconfig's context, or "default".
func Namespace(o Options) string {
	namespace, _, err := loader(o).Namespace()
	if err != nil || namespace == "" {
		return "default"
	}
	return namespace
}

// New reads the kubeconfig; it sends no request yet.
func New(o Options) (*Client, error) {
	cfg, err := loader(o).ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil, errors.New("no cluster is known: set KUBECONFIG or --kubeconfig, or ask netmaster itself with --server and an administrator's certificate")
	}
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %w", err)
	}
	cfg.Impersonate = rest.ImpersonationConfig{UserName: o.As, Groups: o.AsGroups}
	cfg.UserAgent = o.UserAgent
	base, _, err := rest.DefaultServerUrlFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %w", err)
	}
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %w", err)
	}
	client.Timeout = 0                                                                                   // contexts say how long
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse } // credentials go nowhere else
	return &Client{base, client}, nil
}

// Server returns the API server's address.
func (c *Client) Server() string { return c.base.String() }

// Close ends idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Ask puts one question and returns its answer, which may take until ctx ends. Errors of netmaster's are gRPC's, those
// of others an Unreachable.
func (c *Client) Ask(ctx context.Context, q *inspect.Question) (a *inspect.Answer, err error) {
	limit := plainWithin
	if deadline, ok := ctx.Deadline(); ok {
		limit = time.Until(deadline)
	}
	text, err := json.Marshal(q)
	switch {
	case err != nil:
		return nil, err
	case limit <= plainWithin || len(text) > inspect.LongestQuery:
		return c.askPlain(ctx, q, text, min(limit, plainWithin))
	}
	err = c.watch(ctx, q, text, limit, func(e *inspect.Event) error {
		a = &inspect.Answer{Body: e.Object, Cached: e.Cached}
		return nil
	})
	if err == nil && a == nil {
		err = &Unreachable{errors.New("netmaster went away before it had answered")}
	}
	return a, err
}

// Follow hands on each answer of a stream, until each fails, ctx ends or there is no more.
func (c *Client) Follow(ctx context.Context, q *inspect.Question, each func(json.RawMessage) error) error {
	text, err := json.Marshal(q)
	switch {
	case err != nil:
		return err
	case len(text) > inspect.LongestQuery:
		return fmt.Errorf("a question of %d bytes cannot be followed: no more than %d", len(text), inspect.LongestQuery)
	}
	return c.watch(ctx, q, text, 0, func(e *inspect.Event) error { return each(e.Object) })
}

func (c *Client) askPlain(ctx context.Context, q *inspect.Question, text []byte, limit time.Duration) (
	*inspect.Answer, error) {
	params := url.Values{inspect.WithinParam: {limit.String()}}
	method, path, body := http.MethodPost, inspect.PathOf(q), bytes.NewReader(text)
	if len(text) <= inspect.LongestQuery {
		method, path, body = http.MethodGet, path+"/"+inspect.AnswerName, bytes.NewReader(nil)
		params.Set(inspect.QuestionParam, string(text))
	}
	resp, err := c.send(ctx, method, path, params, body)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, inspect.MaxMessage+1))
	switch {
	case err != nil:
		return nil, broken(ctx, midway(err))
	case len(answer) > inspect.MaxMessage:
		return nil, fmt.Errorf("the answer is longer than %d MiB", inspect.MaxMessage>>20)
	}
	return &inspect.Answer{Body: answer, Cached: inspect.ParseCached(resp.Header.Get(inspect.CachedHeader))}, nil
}

// eachEvent takes one event with an answer.
type eachEvent func(*inspect.Event) error

// watch reads events; a limit of 0 is none.
func (c *Client) watch(
	ctx context.Context,
	q *inspect.Question,
	text []byte,
	limit time.Duration,
	each eachEvent,
) error {
	params := url.Values{inspect.WatchParam: {"true"}, inspect.QuestionParam: {string(text)}}
	if limit > 0 {
		params.Set(inspect.WithinParam, limit.String())
	}
	resp, err := c.send(ctx, http.MethodGet, inspect.PathOf(q), params, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return events(ctx, resp.Body, each)
}

func events(ctx context.Context, r io.Reader, each eachEvent) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, inspect.MaxMessage)
	for lines.Scan() {
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		var e inspect.Event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return broken(ctx, fmt.Errorf("what came is no event: %w", err))
		}
		if e.Type == inspect.EventFailure {
			var f inspect.Failure
			if err := json.Unmarshal(e.Object, &f); err != nil {
				return broken(ctx, err)
			}
			return status.Error(f.GRPC, f.Message)
		}
		if err := each(&e); err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil {
		return broken(ctx, midway(err))
	}
	return nil
}

// midway returns the error for a response that ended early, which HTTP reports in several ways.
func midway(err error) error {
	return fmt.Errorf("netmaster, or the API server on the way to it, went away in the middle of its answer: ask again (%w)", err)
}

// NotOK is an answer of the API server's own that is no success.
type NotOK struct {
	Code            int
	Status, Message string
}

func (n *NotOK) Error() string {
	return fmt.Sprintf("the API server answers %q: %s", n.Status, n.Message)
}

// Get reads an object or a list of the API server's own, of at most so many bytes.
func (c *Client) Get(ctx context.Context, path string, params url.Values, most int64) ([]byte, error) {
	resp, err := c.request(ctx, http.MethodGet, path, params, nil)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, most+1))
	switch {
	case err != nil:
		return nil, broken(ctx, err)
	case resp.StatusCode != http.StatusOK:
		return nil, &NotOK{Code: resp.StatusCode, Status: resp.Status, Message: failureOf(body).Message}
	case int64(len(body)) > most:
		return nil, fmt.Errorf("%s is more than %d MiB", path, most>>20)
	}
	return body, nil
}

// Date returns the API server's time, to the second, and the local time before and after the request. Forbidden
// requests return it too.
func (c *Client) Date(ctx context.Context) (date, before, after time.Time, err error) {
	before = time.Now()
	resp, err := c.request(ctx, http.MethodGet, "/version", nil, nil)
	after = time.Now()
	if err != nil {
		return date, before, after, err
	}
	defer resp.Body.Close()
	if date, err = http.ParseTime(resp.Header.Get("Date")); err != nil {
		err = fmt.Errorf("%s does not tell the time: %w", c.base, err)
	}
	return date, before, after, err
}

// stream reads an answer of the API server's own as it comes in, of at most so many bytes.
func (c *Client) stream(ctx context.Context, path string, params url.Values, most int64, read func(*json.Decoder) error) error {
	resp, err := c.request(ctx, http.MethodGet, path, params, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if err := okOf(ctx, resp); err != nil {
		return err
	}
	if err := read(json.NewDecoder(io.LimitReader(resp.Body, most))); err != nil {
		return broken(ctx, fmt.Errorf("read %s: %w", path, err))
	}
	return nil
}

// Lines calls each with each line of text that the API server sends, such as those of a log, until it ends.
func (c *Client) Lines(ctx context.Context, path string, params url.Values, each func(line []byte) error) error {
	resp, err := c.request(ctx, http.MethodGet, path, params, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if err := okOf(ctx, resp); err != nil {
		return err
	}
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if err := each(lines.Bytes()); err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil {
		return broken(ctx, err)
	}
	return nil
}

// okOf returns why a response is no success.
func okOf(ctx context.Context, resp *http.Response) error {
	if resp.StatusCode == http.StatusOK {
		return nil
	}
	const longest = 64 << 10
	body, err := io.ReadAll(io.LimitReader(resp.Body, longest))
	if err != nil {
		return broken(ctx, err)
	}
	return &NotOK{Code: resp.StatusCode, Status: resp.Status, Message: failureOf(body).Message}
}

func (c *Client) request(ctx context.Context, method, path string, params url.Values, body io.Reader) (*http.Response, error) {
	at := *c.base
	at.Path = strings.TrimSuffix(at.Path, "/") + path
	at.RawQuery = params.Encode()
	req, err := http.NewRequestWithContext(ctx, method, at.String(), body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.http.Do(req)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) { // its text has the whole question in it
			err = u.Err
		}
		return nil, broken(ctx, err)
	}
	return resp, nil
}

// broken returns why no response came, or only part of one.
func broken(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return status.FromContextError(ctx.Err()).Err()
	}
	return &Unreachable{err}
}

// send gives netmaster's answer; everything else is an error that says who refused, and what to do.
func (c *Client) send(ctx context.Context, method, path string, params url.Values, body io.Reader) (*http.Response, error) {
	resp, err := c.request(ctx, method, path, params, body)
	if err != nil {
		var u *Unreachable
		if errors.As(err, &u) {
			return nil, &Unreachable{fmt.Errorf("the API server does not answer at %s: %w; while it is away, netctl --server asks netmaster itself", c.base, u.Err)}
		}
		return nil, err
	}
	if resp.StatusCode == http.StatusOK && resp.Header.Get(inspect.ServedBy) != "" {
		return resp, nil
	}
	defer resp.Body.Close()
	const longest = 64 << 10
	text, err := io.ReadAll(io.LimitReader(resp.Body, longest))
	if err != nil {
		return nil, broken(ctx, err)
	}
	f := failureOf(text)
	if resp.Header.Get(inspect.ServedBy) != "" && f.GRPC != codes.OK {
		return nil, status.Error(f.GRPC, f.Message)
	}
	return nil, refused(resp, &f)
}
