package fleet

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

// StartPolicySync starts `netmaster policy-sync` on the hub as a user that has its role and no other. As a process it is called NAME; it is
// ready when this returns, or waits for another's Lease. A cluster that leaves a Placement keeps its copies for 3 s,
// unless flags are others.
func (f *Fleet) StartPolicySync(ctx context.Context, name string, flags ...string) error {
	own := filepath.Join(f.Dir, name+".user.kubeconfig")
	if err := f.keys.kubeconfig(own, policySync, f.Hub); err != nil {
		return err
	}
	if err := f.Run(name, append([]string{filepath.Join(f.Programs, "netmaster"), "policy-sync", "--kubeconfig", own, "--identity", name,
		"--http-listen", f.port(f.pages(name)), "--grace-period", "3s"}, flags...)...); err != nil {
		return err
	}
	limit := starting
	if f.large {
		limit *= 10 // all works are read first
	}
	return cluster.Until(ctx, limit, func() error {
		if err := f.Alive(name); err != nil {
			return err
		}
		_, err := f.Page(ctx, name, "/readyz")
		if err != nil && strings.Contains(err.Error(), "standby") {
			return nil
		}
		return err
	})
}

// pages is the port of a process' own HTTP server.
func (f *Fleet) pages(name string) int {
	if n := slices.Index([]string{PolicySync, "second"}, name); n >= 0 {
		return 9447 + n
	}
	return 9449
}

// Page is what a process' own HTTP server answers.
func (f *Fleet) Page(ctx context.Context, name, path string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+f.port(f.pages(name))+path, nil)
	if err != nil {
		return "", err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s%s: %s: %s", name, path, res.Status, strings.TrimSpace(string(text)))
	}
	return string(text), err
}
