package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/flowkeep/flowkeep/nodestate"
	"github.com/flowkeep/flowkeep/nodestate/nmstate"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
)

// Probes are what a change of the node's network must not end at the cluster.
func (c *Client) Probes() ([]nodestate.Probe, error) {
	client, err := c.afresh()
	if err != nil {
		return nil, err
	}
	base, _, err := rest.DefaultServerUrlFor(c.config)
	if err != nil {
		return nil, fmt.Errorf("find the API server: %w", err)
	}
	core, err := typedcorev1.NewForConfigAndClient(c.config, client)
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	at := base.JoinPath("version").String()
	return []nodestate.Probe{
		{Name: "the API server", Check: func(ctx context.Context, _ nmstate.State) error { return reach(ctx, client, at) }},
		{Name: "the Node", Check: func(ctx context.Context, _ nmstate.State) error { return nodeReady(ctx, core.Nodes(), c.node) }},
	}, nil
}

// afresh returns an HTTP client that connects again for each request: an old connection proves nothing about a new
// network.
func (c *Client) afresh() (*http.Client, error) {
	tls, err := rest.TLSConfigFor(c.config)
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %w", err)
	}
	transport, err := rest.HTTPWrappersForConfig(c.config, &http.Transport{TLSClientConfig: tls, DisableKeepAlives: true, Proxy: http.ProxyFromEnvironment})
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %w", err)
	}
	return &http.Client{Transport: transport}, nil
}

// reach: any answer but that of a server in trouble will do.
func reach(ctx context.Context, client *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	res, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("can't be reached: %w", err)
	}
	defer res.Body.Close()
	if res.StatusCode >= http.StatusInternalServerError {
		return fmt.Errorf("answers %s", res.Status)
	}
	return nil
}

func nodeReady(ctx context.Context, nodes typedcorev1.NodeInterface, name string) error {
	n, err := nodes.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("can't be read: %w", err)
	}
	for _, condition := range n.Status.Conditions {
		if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue {
			return nil
		}
	}
	return errors.New("is not Ready")
}
