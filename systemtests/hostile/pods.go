package hostile

import (
	"context"
	"fmt"
	"net/http"
)

func podAttacks() []*Attack {
	return []*Attack{
		podAttack("a pending pod with 2,000 containers that name a port", true, 0, func(int) string {
			container := func(i int) string {
				return fmt.Sprintf(`{"name": "c%d", "image": "x", "ports": [{"name": "http", "containerPort": %d}]}`, i, i+1000)
			}
			return `"containers": [` + list(2000, container) + `]`
		}),
		podAttack("a pending pod with 20,000 named ports, edited twice a second", true, 2, func(int) string {
			port := func(i int) string { return fmt.Sprintf(`{"name": "p%d", "containerPort": %d}`, i, i+1) }
			return `"containers": [{"name": "c", "image": "x", "ports": [` + list(20000, port) + `]}]`
		}),
		labelsAttack(),
		flappingAttack(),
	}
}

// podAttack is an attack with one pod on no node, of which edits is how often a second an annotation changes.
func podAttack(name string, short bool, edits int, spec func(n int) string) *Attack {
	k := &Attack{Name: name, Short: short}
	k.run = func(ctx context.Context, a *Arena) error {
		path := evilPath(a, "pods", "evil")
		k.paths = []string{path}
		if err := makePod(ctx, a, "evil", `{"app": "a0"}`, spec(0)); err != nil {
			return err
		}
		return repeat(ctx, edits, func(n int) error {
			patch := fmt.Appendf(nil, `[{"op": "add", "path": "/metadata/annotations", "value": {"revision": "%d"}}]`, n)
			return a.Hub.Do(ctx, http.MethodPatch, path, patch)
		})
	}
	return k
}

func makePod(ctx context.Context, a *Arena, name, labels, spec string) error {
	object := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": %q, "labels": %s},
		"spec": {"terminationGracePeriodSeconds": 0, "automountServiceAccountToken": false, %s}}`, name, labels, spec)
	return a.Hub.Do(ctx, http.MethodPost, evilPath(a, "pods", ""), []byte(object))
}

const plainContainer = `"containers": [{"name": "c", "image": "x"}]`

// labelsAttack is an attack with pods that have many labels, no two of them the same.
func labelsAttack() *Attack {
	k := &Attack{Name: "50 pods with 5,000 labels each"}
	k.run = func(ctx context.Context, a *Arena) error {
		for i := range 50 {
			name := fmt.Sprintf("evil-%d", i)
			k.paths = append(k.paths, evilPath(a, "pods", name))
			label := func(l int) string { return fmt.Sprintf(`"evil-%d-%d": "value-%[2]d"`, i, l) }
			if err := makePod(ctx, a, name, "{"+list(5000, label)+"}", plainContainer); err != nil {
				return err
			}
		}
		return nil
	}
	return k
}

// flappingAttack is an attack with pods whose labels change all the time.
func flappingAttack() *Attack {
	const pods = 20
	k := &Attack{Name: "20 pods, 100 changes of labels a second", Short: true}
	k.run = func(ctx context.Context, a *Arena) error {
		for i := range pods {
			name := fmt.Sprintf("evil-%d", i)
			k.paths = append(k.paths, evilPath(a, "pods", name))
			if err := makePod(ctx, a, name, `{"app": "a0"}`, plainContainer); err != nil {
				return err
			}
		}
		return repeat(ctx, 100, func(n int) error {
			patch := fmt.Appendf(nil, `[{"op": "replace", "path": "/metadata/labels/app", "value": "a%d"}]`, n%97)
			return a.Hub.Do(ctx, http.MethodPatch, k.paths[n%pods], patch)
		})
	}
	return k
}
