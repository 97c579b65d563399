package apitest

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"sigs.k8s.io/yaml"
)

// Define creates the CustomResourceDefinitions of YAML files, one in each, as the user with a token, and waits until
// their kinds are served.
func (s *Server) Define(ctx context.Context, token string, files ...string) error {
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	defer client.CloseIdleConnections()
	send := func(method, path string, body []byte) error {
		req, err := http.NewRequestWithContext(ctx, method, s.URL+path, bytes.NewReader(body))
		if err != nil {
			return err
		}
		req.Header.Set("Authorization", "Bearer "+token)
		req.Header.Set("Content-Type", "application/json")
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if resp.StatusCode >= http.StatusBadRequest {
			err = fmt.Errorf("%s %s: %s", method, path, text)
		}
		return err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		var crd struct {
			Spec struct {
				Group    string
				Names    struct{ Plural string }
				Versions []struct{ Name string }
			}
		}
		body, err := yaml.YAMLToJSON(text)
		if err := errors.Join(err, yaml.Unmarshal(text, &crd)); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		if err := send(http.MethodPost, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", body); err != nil {
			return err
		}
		path := fmt.Sprintf("/apis/%s/%s/%s", crd.Spec.Group, crd.Spec.Versions[0].Name, crd.Spec.Names.Plural)
		if err := await(ctx, func() error { return send(http.MethodGet, path, nil) }); err != nil {
			return err
		}
	}
	return nil
}

// await calls do until it succeeds. When ctx ends it returns the last error.
func await(ctx context.Context, do func() error) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := do()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-tick.C:
		}
	}
}
