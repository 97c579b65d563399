package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"time"
)

// head is how a manifest begins.
var head = regexp.MustCompile(`^\{\s*apiVersion: ([\w./-]+), kind: (\w+), metadata: \{name: ([\w.-]+)`)

// pathOf is where the API server keeps an object, or with an empty name all objects of a kind; of no namespace, those of the cluster.
func pathOf(apiVersion, kind, namespace, name string) string {
	path := "/apis/" + apiVersion
	if !strings.Contains(apiVersion, "/") {
		path = "/api/" + apiVersion
	}
	plural := strings.ToLower(kind) + "s"
	if stem, ok := strings.CutSuffix(plural, "ys"); ok && !strings.HasSuffix(stem, "a") {
		plural = stem + "ies"
	} else if strings.HasSuffix(plural, "ss") {
		plural = strings.TrimSuffix(plural, "s") + "es"
	}
	if namespace != "" {
		path += "/namespaces/" + namespace
	}
	return strings.TrimSuffix(path+"/"+plural+"/"+name, "/")
}

// Path is where the API server keeps an object of any kind whose plural is a regular one, or with an empty name all of a kind.
func Path(apiVersion, kind, namespace, name string) string {
	return pathOf(apiVersion, kind, namespace, name)
}

// PathOf is that of a Pod, Service, NetworkPolicy, Namespace, Node and the like.
func PathOf(kind, namespace, name string) string {
	apiVersion := "v1"
	if kind == "NetworkPolicy" {
		apiVersion = "networking.k8s.io/v1"
	}
	return pathOf(apiVersion, kind, namespace, name)
}

// Apply makes one object be as a manifest in YAML says, whatever it was. The manifest begins with "{apiVersion: V, kind: K, metadata:
// {name: N". An empty namespace is for objects that have none.
func (c *Cluster) Apply(ctx context.Context, namespace, manifest string) error {
	api, err := c.API(ctx)
	if err != nil {
		return err
	}
	return api.Apply(ctx, namespace, manifest)
}

// Apply is Cluster's.
func (a *API) Apply(ctx context.Context, namespace, manifest string) error {
	manifest = strings.TrimSpace(manifest)
	m := head.FindStringSubmatch(manifest)
	if m == nil {
		return fmt.Errorf("a manifest begins with {apiVersion: V, kind: K, metadata: {name: N, and not with %.80q", manifest)
	}
	return a.ask(ctx, http.MethodPatch, pathOf(m[1], m[2], namespace, m[3])+"?fieldManager=systemtests&force=true", applyPatch, manifest, nil)
}

// Create makes an object, in YAML, that is not there.
func (a *API) Create(ctx context.Context, path, manifest string) error {
	return a.ask(ctx, http.MethodPost, path, "application/yaml", manifest, nil)
}

// Patch merges fields in JSON into an object; null removes one.
func (c *Cluster) Patch(ctx context.Context, path, fields string) error {
	return c.ask(ctx, http.MethodPatch, path, mergePatch, fields, nil)
}

// Patch is Cluster's.
func (a *API) Patch(ctx context.Context, path, fields string) error {
	return a.ask(ctx, http.MethodPatch, path, mergePatch, fields, nil)
}

// Label sets labels of a pod; a nil value removes one.
func (c *Cluster) Label(ctx context.Context, namespace, pod string, labels map[string]any) error {
	fields, err := json.Marshal(object{"metadata": object{"labels": labels}})
	if err != nil {
		return err
	}
	return c.Patch(ctx, PathOf("Pod", namespace, pod), string(fields))
}

// Get decodes what the API server answers; a StatusError tells why it does not.
func (c *Cluster) Get(ctx context.Context, path string, answer any) error {
	return c.ask(ctx, http.MethodGet, path, "", "", answer)
}

// Get is Cluster's.
func (a *API) Get(ctx context.Context, path string, answer any) error {
	return a.ask(ctx, http.MethodGet, path, "", "", answer)
}

// Delete waits until what is at a path is gone: an object, or all of a kind in a namespace. What is not there is gone.
func (c *Cluster) Delete(ctx context.Context, path string, limit time.Duration) error {
	api, err := c.API(ctx)
	if err != nil {
		return err
	}
	return api.Delete(ctx, path, limit)
}

// Delete is Cluster's.
func (a *API) Delete(ctx context.Context, path string, limit time.Duration) error {
	if err := a.ask(ctx, http.MethodDelete, path, "", "", nil); err != nil && !NotFound(err) {
		return err
	}
	return Until(ctx, limit, func() error {
		var left struct{ Items *[]any }
		err := a.Get(ctx, path, &left)
		switch {
		case NotFound(err), err == nil && left.Items != nil && len(*left.Items) == 0:
			return nil
		case err != nil:
			return err
		}
		return fmt.Errorf("%s is not gone", path)
	})
}

// NotFound tells the API server's answer that there is no such thing from other errors.
func NotFound(err error) bool {
	status, ok := errors.AsType[*StatusError](err)
	return ok && status.Code == http.StatusNotFound
}

func (c *Cluster) ask(ctx context.Context, method, path, contentType, body string, answer any) error {
	api, err := c.API(ctx)
	if err != nil {
		return err
	}
	return api.ask(ctx, method, path, contentType, body, answer)
}

func (a *API) ask(ctx context.Context, method, path, contentType, body string, answer any) error {
	text, err := a.send(ctx, method, path, contentType, "", []byte(body))
	if err == nil && answer != nil {
		err = json.Unmarshal(text, answer)
	}
	return err
}
