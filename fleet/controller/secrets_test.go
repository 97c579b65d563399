package controller

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flowkeep/flowkeep/fleet"
)

// newSecretHub returns a stillHub with a gateway that has a Secret, which its class has go along or not.
func newSecretHub(t *testing.T, along string) *stillHub {
	t.Helper()
	h := newStillHub(t)
	h.grace = DefaultGrace
	h.secret("one")
	h.parameters("edge", `downstreamClass: istio`, `policies: "[{group: still.test, kind: LimitPolicy}]"`, `listenerSecrets: "`+along+`"`)
	h.patch("Gateway", "web", `{spec: {listeners: [{name: https, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: cert}]}}]}}`)
	h.again()
	h.turn()
	return h
}

// turn has all that is wanted arrive.
func (h *stillHub) turn() {
	h.Helper()
	for range 4 {
		h.sync()
		h.answer()
		h.bring()
	}
}

func (h *stillHub) secret(certificate string) {
	h.Helper()
	h.apply("", `{apiVersion: v1, kind: Secret, type: kubernetes.io/tls, metadata: {name: cert}, data: {tls.crt: %s, tls.key: a2V5}}`,
		base64.StdEncoding.EncodeToString([]byte(certificate)))
}

// certificate returns which one is in works.
func (h *stillHub) certificate() string {
	h.Helper()
	for _, w := range h.works() {
		for _, m := range w.Spec.Workload.Manifests {
			for _, name := range []string{"one", "two"} {
				if strings.Contains(string(m.Raw), base64.StdEncoding.EncodeToString([]byte(name))) {
					return name
				}
			}
		}
	}
	return ""
}

var stillSecret = append(stillAll[:5:5], "Secret/cert")

func TestSecrets_OptIn(t *testing.T) {
	h := newSecretHub(t, "false")
	h.is("the class has no Secrets go along", stillAll...)
	for f := range h.feeds {
		if f.resource == secretResource {
			t.Errorf("%s is watched", f)
		}
	}
	h = newSecretHub(t, "true")
	h.is("the class has Secrets go along", stillSecret...)
	h.secret("two")
	h.bring()
	h.turn()
	if got := h.certificate(); got != "two" {
		t.Errorf("the renewed certificate is %q in works", got)
	}
	h.parameters("edge", `listenerSecrets: "false"`)
	h.bring()
	h.turn()
	h.is("the class has them go along no more", stillAll...)
}

func TestSecrets_WithoutOneOnTheHub(t *testing.T) {
	h := newSecretHub(t, "true")
	table := h.world.tables[secretFeed(fleet.Name{Namespace: h.id, Name: "cert"})]
	table.trouble(errors.New("forbidden"))
	h.turn()
	h.is("it cannot be read", stillSecret...)
	table.trouble(nil)
	h.remove("Secret", "cert")
	h.turn()
	h.is("it is deleted", stillAll...)
	h.secret("two")
	h.bring()
	h.turn()
	h.is("it is there again", stillSecret...)
}

func TestSecrets_NeverToAClusterThatIsNotChosen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newSecretHub(t, "true")
		h.decide("all")
		h.bring()
		h.secret("two")
		h.bring()
		h.turn()
		h.is("the cluster left", stillSecret...)
		if got := h.certificate(); got != "one" {
			t.Errorf("a cluster that left gets the certificate %q", got)
		}
		h.patch("Gateway", "web", `{spec: {listeners: [{name: https, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: cert}, {name: new}]}}]}}`)
		h.apply("", `{apiVersion: v1, kind: Secret, type: kubernetes.io/tls, metadata: {name: new}, data: {tls.crt: YQ==, tls.key: a2V5}}`)
		h.bring()
		h.turn()
		h.is("another Secret is named", stillSecret...)
		h.decide("all", "c0")
		h.bring()
		h.turn()
		h.is("it is chosen again", append(stillSecret[:6:6], "Secret/new")...)
		h.decide("all")
		h.bring()
		time.Sleep(DefaultGrace + time.Second)
		synctest.Wait()
		h.turn()
		h.is("the grace period is over")
	})
}

// carriers returns how many works carry the Secret.
func (h *stillHub) carriers() (count int) {
	h.Helper()
	for _, w := range h.works() {
		for _, m := range w.Spec.Workload.Manifests {
			if strings.Contains(string(m.Raw), `"kind":"Secret"`) {
				count++
			}
		}
	}
	return count
}

func TestSecrets_OfTwoGateways(t *testing.T) {
	h := newSecretHub(t, "true")
	h.gateway("two", "edge", "all")
	h.patch("Gateway", "two", `{spec: {listeners: [{name: https, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: cert}]}}]}}`)
	both := func() {
		h.bring()
		for range 4 {
			h.sync()
			h.controller.sync(t.Context(), fleet.GatewaySource(fleet.Name{Namespace: h.id, Name: "two"}), time.Now())
			h.answer()
			h.bring()
		}
	}
	for _, c := range []struct {
		what string
		how  func()
		want int
	}{
		{"both name it", func() {}, 2},
		{"one of them is deleted", func() { h.remove("Gateway", "web") }, 1},
		{"the opt-in ends", func() { h.parameters("edge", `listenerSecrets: "false"`) }, 0},
	} {
		c.how()
		both()
		if have := h.carriers(); have != c.want {
			t.Errorf("%s: %d works have the Secret, want %d", c.what, have, c.want)
		}
	}
}

// A Role may name the Secrets that policy-sync reads: it lists and watches each by its name.
func TestSecrets_RoleNamesThem(t *testing.T) {
	h := newHubWorld(t, 1)
	h.may("secrets", `{apiGroups: [""], resources: [secrets], resourceNames: [cert], verbs: [get, list, watch]}`)
	for _, name := range []string{"cert", "other"} {
		h.apply("", `{apiVersion: v1, kind: Secret, type: kubernetes.io/tls, metadata: {name: %s}, data: {tls.crt: YQ==, tls.key: YQ==}}`, name)
	}
	h.parameters("edge", `downstreamClass: istio`, fmt.Sprintf(`policies: "[{group: %s, kind: LimitPolicy}]"`, h.group), `listenerSecrets: "true"`)
	h.gateway("web", "edge", "all")
	const listeners = `{spec: {listeners: [{name: https, port: 443, protocol: HTTPS, tls: {certificateRefs: [%s]}}]}}`
	h.patch("Gateway", "web", listeners, "{name: cert}")
	h.agents()
	c := h.start()
	h.expect(1, "Namespace/"+h.id, "Gateway/web", "Secret/cert")
	h.says("Gateway", "web", "fleet.flowkeep.io/Synced", "True")
	h.patch("Gateway", "web", listeners, "{name: cert}, {name: other}")
	h.says("Gateway", "web", "fleet.flowkeep.io/Synced", "False "+fleet.ReasonSecretUnreadable)
	c.idle("secrets " + h.id + "/other")
	h.expect(1, "Namespace/"+h.id, "Gateway/web", "Secret/cert")
}
