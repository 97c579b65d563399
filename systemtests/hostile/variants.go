package hostile

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"strings"

	"github.com/flowkeep/flowkeep/api/feed"
	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// Variants returns generated attacks, so many of each kind. A seed has the same attacks each time.
func Variants(seed uint64, each int) (all []*Attack) {
	kinds := []func(r *rand.Rand) ([]Object, int){policyVariant, podVariant, serviceVariant}
	for n := range each {
		for k, kind := range kinds {
			objects, edits := kind(rand.New(rand.NewPCG(seed, uint64(n*len(kinds)+k))))
			all = append(all, objectsAttack(seed, edits, objects))
		}
		all = append(all, nodeVariant(seed, n))
	}
	return all
}

// An Object is one of a tenant's, with the JSON patch that edits it: REVISION is another number each time.
type Object struct{ Resource, Name, Text, Patch string }

// objectsAttack is an attack with objects that are edited by turns, so many times a second.
func objectsAttack(seed uint64, edits int, objects []Object) *Attack {
	bytes := 0
	for i := range objects {
		bytes += len(objects[i].Text)
	}
	k := &Attack{Objects: objects, Name: fmt.Sprintf("seed %d: %d objects with %s, %d kB, %d edits a second", seed,
		len(objects), objects[0].Resource, bytes>>10, edits)}
	k.run = func(ctx context.Context, a *Arena) error {
		for i := range objects {
			o := &objects[i]
			k.paths = append(k.paths, evilPath(a, o.Resource, o.Name))
			if err := a.Hub.Do(ctx, http.MethodPost, evilPath(a, o.Resource, ""), []byte(o.Text)); err != nil {
				return err
			}
		}
		return repeat(ctx, edits, func(n int) error {
			o := &objects[n%len(objects)]
			patch := strings.ReplaceAll(o.Patch, "REVISION", fmt.Sprint(n))
			return a.Hub.Do(ctx, http.MethodPatch, evilPath(a, o.Resource, o.Name), []byte(patch))
		})
	}
	return k
}

// upTo returns a number from 1 to most, of which each order of magnitude is equally frequent.
func upTo(r *rand.Rand, most int) int {
	return min(most, int(math.Exp(r.Float64()*math.Log(float64(max(1, most)+1)))))
}

// Entries of the objects of a variant, so that none of them is too large for the API server.
const (
	variantPeers = 4000
	variantPorts = 10_000
)

func policyVariant(r *rand.Rand) (objects []Object, edits int) {
	count := cmp.Or(r.IntN(3), upTo(r, 200))
	rules := upTo(r, 4000/count)
	peers, ports := upTo(r, variantPeers/rules/count), upTo(r, variantPorts/rules/count)
	of := []string{"ingress", "egress"}[r.IntN(2)]
	side := map[string]string{"ingress": "from", "egress": "to"}[of]
	for n := range count {
		rule := func(int) string {
			ends := list(peers, func(int) string { return randomPeer(r) })
			return fmt.Sprintf(`{%q: [%s], "ports": [%s]}`, side, ends, list(ports, func(int) string {
				return randomPort(r)
			}))
		}
		objects = append(objects, Object{"networkpolicies", fmt.Sprintf("variant-%d", n), fmt.Sprintf(
			`{"metadata": {"name": "variant-%d"}, "spec": {"podSelector": {}, "policyTypes": [%q], %q: [%s]}}`,
			n, strings.ToUpper(of[:1])+of[1:], of, list(rules, rule)),
			`[{"op": "replace", "path": "/spec/podSelector", "value": {"matchLabels": {"app": "aREVISION"}}}]`})
	}
	return objects, r.IntN(4)
}

func randomPeer(r *rand.Rand) string {
	n := r.IntN(2000)
	switch r.IntN(5) {
	case 0:
		return fmt.Sprintf(`{"podSelector": {"matchLabels": {"app": "a%d"}}}`, n%20)
	case 1:
		return fmt.Sprintf(`{"namespaceSelector": {"matchLabels": {"team": "t%d"}}}`, n%60)
	case 2:
		return fmt.Sprintf(`{"namespaceSelector": {}, "podSelector": {"matchExpressions": [{"key": "v%d",
			"operator": "DoesNotExist"}]}}`, n)
	case 3:
		value := func(i int) string { return fmt.Sprintf(`"a%d"`, (n+i)%30) }
		return fmt.Sprintf(`{"namespaceSelector": {}, "podSelector": {"matchExpressions": [{"key": "app",
			"operator": "NotIn", "values": [%s]}]}}`, list(1+n%8, value))
	}
	except := func(i int) string { return fmt.Sprintf(`"100.%d.%d.0/24"`, n%256, i) }
	return fmt.Sprintf(`{"ipBlock": {"cidr": "100.%d.0.0/16", "except": [%s]}}`, n%256, list(n%5, except))
}

func randomPort(r *rand.Rand) string {
	first, protocol := 1+r.IntN(60_000), []string{"TCP", "UDP", "SCTP"}[r.IntN(3)]
	switch r.IntN(3) {
	case 0:
		return fmt.Sprintf(`{"port": "n%d", "protocol": %q}`, first%3000, protocol)
	case 1:
		return fmt.Sprintf(`{"port": %d, "endPort": %d, "protocol": %q}`, first, first+r.IntN(5000), protocol)
	}
	return fmt.Sprintf(`{"port": %d, "protocol": %q}`, first, protocol)
}

func podVariant(r *rand.Rand) (objects []Object, edits int) {
	count := upTo(r, 50)
	containers := upTo(r, 2000/count)
	ports, labels := upTo(r, variantPorts/containers/count), upTo(r, 5000)
	for n := range count {
		label := func(i int) string { return fmt.Sprintf(`"variant-%d": "%d"`, i*(1+n%2), r.IntN(1000)) }
		port := func(i int) string { return fmt.Sprintf(`{"name": "n%d", "containerPort": %d}`, i, 1+r.IntN(60_000)) }
		container := func(i int) string {
			return fmt.Sprintf(`{"name": "c%d", "image": "x", "ports": [%s]}`, i, list(ports, port))
		}
		objects = append(objects, Object{"pods", fmt.Sprintf("variant-%d", n), fmt.Sprintf(
			`{"metadata": {"name": "variant-%d", "labels": {"app": "a0", %s}},
			"spec": {"terminationGracePeriodSeconds": 0, "automountServiceAccountToken": false, "containers": [%s]}}`, n, list(labels, label),
			list(containers, container)),
			`[{"op": "replace", "path": "/metadata/labels/app", "value": "aREVISION"}]`})
	}
	return objects, r.IntN(20)
}

// serviceVariant returns Services, the first of them with EndpointSlices.
func serviceVariant(r *rand.Rand) (objects []Object, edits int) {
	count := upTo(r, 100)
	ports, addresses, slices, endpoints := upTo(r, 5000/count), upTo(r, 50_000/count), upTo(r, 20), upTo(r, 1000)
	for n := range count {
		port := func(i int) string { return fmt.Sprintf(`{"name": "p%d", "port": %d}`, i, i+1) }
		address := func(i int) string { return fmt.Sprintf(`"100.%d.%d.%d"`, 64+i>>16, i>>8&255, i&255) }
		objects = append(objects, Object{"services", fmt.Sprintf("variant-%d", n), fmt.Sprintf(
			`{"metadata": {"name": "variant-%d"}, "spec": {"ports": [%s], "externalIPs": [%s]}}`,
			n, list(ports, port), list(addresses, address)),
			`[{"op": "replace", "path": "/spec/sessionAffinity", "value": "ClientIP"},
			{"op": "add", "path": "/metadata/annotations", "value": {"revision": "REVISION"}}]`})
	}
	for n := range slices {
		endpoint := func(i int) string { return fmt.Sprintf(`{"addresses": ["101.%d.%d.%d"]}`, n, i>>8, i&255) }
		port := func(i int) string { return fmt.Sprintf(`{"name": "p%d", "port": %d}`, i, 1+r.IntN(60_000)) }
		objects = append(objects, Object{"endpointslices", fmt.Sprintf("variant-%d", n), fmt.Sprintf(
			`{"addressType": "IPv4", "metadata": {"name": "variant-%d",
			"labels": {"kubernetes.io/service-name": "variant-0"}}, "endpoints": [%s], "ports": [%s]}`,
			n, list(endpoints, endpoint), list(upTo(r, 100), port)),
			`[{"op": "add", "path": "/metadata/annotations", "value": {"revision": "REVISION"}}]`})
	}
	return objects, r.IntN(10)
}

// nodeVariant is an attack with messages of all kinds but hellos in any order, of any size that a message may have.
func nodeVariant(seed uint64, number int) *Attack {
	return &Attack{Name: fmt.Sprintf("seed %d: messages of a node in any order, stream %d", seed, number),
		run: func(ctx context.Context, a *Arena) error {
			r := rand.New(rand.NewPCG(seed, 1<<32+uint64(number)))
			bias := r.IntN(8)
			return flood(ctx, a, func(n int) *feed.NodeMessage {
				if r.IntN(2) == 0 {
					return a.randomMessage(r, bias, n)
				}
				return a.randomMessage(r, r.IntN(8), n)
			})
		}}
}

func (a *Arena) randomMessage(r *rand.Rand, kind, n int) *feed.NodeMessage {
	text := func(most int) string { return strings.Repeat("x", upTo(r, most)) }
	namespace := a.NamespaceName(r.IntN(3))
	switch kind {
	case 0:
		return announcement(namespace, text(253), fmt.Sprint("uid-", n%upTo(r, 5000)), a.ownAddress(n))
	case 1:
		m := announcement(namespace, "none", fmt.Sprint("uid-", n), r.Uint32())
		return &feed.NodeMessage{Message: &feed.NodeMessage_Withdraw{Withdraw: m.GetAnnounce()}}
	case 2:
		errs := make([]*feed.RuleError, upTo(r, 256))
		for i := range errs {
			errs[i] = &feed.RuleError{Message: text(1024), Rules: make([]byte, 32*upTo(r, 100))}
		}
		return &feed.NodeMessage{Message: &feed.NodeMessage_Ack{Ack: &feed.Ack{Revision: r.Uint64(), Errors: errs}}}
	case 3:
		drift := &feed.Drift{Missing: r.Uint64(), Example: text(1024)}
		return &feed.NodeMessage{Message: &feed.NodeMessage_Drift{Drift: drift}}
	case 4:
		return wire.FromBeat(r.Uint64())
	case 5:
		body := make([]byte, upTo(r, 1<<20))
		reply := &feed.Reply{Id: r.Uint64N(100), Body: body, More: r.IntN(2) == 0}
		return &feed.NodeMessage{Message: &feed.NodeMessage_Reply{Reply: reply}}
	case 6:
		return wire.FromResend([]feed.KeyedSet{feed.KeyedSet_KEYED_SET_NODES, feed.KeyedSet_KEYED_SET_SERVICES}[n%2])
	}
	return wire.FromLinks(randomLinks(r))
}

func randomLinks(r *rand.Rand) *policy.Links {
	l := new(policy.Links)
	for range upTo(r, policy.MaxOnLink) {
		l.OnLink = append(l.OnLink, netip.PrefixFrom(netip.AddrFrom4([4]byte{172, byte(r.IntN(256)), 0, 0}), 16))
	}
	return l
}
