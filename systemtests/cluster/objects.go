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
var head = regexp.MustCompile(`^\{\s*apiVersion: ([\w./]+), kind: (\w+), metadata: \{name: ([\w.-]+)`)

// pathOf is where the API server keeps an object, or with an empty name all objects of a kind; of no namespace, those of the cluster.
func pathOf(apiVersion, kind, namespace, name string) string {
	path := "/apis/" + apiVersion
	if !strings.Contains(apiVersion, "/") {
		path = "/api/" + apiVersion
	}
	plural := strings.ToLower(kind) + "s"
	if stem, ok := strings.CutSuffix(plural, "ys"); ok {
		plural = stem + "ies"
	}
	if namespace != "" {
		path += "/namespaces/" + namespace
	}
	return strings.TrimSuffix(path+"/"+plural+"/"+name, "/")
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
	manifest = strings.TrimSpace(manifest)
	m := head.FindStringSubmatch(manifest)
	if m == nil {
		return fmt.Errorf("a manifest begins with {apiVersion: V, kind: K, metadata: {name: N, and not with %.80q", manifest)
	}
	return c.ask(ctx, http.MethodPatch, pathOf(m[1], m[2], namespace, m[3])+"?fieldManager=systemtests&force=true", applyPatch, manifest, nil)
}

// Patch merges fields in JSON into an object; null removes one.
func (c *Cluster) Patch(ctx context.Context, path, fields string) error {
	return c.ask(ctx, http.MethodPatch, path, mergePatch, fields, nil)
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

// Delete waits until what is at a path is gone: an object, or all of a kind in a namespace. What is not there is gone.
func (c *Cluster) Delete(ctx context.Context, path string, limit time.Duration) error {
	if err := c.ask(ctx, http.MethodDelete, path, "", "", nil); err != nil && !notFound(err) {
		return err
	}
	return Until(ctx, limit, func() error {
		var left struct{ Items *[]any }
		err := c.Get(ctx, path, &left)
		switch {
		case notFound(err), err == nil && left.Items != nil && len(*left.Items) == 0:
			return nil
		case err != nil:
			return err
		}
		return fmt.Errorf("%s is not gone", path)
	})
}

func notFound(err error) bool {
	status, ok := errors.AsType[*StatusError](err)
	return ok && status.Code == http.StatusNotFound
}

func (c *Cluster) ask(ctx context.Context, method, path, contentType, body string, answer any) error {
	api, err := c.API(ctx)
	if err != nil {
		return err
	}
	text, err := api.send(ctx, method, path, contentType, "", []byte(body))
	if err == nil && answer != nil {
		err = json.Unmarshal(text, answer)
	}
	return err
}
