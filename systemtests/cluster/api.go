package cluster

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"
)

// API speaks to the API server without the time that starting kubectl takes.
type API struct {
	client http.Client
	server string
}

// API is a connection as cluster-admin, the same at each call.
func (c *Cluster) API(ctx context.Context) (*API, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.api == nil {
		api, err := c.connect(ctx)
		if err != nil {
			return nil, err
		}
		c.api = api
	}
	return c.api, nil
}

func (c *Cluster) connect(ctx context.Context) (*API, error) {
	text, err := c.Kubectl(ctx, "", "config", "view", "--raw", "--minify", "--flatten", "-o", "json")
	if err != nil {
		return nil, err
	}
	var config struct {
		Clusters []struct {
			Cluster struct {
				Server string `json:"server"`
				CA     []byte `json:"certificate-authority-data"`
			} `json:"cluster"`
		} `json:"clusters"`
		Users []struct {
			User struct {
				Certificate []byte `json:"client-certificate-data"`
				Key         []byte `json:"client-key-data"`
			} `json:"user"`
		} `json:"users"`
	}
	if err := json.Unmarshal([]byte(text), &config); err != nil {
		return nil, err
	}
	if len(config.Clusters) == 0 || len(config.Users) == 0 {
		return nil, fmt.Errorf("the administrator's kubeconfig has no cluster or no user")
	}
	pair, err := tls.X509KeyPair(config.Users[0].User.Certificate, config.Users[0].User.Key)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(config.Clusters[0].Cluster.CA)
	return NewAPI(config.Clusters[0].Cluster.Server, &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: roots}), nil
}

// NewAPI speaks to any API server.
func NewAPI(server string, as *tls.Config) *API {
	a := &API{server: server}
	a.client.Transport = &http.Transport{TLSClientConfig: as, ForceAttemptHTTP2: true}
	return a
}

// Do sends a request with a JSON body, or none, and fails unless it succeeded.
func (a *API) Do(ctx context.Context, method, path string, body []byte) error {
	_, err := a.Ask(ctx, method, path, body)
	return err
}

// Ask is Do with the answer. A PATCH is a JSON patch (RFC 6902).
func (a *API) Ask(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	contentType := "application/json"
	if method == http.MethodPatch {
		contentType = "application/json-patch+json"
	}
	return a.send(ctx, method, path, contentType, "", body)
}

// As reads a list in another form of meta.k8s.io/v1: Table, of what kubectl get prints, and PartialObjectMetadataList cost the API
// server little where the objects are large.
func (a *API) As(ctx context.Context, form, path string, into any) error {
	answer, err := a.send(ctx, http.MethodGet, path, "application/json", "application/json;v=v1;g=meta.k8s.io;as="+form, nil)
	if err != nil {
		return err
	}
	return json.Unmarshal(answer, into)
}

// Watch brings what there is at a path, and each change, until ctx ends or the API server ends it. The object is the listener's.
func (a *API) Watch(ctx context.Context, path string, event func(kind string, object json.RawMessage)) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.server+path+"?watch=1", nil)
	if err != nil {
		return err
	}
	res, err := a.client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		answer, _ := io.ReadAll(res.Body) // it says more than the code, if it can be read
		return &StatusError{"WATCH " + path, res.StatusCode, string(answer)}
	}
	for from := json.NewDecoder(res.Body); ; {
		var one struct {
			Type   string
			Object json.RawMessage
		}
		if err := from.Decode(&one); err != nil {
			return err
		}
		event(one.Type, one.Object)
	}
}

// What a PATCH may be, besides a JSON patch.
const (
	applyPatch = "application/apply-patch+yaml"
	mergePatch = "application/merge-patch+json"
)

// answerLimit is how long an answer may take: where the way to the API server is gone nothing else would end the wait for it.
const answerLimit = 2 * time.Minute

func (a *API) send(ctx context.Context, method, path, contentType, accept string, body []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, Stretch(answerLimit))
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, a.server+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", contentType)
	if accept != "" {
		req.Header.Set("Accept", accept)
	}
	res, err := a.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode >= 300 {
		err = &StatusError{method + " " + path, res.StatusCode, string(answer)}
	}
	return answer, err
}

// StatusError is an answer of the API server that is no success.
type StatusError struct {
	Request string
	Code    int
	Body    string
}

func (e *StatusError) Error() string { return fmt.Sprintf("%s: %d: %s", e.Request, e.Code, e.Body) }
