package webui

import (
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/flowkeep/flowkeep/netmaster/webui/webuitest"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/systemtests/chrome"
)

// What-if writes nothing, and edits survive a change of the policies.
func TestEditor(t *testing.T) {
	n := webuitest.Shop()
	v := look(t, n, "#policies")
	v.Shows(".list", "shop/db")
	v.Shows(".list", "away on 1 of 3 nodes")
	v.Click(`.list a[href*="shop%2Fdb"]`)
	v.Until(`document.querySelector("textarea")?.value.includes("5432")`)
	v.Run(`(() => {
		const a = document.querySelector("textarea");
		a.focus();
		a.value = a.value.replace("app: api", "app: web");
		a.dispatchEvent(new Event("input"));
	})()`)
	v.Press(kb.Enter, chromedp.KeyModifiers(chromedp.ModifierCtrl))
	v.Shows(".whatif .headline", "1 way would be denied, 1 allowed")
	v.Shows(".whatif tbody", "shop/api")
	addPolicy(n, "new", "web", func(p *policy.Policy) { p.IsolatesIngress = true })
	v.Shows(".list", "shop/new")
	v.Until(`document.querySelector("textarea").value.includes("app: web")`)
	if got := n.Policies(); got != 4 {
		t.Errorf("there are %d policies now", got)
	}
}

// A refusal is shown in the place of the answer.
func TestEditorRefusal(t *testing.T) {
	v := look(t, webuitest.Shop(), "#policies?policy=shop/db")
	v.Expect("status of 400")
	v.Until(`document.querySelector("textarea")?.value.includes("5432")`)
	v.Run(`(() => {
		const a = document.querySelector("textarea");
		a.value = "nonsense: [";
		a.dispatchEvent(new Event("input"));
	})()`)
	v.Click(".editor button.main")
	v.Shows(".whatif .denied", "manifest")
}

// A node that is behind causes no flood of requests.
func TestRequestRate(t *testing.T) {
	v := look(t, webuitest.Shop(), "#policies?policy=shop/db")
	v.Shows(".list", "away on 1 of 3 nodes")
	v.Run(`performance.setResourceTimingBufferSize(100000)`)
	const requests = `performance.getEntriesByType("resource").length`
	before := chrome.Value[int](v, requests)
	polls(v, 2)
	if n := chrome.Value[int](v, requests) - before; n > 12 {
		t.Errorf("%d requests while netmaster's status was fetched twice", n)
	}
}

// A dry run looks different from a policy in force.
func TestDryRunsAreMarked(t *testing.T) {
	n := webuitest.Shop()
	addPolicy(n, "trial", "web", func(p *policy.Policy) { p.DryRun, p.IsolatesEgress = true, true })
	v := look(t, n, "#policies?policy=shop/trial")
	v.Shows(".policy", "A dry run: it denies nothing, and netctl dry-run shop/trial shows what it would have denied. "+
		"Once enforced, it isolates 1 pod")
	v.Shows(`.list tr[data-id="shop/trial"] th`, "dry run")
	v.Until(`!document.querySelector('.list tr[data-id="shop/db"]').innerText.includes("dry run")`)
}
