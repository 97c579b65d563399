package systemtests

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/internal/browser"
	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

// viewer is a browser on the control plane's machine that looks at netmaster's page.
type viewer struct {
	*world
	*browser.Page
	ctx context.Context
}

func (w *world) view(path string) *viewer {
	w.Helper()
	program, ok := browser.Find()
	if !ok {
		w.Skip("there is no Chromium here: scripts/system installs it as root where apt-get can")
	}
	ctx, cancel := context.WithTimeout(w.ctx, cluster.Stretch(2*time.Minute))
	w.Cleanup(cancel)
	b, err := browser.Start(ctx, browser.Options{Path: program, Prefix: []string{"nsenter", "--net=" + w.ControlPlaneNS(), "--"}, Dir: w.TempDir()})
	w.must(err)
	w.Cleanup(b.Close)
	p, err := b.Open(ctx, 1280, 800)
	w.must(err)
	w.must(p.Go(ctx, "http://127.0.0.1:9442/#"+path))
	return &viewer{w, p, ctx}
}

func (v *viewer) until(format string, args ...any) {
	v.Helper()
	v.must(v.Until(v.ctx, fmt.Sprintf(format, args...)))
}

func (v *viewer) shows(selector, text string) {
	v.Helper()
	v.until(`[...document.querySelectorAll(%q)].some((e) => e.innerText.includes(%q))`, selector, text)
}

func (v *viewer) click(selector string) {
	v.Helper()
	v.until("document.querySelector(%q)", selector)
	v.must(v.Click(v.ctx, selector))
}

func (v *viewer) press(keys ...string) {
	v.Helper()
	for _, k := range keys {
		v.must(v.Press(v.ctx, k))
	}
}

// What the page shows is what packets meet: filter, a cell and its explanation with the switches' proof, an edit that is tried out and
// changes nothing, what was denied, dark and light, the keyboard, and netmaster's restart.
func TestPage(t *testing.T) {
	if cluster.Slowness() > 1 {
		t.Skip("a browser takes minutes on a machine that is emulated, and the page does not depend on the datapath")
	}
	w := setup(t)
	ns := threePods(w)
	w.policy(ns, "only-a", `{podSelector: {matchLabels: {app: b}}, policyTypes: [Ingress], ingress: [{from: [{podSelector: {matchLabels: {app: a}}}], ports: [{port: 80}]}]}`)
	const markup = `<img src=x onerror=window.hacked=1>`
	w.must(w.Patch(w.ctx, cluster.PathOf("NetworkPolicy", ns, "only-a"), `{"metadata": {"annotations": {"note": "`+markup+`"}}}`))
	w.settles(w.way("a", "b", "tcp", 80, true, "a may"), w.way("c", "b", "tcp", 80, false, "c may not"))

	v := w.view("overview")
	v.shows("tbody", "node1")
	v.until(`[...document.querySelectorAll("tbody tr")].filter((r) => r.innerText.includes("in force")).length === 2`)
	v.must(v.Go(v.ctx, "http://127.0.0.1:9442/#matrix"))
	v.until(`document.querySelector(".legend li")`)
	v.press("/")
	v.must(v.Type(v.ctx, "to:app=b from:"+ns))
	v.click("#filter-ns")
	v.must(v.Type(v.ctx, ns))
	v.shows("#shown", "3 × 1 of")
	v.click(fmt.Sprintf(`[aria-label^="%s/c to %s/b: nothing"]`, ns, ns))
	v.shows("#panel", "isolated by "+ns+"/only-a, and no rule allows it")
	v.shows("#panel .remedies", fmt.Sprintf("label app=a on pod %s/c", ns))
	v.click(`[data-keep="prove"]`)
	v.shows("#panel .trace", "default-drop "+ns+"/only-a ingress")
	v.until(`!document.querySelector("#panel .disagree")`)
	v.press("Escape")
	v.until(`document.getElementById("panel").hidden && document.activeElement.id === "grid"`)
	v.press("Home", "ArrowUp", "ArrowUp", "Enter")
	v.shows("#panel .verdict", "allowed")

	v.whatIf(ns, markup)
	w.now(w.way("a", "b", "tcp", 80, true, "what-if changes nothing"), w.way("c", "b", "tcp", 80, false, "what-if changes nothing"))

	v.must(v.Go(v.ctx, "http://127.0.0.1:9442/#drops?q=from:"+ns+"/c"))
	v.shows(".drops tbody", "isolated by "+ns+"/only-a")
	v.shows(".drops tbody", fmt.Sprintf("label app=a on pod %s/c", ns))

	var colours [2]string
	for i, scheme := range []string{"light", "dark"} {
		v.must(v.Scheme(v.ctx, scheme))
		v.must(v.Eval(v.ctx, "getComputedStyle(document.body).backgroundColor", &colours[i]))
	}
	if colours[0] == colours[1] {
		t.Errorf("light and dark are both %s", colours[0])
	}
	if c := v.Complaints(); len(c) > 0 {
		t.Errorf("the browser complains: %q", c)
	}
	for _, r := range v.Requests() {
		if !strings.HasPrefix(r, "http://127.0.0.1:9442/") && !strings.HasPrefix(r, "about:") {
			t.Errorf("the page fetches from elsewhere: %s", r)
		}
	}
	v.away()
}

// whatIf edits the policy so that c may, and asks what would change.
func (v *viewer) whatIf(ns, markup string) {
	v.Helper()
	v.must(v.Go(v.ctx, fmt.Sprintf("http://127.0.0.1:9442/#policies?policy=%s%%2Fonly-a", ns)))
	v.until(`document.querySelector("textarea")?.value.includes(%q)`, markup)
	v.shows(".policy", "realised")
	v.must(v.Eval(v.ctx, `(() => { const a = document.querySelector("textarea"); a.focus(); a.value = a.value.replace("app: a\n", "app: c\n"); a.dispatchEvent(new Event("input")); })()`, nil))
	v.press("Control+Enter")
	v.shows(".whatif .headline", "1 way would be denied, 1 allowed")
	v.shows(".whatif tbody", ns+"/c")
	v.until(`window.hacked === undefined && !document.querySelector("img")`)
}

// away restarts netmaster: the page says that it is gone, and goes on by itself when it is back.
func (v *viewer) away() {
	v.Helper()
	v.must(v.Kill(v.world.ctx, "netmaster"))
	v.shows("#away", "netmaster does not answer")
	v.must(v.Start(v.world.ctx, "netmaster"))
	v.must(v.AwaitReady(v.world.ctx, "netmaster", settling))
	v.until(`document.getElementById("away").hidden`)
}
