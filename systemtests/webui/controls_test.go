package webui

import (
	_ "embed"
	"fmt"
	"testing"

	"github.com/chromedp/chromedp/kb"
	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/netmaster/webui/webuitest"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/systemtests/chrome"
)

// A filter is in the address, so that it can be shared: by name, label, end and port.
func TestFilter(t *testing.T) {
	v := look(t, webuitest.Shop(), "#matrix?q=to%3Adb&port=5432%2FTCP")
	v.Shows("#shown", "4 × 1 of 4 groups")
	v.Shows("#matrix-note", "■ means 5432/TCP is allowed")
	v.Press("/")
	v.Until(`document.activeElement.id === "filter-q"`)
	v.Type("app=web")
	v.Shows("#shown", "1 × 1 of 4 groups")
	v.Until(`location.hash.includes("q=app%%3Dweb")`)
	v.Press(kb.Escape)
	v.Until(`document.activeElement.id === "grid" && location.hash.includes("q=app%%3Dweb")`)
	v.Click(`#filter [type="reset"]`)
	v.Shows("#shown", "4 × 4 of 4 groups")
	v.Click("#filter-port")
	v.Type("99999")
	v.Until(`document.getElementById("filter-port").matches(":invalid") && !location.hash.includes("port")`)
	v.Click("#filter-ns")
	v.Type("nowhere")
	v.Shows("#matrix-note", "Nothing matches the filter")
}

// Everything works without a mouse.
func TestKeyboard(t *testing.T) {
	v := look(t, webuitest.Shop(), "#matrix")
	v.Shows(".legend", "TCP 5432")
	v.Run(`document.getElementById("grid").focus()`)
	v.Press(kb.ArrowDown + kb.ArrowDown + kb.ArrowRight + kb.End + kb.Home + kb.ArrowRight + kb.ArrowRight)
	v.Until(`document.getElementById(document.getElementById("grid").getAttribute("aria-activedescendant"))
		.getAttribute("aria-label").startsWith("shop/db to shop/db")`)
	v.Press(kb.ArrowUp + kb.ArrowUp + kb.Enter)
	v.Shows("#panel h2", "outside/intruder → shop/db")
	v.Until(`document.getElementById("panel").contains(document.activeElement)`)
	v.Press(kb.Escape)
	v.Until(`document.activeElement.id === "grid"`)
	open(v, "#graph")
	v.Until(`document.querySelectorAll(".node").length === 4`)
	v.Run(`document.querySelector('.node[tabindex="0"]').focus()`)
	v.Press(kb.ArrowRight + kb.Enter)
	v.Until(`!document.getElementById("panel").hidden && document.querySelector("#panel .link")`)
	v.Run(`document.querySelector("#panel .link").focus()`)
	v.Press(kb.Enter)
	v.Shows("#panel h2", "→")
	lost := chrome.Value[[]string](v, `[...document.querySelectorAll("button, a, input, .node")]
		.filter((e) => e.getClientRects().length && e.tabIndex < 0 && !e.matches(".node")).map((e) => e.outerHTML)`)
	if len(lost) > 0 {
		t.Errorf("not reached by Tab: %v", lost)
	}
}

//go:embed testdata/contrast.js
var contrast string

// Controls have names, and text has a contrast of 4.5 : 1 (WCAG 2 AA) in light and in dark.
func TestContrast(t *testing.T) {
	n := webuitest.Shop()
	n.Deny(5, 4, 5432)
	v := look(t, n, "")
	for _, scheme := range []string{"light", "dark"} {
		v.Scheme(scheme)
		for _, view := range []string{
			"overview", "matrix?from=outside/intruder&to=shop/db", "graph", "policies?policy=shop/db", "drops",
		} {
			open(v, "#"+view)
			v.Until(`document.getElementById("main").getAttribute("aria-busy") === "false" &&
				(!location.hash.includes("from=") || document.querySelector("#panel .way"))`)
			for _, problem := range chrome.Value[[]string](v, contrast) {
				t.Errorf("%s, %s: %s", scheme, view, problem)
			}
		}
	}
	v.Until(`matchMedia("(prefers-color-scheme: dark)").matches`)
	const background = `getComputedStyle(document.body).backgroundColor`
	dark := chrome.Value[string](v, background)
	v.Click("#theme") // auto → light
	if light := chrome.Value[string](v, background); light == dark {
		t.Errorf("the button does not change %s", dark)
	}
}

// thousand returns a netmaster with a thousand pods, each with a policy of its own.
func thousand() *webuitest.Netmaster {
	batch := resolve.Batch{}
	for team := range 20 {
		ns := fmt.Sprintf("team-%02d", team)
		batch.Namespaces = append(batch.Namespaces, policy.Namespace{Name: ns})
		for i := range 50 {
			app, port := fmt.Sprintf("app-%02d", i), uint16(8000+i)
			batch.Endpoints = append(batch.Endpoints, webuitest.Pod(ns, app, 100+50*team+i, "app", app))
			batch.Policies = append(batch.Policies, &policy.Policy{
				Namespace:       ns,
				Name:            app,
				AppliedTo:       webuitest.Labelled("app", app),
				IsolatesIngress: true,
				Ingress: []policy.PolicyRule{{
					Peers: []policy.Peer{webuitest.Peer("app", fmt.Sprintf("app-%02d", (i+1)%50))},
					Ports: []policy.PolicyPort{{Protocol: policy.TCP, First: port, Last: port}},
				}},
			})
		}
	}
	n := webuitest.New()
	n.Apply(batch)
	return n
}

// A matrix of a thousand groups has the elements of its visible part only, and scrolls.
func TestThousandGroups(t *testing.T) {
	v := look(t, thousand(), "#matrix")
	v.Shows("#shown", "1000 × 1000 of 1000 groups")
	if cells := chrome.Value[int](v, `document.querySelectorAll(".cell").length`); cells < 200 || cells > 6000 {
		t.Errorf("%d cells are in the document", cells)
	}
	slowest := chrome.Value[float64](v, `(async () => {
		const grid = document.getElementById("grid");
		let slowest = 0;
		for (let i = 1; i <= 30; i++) {
			const start = performance.now();
			grid.scrollTop = i * 700;
			grid.scrollLeft = i * 500;
			await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
			slowest = Math.max(slowest, performance.now() - start);
		}
		return slowest;
	})()`)
	t.Logf("the slowest of 30 scrolls took %.0f ms", slowest)
	v.Until(`[...document.querySelectorAll(".row-head")].at(-1).textContent.startsWith("team-1")`)
	open(v, "#graph")
	v.Until(`document.querySelectorAll(".node").length === 20`)
	v.Click(".node")
	v.Until(`location.hash.includes("ns=team-00") && document.querySelectorAll(".node").length === 50`)
}
