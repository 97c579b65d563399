package main

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"text/template"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/spf13/cobra"
)

const registrationLong = `Registration prints the objects by which the API server reaches netmaster: a Service with netmaster's addresses, and an
APIService. With them, and with deploy/roles.yaml, netctl needs a kubeconfig only.

The API server must have a front proxy's certificate (--proxy-client-cert-file and --requestheader-client-ca-file; kubeadm sets
both), and, where kube-proxy does not run beside it, --enable-aggregator-routing. Netmaster's certificate must be of the name
netmaster.flowkeep-system.svc: "netmaster pki issue --server" sees to that.`

// registration is applied as it is.
var registration = template.Must(template.New("registration").Parse(`apiVersion: v1
kind: Namespace
metadata: {name: {{.Namespace}}}
---
apiVersion: v1
kind: Service
metadata: {name: {{.Service}}, namespace: {{.Namespace}}}
spec:
  ipFamilyPolicy: PreferDualStack
  ports: [{name: access, port: 443, protocol: TCP, targetPort: {{.Port}}}]
{{- range .Slices}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: {{$.Service}}-{{.Name}}, namespace: {{$.Namespace}}, labels: {kubernetes.io/service-name: {{$.Service}}}}
addressType: {{.Type}}
ports: [{name: access, port: {{$.Port}}, protocol: TCP}]
endpoints:
{{- range .Addresses}}
- {addresses: ["{{.}}"], conditions: {ready: true}}
{{- end}}
{{- end}}
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: {{.Version}}.{{.Group}}}
spec:
  group: {{.Group}}
  version: {{.Version}}
  groupPriorityMinimum: 100
  versionPriority: 100
  service: {name: {{.Service}}, namespace: {{.Namespace}}, port: 443}
  caBundle: {{.CA}}
`))

type slice struct {
	Name, Type string
	Addresses  []netip.Addr
}

func registrationCommand() *cobra.Command {
	var ca string
	var addresses []string
	var port uint16
	cmd := &cobra.Command{
		Use:     "registration",
		Short:   "Print the objects by which the API server reaches netmaster",
		Long:    registrationLong,
		Args:    cobra.NoArgs,
		Example: "  netmaster registration --address 10.0.0.10 | kubectl apply -f -",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return printRegistration(cmd.OutOrStdout(), ca, addresses, port)
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&addresses, "address", nil, "netmaster's IP addresses, as the API server reaches them")
	f.Uint16Var(&port, "port", 7444, "the port of netmaster's --access-listen")
	f.StringVar(&ca, "tls-ca", "/etc/flowkeep/pki/ca.crt", "certificate authority of netmaster's certificate")
	_ = cmd.MarkFlagRequired("address")
	return cmd
}

func printRegistration(w io.Writer, ca string, addresses []string, port uint16) error {
	authority, err := os.ReadFile(ca)
	if err != nil {
		return fmt.Errorf("read the certificate authority: %w", err)
	}
	four, six := slice{Name: "ipv4", Type: "IPv4"}, slice{Name: "ipv6", Type: "IPv6"}
	for _, text := range addresses {
		a, err := netip.ParseAddr(text)
		switch {
		case err != nil:
			return fmt.Errorf("address: %w", err)
		case a.IsLoopback() || a.IsUnspecified() || a.IsLinkLocalUnicast() || a.Zone() != "":
			return fmt.Errorf(
				"address %s: Kubernetes takes no such address of a Service: give one that other machines reach too", a)
		case a.Unmap().Is4():
			four.Addresses = append(four.Addresses, a.Unmap())
		default:
			six.Addresses = append(six.Addresses, a)
		}
	}
	var slices []slice
	for _, s := range []slice{four, six} {
		if len(s.Addresses) > 0 {
			slices = append(slices, s)
		}
	}
	if len(slices) == 0 {
		return errors.New("say at which address netmaster is: --address")
	}
	return registration.Execute(w, map[string]any{
		"Namespace": inspect.ServiceNamespace,
		"Service":   inspect.Service,
		"Group":     inspect.Group,
		"Version":   inspect.APIVersion,
		"Port":      port,
		"Slices":    slices,
		"CA":        base64.StdEncoding.EncodeToString(authority),
	})
}
