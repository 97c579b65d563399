package apiserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
)

// Objects of the API server are read in pages, so that none is too large to be held.
const (
	pageObjects = "200"
	mostOfPage  = 512 << 20 // 200 objects of 1.5 MiB at most
	mostOfOne   = 16 << 20
)

// List reads all objects of a kind, such as those at /apis/nmstate.io/v1/nodenetworkstates.
func List[T any](ctx context.Context, c *Client, path string) ([]T, error) {
	return list[T](ctx, c, path, url.Values{"limit": {pageObjects}})
}

// Select reads those objects of a kind that a label selector selects.
func Select[T any](ctx context.Context, c *Client, path, selector string) ([]T, error) {
	return list[T](ctx, c, path, url.Values{"limit": {pageObjects}, "labelSelector": {selector}})
}

func list[T any](ctx context.Context, c *Client, path string, params url.Values) (all []T, err error) {
	for {
		body, err := c.Get(ctx, path, params, mostOfPage)
		if err != nil {
			return nil, err
		}
		var page struct {
			Metadata struct{ Continue string }
			Items    []T
		}
		if err := json.Unmarshal(body, &page); err != nil {
			return nil, fmt.Errorf("read %s: %w", path, err)
		}
		all = append(all, page.Items...)
		if page.Metadata.Continue == "" {
			return all, nil
		}
		params.Set("continue", page.Metadata.Continue)
	}
}

// One reads one object.
func One[T any](ctx context.Context, c *Client, path string) (*T, error) {
	body, err := c.Get(ctx, path, nil, mostOfOne)
	if err != nil {
		return nil, err
	}
	o := new(T)
	if err := json.Unmarshal(body, o); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return o, nil
}

// IsNotFound tells whether the API server does not have what was asked for.
func IsNotFound(err error) bool {
	n, ok := errors.AsType[*NotOK](err)
	return ok && n.Code == http.StatusNotFound
}
