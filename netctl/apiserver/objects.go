package apiserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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

// IsNotFound reports whether the object does not exist on the API server.
func IsNotFound(err error) bool {
	n, ok := errors.AsType[*NotOK](err)
	return ok && n.Code == http.StatusNotFound
}

// IsForbidden reports whether the API server forbids the user to read the object.
func IsForbidden(err error) bool {
	n, ok := errors.AsType[*NotOK](err)
	return ok && n.Code == http.StatusForbidden
}

// eachObjects is how many objects Each asks for at a time.
const eachObjects = "500"

// Each calls each for the objects of a kind that a label selector selects, one by one as they are received, so that
// many objects take no more memory than the caller keeps. About is their number, as far as it is known.
func Each[T any](ctx context.Context, c *Client, path, selector string, each func(o *T, about int)) error {
	params := url.Values{"limit": {eachObjects}, "labelSelector": {selector}}
	for before := 0; ; {
		page := pageReader[T]{each: each, before: before}
		if err := c.stream(ctx, path, params, mostOfPage, page.read); err != nil {
			return err
		}
		if page.next == "" {
			return nil
		}
		before += page.objects
		params.Set("continue", page.next)
	}
}

// pageReader reads a list, of which the metadata may come before or behind the objects.
type pageReader[T any] struct {
	each                   func(o *T, about int)
	before, objects, after int
	next                   string
}

func (p *pageReader[T]) read(d *json.Decoder) error {
	if err := expect(d, json.Delim('{')); err != nil {
		return err
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return err
		}
		switch key {
		case "metadata":
			err = p.metadata(d)
		case "items":
			err = p.items(d)
		default:
			err = d.Decode(new(json.RawMessage))
		}
		if err != nil {
			return err
		}
	}
	return expect(d, json.Delim('}'))
}

func (p *pageReader[T]) metadata(d *json.Decoder) error {
	var m struct {
		Continue           string
		RemainingItemCount int
	}
	err := d.Decode(&m)
	p.next, p.after = m.Continue, m.RemainingItemCount
	return err
}

func (p *pageReader[T]) items(d *json.Decoder) error {
	token, err := d.Token()
	switch {
	case err != nil:
		return err
	case token == nil: // null
		return nil
	case token != json.Delim('['):
		return fmt.Errorf("items are no list but begin with %v", token)
	}
	for d.More() {
		o := new(T)
		if err := d.Decode(o); err != nil {
			return err
		}
		p.objects++
		p.each(o, p.before+p.objects+p.after)
	}
	return expect(d, json.Delim(']'))
}

func expect(d *json.Decoder, want json.Delim) error {
	switch token, err := d.Token(); {
	case err != nil:
		return err
	case token != want:
		return fmt.Errorf("there is %v where %v is due", token, want)
	}
	return nil
}

// IsConflict reports whether an object of the name exists already.
func IsConflict(err error) bool {
	n, ok := errors.AsType[*NotOK](err)
	return ok && n.Code == http.StatusConflict
}

// Create makes an object of a kind.
func (c *Client) Create(ctx context.Context, path string, object []byte) error {
	return c.change(ctx, http.MethodPost, path, nil, object)
}

// Delete removes an object; what it made goes too, in its own time.
func (c *Client) Delete(ctx context.Context, path string) error {
	return c.change(ctx, http.MethodDelete, path, url.Values{"propagationPolicy": {"Background"}}, nil)
}

// DeleteNow removes a pod without waiting for the node it runs on.
func (c *Client) DeleteNow(ctx context.Context, path string) error {
	return c.change(ctx, http.MethodDelete, path, url.Values{"gracePeriodSeconds": {"0"}}, nil)
}

func (c *Client) change(ctx context.Context, method, path string, params url.Values, object []byte) error {
	resp, err := c.request(ctx, method, path, params, bytes.NewReader(object))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, mostOfOne))
	switch {
	case err != nil:
		return broken(ctx, err)
	case resp.StatusCode < 200 || resp.StatusCode > 299:
		return &NotOK{Code: resp.StatusCode, Status: resp.Status, Message: failureOf(body).Message}
	}
	return nil
}
