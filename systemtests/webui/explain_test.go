package webui

import (
	_ "embed"
	"net/netip"
	"testing"

	"github.com/chromedp/chromedp/kb"
	"github.com/flowkeep/flowkeep/netmaster/webui/webuitest"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/systemtests/chrome"
)

//go:embed testdata/logic.js
var logic string

// The modules without a view: filter, addresses, signs, graph and layout.
func TestLogic(t *testing.T) {
	v := look(t, webuitest.New(), "")
	for _, failure := range chrome.Value[[]string](v, logic) {
		t.Error(failure)
	}
}

// From the overview to an explanation and its proof, with markup in names and messages.
func TestExplanationOfACell(t *testing.T) {
	v := look(t, webuitest.Shop(), "")
	v.Shows("#health", "degraded: 2 problems")
	v.Shows(".list", "node2")
	v.Shows(".badge.warn", "pending")
	v.Click(`#views a[href^="#matrix"]`)
	v.Shows(".legend", "TCP 5432")
	v.Click(`[aria-label^="outside/intruder to shop/db: nothing"]`)
	v.Shows("#panel h2", "outside/intruder → shop/db")
	v.Shows("#panel", "isolated by shop/db, and no rule allows it")
	v.Shows("#panel .remedies", "It would pass with any of")
	const chosen = `document.querySelector("[data-chosen]").getAttribute("aria-label")`
	v.Until(chosen + `.startsWith("outside/intruder to shop/db")`)
	v.Click(`[data-keep="prove"]`)
	v.Shows("#panel .disagree", "A switch does not do what the policies say")
	v.Shows("#panel .trace", "applied-to "+webuitest.Markup)
	v.Run(`(() => {
		const i = document.querySelector('[data-keep="from"]');
		i.value = "shop/api";
		i.focus();
	})()`)
	v.Press(kb.Enter)
	v.Shows("#panel h2", "shop/api → shop/db")
	v.Shows("#panel", "allowed by shop/db ingress[0]")
	v.Run(`document.querySelector("#panel h2").focus()`)
	v.Press(kb.Escape)
	v.Until(`document.getElementById("panel").hidden && document.activeElement.id === "grid"`)
	open(v, "#policies?policy=shop/db")
	v.Shows(".policy", webuitest.Markup)
	v.Until(`document.querySelector("textarea").value.includes(%q)`, webuitest.Markup)
	if chrome.Value[bool](v, `window.hacked !== undefined || document.querySelector("img, body script") !== null`) {
		t.Error("markup in names became part of the page")
	}
}

// A pod that Flowkeep did not attach is named wherever its policies are shown.
func TestPodNotAttached(t *testing.T) {
	n := webuitest.Shop()
	n.SetUnattached(webuitest.Pod("shop", "db", 4, "app", "db"))
	v := look(t, n, "#policies?policy=shop/db")
	v.Shows(`.list tr[data-id="shop/db"] .badge.bad`, "partial on 1 of 3 nodes")
	v.Shows(".policy", "shop/db is not wired by Flowkeep, and the policy is not enforced there")
	v.Until(`!document.querySelector('.list tr[data-id="shop/api"]').innerText.includes("partial")`)
	open(v, "#graph")
	v.Shows("#graph-note", "their side of each cell is not enforced: shop/db")
	open(v, "#matrix")
	v.Shows("#matrix-note", "Not wired by Flowkeep, their side of each cell is not enforced: shop/db: recreate such pods")
	v.Click(`[aria-label^="outside/intruder to shop/db: nothing"]`)
	v.Shows("#panel .verdict.bad", "policies deny it; shop/db is not wired by Flowkeep, its side is not enforced")
	v.Shows("#panel", "not enforced, denied: shop/db is isolated by shop/db")
	v.Shows("#panel .problems", "shop/db is not wired by Flowkeep: recreate such pods")
	n.SetUnattached()
	v.Shows("#panel .verdict.bad", "policies deny it; not proved")
	v.Until(`!document.getElementById("matrix-note").innerText.includes("wired")`)
	v.Click(`[data-keep="prove"]`)
	v.Shows("#panel .verdict.bad", "policies deny it; the switch of node1 disagrees") // it reports all packets as passed
}

// Addresses outside of the cluster are ends like pods.
func TestOutside(t *testing.T) {
	n := webuitest.Shop()
	office := policy.Peer{Block: &policy.IPBlock{CIDR: netip.MustParsePrefix("192.0.2.0/24")}}
	addPolicy(n, "office", "api", func(p *policy.Policy) {
		p.IsolatesIngress = true
		p.Ingress = []policy.PolicyRule{{Peers: []policy.Peer{office}, AnyPort: true}}
	})
	v := look(t, n, "#matrix?outside=1")
	v.Click(`[aria-label="192.0.2.0/24 to shop/api: everything"]`)
	v.Shows("#panel h2", "192.0.2.0 → shop/api")
	v.Shows("#panel", "allowed by shop/office ingress[0]")
}

// The list of drops updates by itself, with reasons, and leads to explanations. A held list stays as it is.
func TestDrops(t *testing.T) {
	n := webuitest.Shop()
	v := look(t, n, "#drops")
	v.Shows(".drops", "Nothing was denied")
	n.Deny(5, 4, 5432)
	v.Shows(".drops tbody", "outside/intruder")
	v.Shows(".drops tbody", "isolated by shop/db")
	v.Shows(".drops tbody", "it would pass with")
	v.Shows(".drops", "node1: 1 packet more were denied than it looked at")
	v.Click(`.drops [aria-pressed]`)
	n.Deny(2, 4, 22)
	v.Until(`document.querySelector(".drops [aria-pressed=true]")`)
	polls(v, 2) // three seconds at least, and the list updates every two
	v.Until(`document.querySelectorAll(".drops tbody tr").length === 1`)
	v.Click(`.drops [aria-pressed]`)
	v.Shows(".drops tbody", "22/TCP")
	v.Click(".drops tbody tr:last-child button")
	v.Shows("#panel h2", "outside/intruder → shop/db:5432/tcp")
	v.Shows("#panel", "isolated by shop/db")
	v.Click("#filter-q")
	v.Type("from:web 22/tcp")
	v.Until(`document.querySelectorAll(".drops tbody tr").length === 1 &&
		document.querySelector(".drops tbody").innerText.includes("shop/web")`)
}
