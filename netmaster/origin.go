package main

import (
	"fmt"
	"log/slog"

	"github.com/flowkeep/flowkeep/internal/process"
	"github.com/flowkeep/flowkeep/netmaster/manifests"
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// origin is the source of netmaster's objects: an API server, or directories of manifests.
type origin struct {
	kubeconfig string
	manifests  []string
}

func (o *origin) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.kubeconfig, "kubeconfig", "",
		"kubeconfig of the cluster; default: the service account of the pod this runs in")
	f.StringSliceVar(&o.manifests, "manifests", nil,
		"directories of YAML or JSON files with the objects, instead of an API server; changed files are read again")
}

// needAPIServer are the flags that need an API server.
var needAPIServer = []string{
	"kubeconfig", "leader-elect", "advertise-address", "keep-registration", "access-listen", "report-enforcement",
	"authority-secret",
}

// check rejects --manifests together with a flag that needs an API server.
func (o *origin) check(f *pflag.FlagSet) error {
	if len(o.manifests) == 0 {
		return nil
	}
	for _, name := range needAPIServer {
		if f.Changed(name) {
			return fmt.Errorf("--manifests and --%s: without an API server leave out --%s", name, name)
		}
	}
	return nil
}

// restConfig returns the client configuration of the API server or, with --manifests, of the source that replaces it.
func (o *origin) restConfig(log *slog.Logger) (*rest.Config, *manifests.Source, error) {
	if len(o.manifests) > 0 {
		source, err := manifests.Open(log, o.manifests...)
		if err != nil {
			return nil, nil, fmt.Errorf("read --manifests: %w", err)
		}
		return source.RestConfig(), source, nil
	}
	cfg, err := restConfig(o.kubeconfig)
	return cfg, nil, err
}

func restConfig(kubeconfig string) (*rest.Config, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("find the cluster: %w (give --kubeconfig)", err)
	}
	cfg.QPS, cfg.Burst = 50, 100 // for Events and netctl policy wait
	cfg.UserAgent = "flowkeep-netmaster/" + process.BuildVersion()
	return cfg, nil
}
