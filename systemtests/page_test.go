package systemtests

import (
	"errors"
	"fmt"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/flowkeep/flowkeep/systemtests/chrome"
	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

// pageURL is the address of netmaster's web UI on the control plane's machine.
const pageURL = "http://127.0.0.1:9442/"

// view opens a view of netmaster's web UI in a Chromium on the control plane's machine.
func (w *world) view(path string) *chrome.View {
	w.Helper()
	b, err := chrome.Start(w.ctx, w.ControlPlaneNS())
	if errors.Is(err, chrome.ErrNotInstalled) {
		w.Skip(err)
	}
	w.must(err)
	w.Cleanup(b.Close)
	return chrome.Look(w.T, b, pageURL+"#"+path)
}

// What the page shows is what packets meet: filter, a cell and its explanation with the switches' proof, an edit that is tried out and
// changes nothing, what was denied, dark and light, the keyboard, and netmaster's restart.
func TestPage(t *testing.T) {
	w := setup(t)
	ns := threePods(w)
	w.policy(ns, "only-a", `{podSelector: {matchLabels: {app: b}}, policyTypes: [Ingress], ingress: [{from: [{podSelector: {matchLabels: {app: a}}}], ports: [{port: 80}]}]}`)
	const markup = `<img src=x onerror=window.hacked=1>`
	w.must(w.Patch(w.ctx, cluster.PathOf("NetworkPolicy", ns, "only-a"), `{"metadata": {"annotations": {"note": "`+markup+`"}}}`))
	w.settles(w.way("a", "b", "tcp", 80, true, "a may"), w.way("c", "b", "tcp", 80, false, "c may not"))

	v := w.view("overview")
	v.Shows("tbody", "node1")
	v.Until(`[...document.querySelectorAll("tbody tr")].filter((r) => r.innerText.includes("in force")).length === 2`)
	v.Go(pageURL + "#matrix")
	v.Until(`document.querySelector(".legend li")`)
	v.Press("/")
	v.Type("to:app=b from:" + ns)
	v.Click("#filter-ns")
	v.Type(ns)
	v.Shows("#shown", "3 × 1 of")
	v.Click(fmt.Sprintf(`[aria-label^="%s/c to %s/b: nothing"]`, ns, ns))
	v.Shows("#panel", "isolated by "+ns+"/only-a, and no rule allows it")
	v.Shows("#panel .remedies", fmt.Sprintf("label app=a on pod %s/c", ns))
	v.Click(`[data-keep="prove"]`)
	v.Shows("#panel .trace", "default-drop "+ns+"/only-a ingress")
	v.Until(`!document.querySelector("#panel .disagree")`)
	v.Press(kb.Escape)
	v.Until(`document.getElementById("panel").hidden && document.activeElement.id === "grid"`)
	v.Press(kb.Home + kb.ArrowUp + kb.ArrowUp + kb.Enter)
	v.Shows("#panel .verdict", "policies allow it; not proved")

	whatIf(v, ns, markup)
	w.now(w.way("a", "b", "tcp", 80, true, "what-if changes nothing"),
		w.way("c", "b", "tcp", 80, false, "what-if changes nothing"))

	v.Go(pageURL + "#drops?q=from:" + ns + "/c")
	v.Shows(".drops tbody", "isolated by "+ns+"/only-a")
	v.Shows(".drops tbody", fmt.Sprintf("label app=a on pod %s/c", ns))

	var colours [2]string
	for i, scheme := range []string{"light", "dark"} {
		v.Scheme(scheme)
		colours[i] = chrome.Value[string](v, "getComputedStyle(document.body).backgroundColor")
	}
	if colours[0] == colours[1] {
		t.Errorf("light and dark are both %s", colours[0])
	}
	netmasterRestarts(w, v)
}

// whatIf edits the policy so that c may connect, and runs what-if.
func whatIf(v *chrome.View, ns, markup string) {
	v.Helper()
	v.Go(fmt.Sprintf(pageURL+"#policies?policy=%s%%2Fonly-a", ns))
	v.Until(`document.querySelector("textarea")?.value.includes(%q)`, markup)
	v.Shows(".policy", "realised")
	v.Run(`(() => {
		const a = document.querySelector("textarea");
		a.focus();
		a.value = a.value.replace("app: a\n", "app: c\n");
		a.dispatchEvent(new Event("input"));
	})()`)
	v.Press(kb.Enter, chromedp.KeyModifiers(chromedp.ModifierCtrl))
	v.Shows(".whatif .headline", "1 way would be denied, 1 allowed")
	v.Shows(".whatif tbody", ns+"/c")
	v.Until(`window.hacked === undefined && !document.querySelector("img")`)
}

// netmasterRestarts kills netmaster, which the web UI reports, and starts it, after which the web UI recovers.
func netmasterRestarts(w *world, v *chrome.View) {
	w.Helper()
	v.Expect("net::ERR_")     // while netmaster is away
	v.Expect("status of 503") // while it starts
	w.again("netmaster")
	w.must(w.Kill(w.ctx, "netmaster"))
	v.Shows("#away", "netmaster does not answer")
	w.must(w.Start(w.ctx, "netmaster"))
	w.must(w.AwaitReady(w.ctx, "netmaster", settling))
	v.Until(`document.getElementById("away").hidden`)
}
