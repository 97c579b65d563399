package hostile

import (
	"context"
	"fmt"
	"net/http"
)

func serviceAttacks() []*Attack {
	return []*Attack{
		serviceAttack("a Service with 60,000 externalIPs, edited twice a second", `"ports": [{"port": 80}]`,
			list(60_000, func(i int) string { return fmt.Sprintf(`"100.%d.%d.%d"`, 64+i>>16, i>>8&255, i&255) })),
		serviceAttack("a Service with 5,000 ports, edited twice a second",
			`"ports": [`+list(5000, func(i int) string { return fmt.Sprintf(`{"name": "p%d", "port": %d}`, i, i+1) })+`]`, ""),
		slicesAttack(),
	}
}

// slicesAttack returns an attack with EndpointSlices that have no port, so that no frontend leads to their endpoints.
func slicesAttack() *Attack {
	k := &Attack{Name: "30 EndpointSlices with 1,000 endpoints each and no port", Short: true}
	k.run = func(ctx context.Context, a *Arena) error {
		k.paths = []string{evilPath(a, "services", "evil")}
		service := `{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "evil"}, "spec": {"ports": [{"port": 80}]}}`
		if err := a.Hub.Do(ctx, http.MethodPost, evilPath(a, "services", ""), []byte(service)); err != nil {
			return err
		}
		for n := range 30 {
			name := fmt.Sprintf("evil-%d", n)
			endpoint := func(i int) string {
				return fmt.Sprintf(`{"addresses": ["100.%d.%d.%d"], "hints": {"forZones": [{"name": "zone-%d-%d"}]}}`,
					64+n, i>>8, i&255, n, i)
			}
			object := fmt.Sprintf(`{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
				"metadata": {"name": %q, "labels": {"kubernetes.io/service-name": "evil"}}, "endpoints": [%s]}`,
				name, list(1000, endpoint))
			k.paths = append(k.paths, evilPath(a, "endpointslices", name))
			if err := a.Hub.Do(ctx, http.MethodPost, evilPath(a, "endpointslices", ""), []byte(object)); err != nil {
				return err
			}
		}
		return nil
	}
	return k
}

// serviceAttack returns an attack with one Service, of which a port changes twice a second.
func serviceAttack(name, ports, externalIPs string) *Attack {
	k := &Attack{Name: name}
	k.run = func(ctx context.Context, a *Arena) error {
		path := evilPath(a, "services", "evil")
		k.paths = []string{path}
		object := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "evil"},
			"spec": {"selector": {"app": "a0"}, %s, "externalIPs": [%s]}}`, ports, externalIPs)
		if err := a.Hub.Do(ctx, http.MethodPost, evilPath(a, "services", ""), []byte(object)); err != nil {
			return err
		}
		return repeat(ctx, 2, func(n int) error {
			patch := fmt.Appendf(nil, `[{"op": "replace", "path": "/spec/ports/0/port", "value": %d}]`, 20_000+n)
			return a.Hub.Do(ctx, http.MethodPatch, path, patch)
		})
	}
	return k
}
