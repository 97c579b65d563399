package page

import (
	"context"
	_ "embed"
	"flag"
	"fmt"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/internal/browser"
	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// tab is a browser's tab that a test looks at.
type tab struct {
	*testing.T
	*browser.Page
	ctx context.Context
	url string
}

// chromium is one for all tests; each has a profile of its own in it.
var chromium struct {
	once sync.Once
	*browser.Browser
	err error
}

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "flowkeep-page")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	profile = dir
	flag.Parse()
	if err := flag.Set("test.parallel", "4"); err != nil { // they wait more than they work
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	if chromium.Browser != nil {
		chromium.Close()
	}
	if err := os.RemoveAll(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

var profile string

// look opens the page of a server, beside other tests' tabs; the test is skipped where there is no Chromium.
func look(t *testing.T, h *httptest.Server, view string) *tab {
	t.Helper()
	t.Parallel()
	path, ok := browser.Find()
	if !ok {
		t.Skip("there is no Chromium here: apt-get install chromium, or run it by scripts/unit as root, which does")
	}
	chromium.once.Do(func() {
		chromium.Browser, chromium.err = browser.Start(context.Background(), browser.Options{Path: path, Dir: profile})
	})
	if chromium.err != nil {
		t.Fatal(chromium.err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	p, err := chromium.Open(ctx, 1280, 800)
	if err != nil {
		t.Fatal(err)
	}
	tb := &tab{t, p, ctx, h.URL}
	t.Cleanup(func() {
		for _, c := range p.Complaints() {
			t.Error("the browser complains: ", c)
		}
		for _, r := range p.Requests() {
			if !strings.HasPrefix(r, h.URL) && !strings.HasPrefix(r, "about:") {
				t.Error("the page fetches from elsewhere: ", r)
			}
		}
		p.Close()
	})
	tb.must(p.Go(ctx, h.URL+"/"+view))
	return tb
}

func (b *tab) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// until waits for an expression.
func (b *tab) until(format string, args ...any) {
	b.Helper()
	b.must(b.Until(b.ctx, fmt.Sprintf(format, args...)))
}

// shows waits until an element shows a text.
func (b *tab) shows(selector, text string) {
	b.Helper()
	b.until(`[...document.querySelectorAll(%q)].some((e) => e.innerText.includes(%q))`, selector, text)
}

func (b *tab) eval(expression string, out any) {
	b.Helper()
	b.must(b.Eval(b.ctx, expression, out))
}

func (b *tab) press(keys ...string) {
	b.Helper()
	for _, k := range keys {
		b.must(b.Press(b.ctx, k))
	}
}

func (b *tab) click(selector string) {
	b.Helper()
	b.until("document.querySelector(%q)", selector)
	b.must(b.Click(b.ctx, selector))
}

//go:embed testdata/logic.js
var logic string

// The parts that think: filter, addresses, signs, graph and layout.
func TestLogic(t *testing.T) {
	_, h := newWorld(t).serve("")
	b := look(t, h, "")
	var failures []string
	b.eval(logic, &failures)
	for _, f := range failures {
		t.Error(f)
	}
}

// From the first look to an explanation and its proof, with markup in every name that a stranger can give.
func TestExplanationOfACell(t *testing.T) {
	_, h := shop(t).serve("")
	b := look(t, h, "")
	b.shows("#health", "degraded: 2 problems")
	b.shows(".list", "node2")
	b.shows(".badge.warn", "pending")
	b.click(`#views a[href^="#matrix"]`)
	b.shows(".legend", "TCP 5432")
	b.click(`[aria-label^="outside/intruder to shop/db: nothing"]`)
	b.shows("#panel h2", "outside/intruder → shop/db")
	b.shows("#panel", "isolated by shop/db, and no rule allows it")
	b.shows("#panel .remedies", "It would pass with any of")
	b.until(`document.querySelector("[data-chosen]").getAttribute("aria-label").startsWith("outside/intruder to shop/db")`)
	b.click(`[data-keep="prove"]`)
	b.shows("#panel .disagree", "A switch does not do what the policies say")
	b.shows("#panel .trace", "applied-to "+markup)
	b.eval(`(() => { const i = document.querySelector('[data-keep="from"]'); i.value = "shop/api"; i.focus(); })()`, nil)
	b.press("Enter")
	b.shows("#panel h2", "shop/api → shop/db")
	b.shows("#panel", "allowed by shop/db ingress[0]")
	b.eval(`document.querySelector("#panel h2").focus()`, nil)
	b.press("Escape")
	b.until(`document.getElementById("panel").hidden && document.activeElement.id === "grid"`)
	b.must(b.Go(b.ctx, h.URL+"/#policies?policy=shop/db"))
	b.shows(".policy", markup)
	b.until(`document.querySelector("textarea").value.includes(%q)`, markup)
	var hacked bool
	if b.eval(`window.hacked !== undefined || document.querySelector("img, body script") !== null`, &hacked); hacked {
		t.Error("markup in names became part of the page")
	}
}

// A shared address shows what was shared; the filter is in it, by name, by label, by end and by port.
func TestFilter(t *testing.T) {
	_, h := shop(t).serve("")
	b := look(t, h, "#matrix?q=to%3Adb&port=5432%2FTCP")
	b.shows("#shown", "4 × 1 of 4 groups")
	b.shows("#matrix-note", "■ means 5432/TCP is allowed")
	b.press("/")
	b.until(`document.activeElement.id === "filter-q"`)
	b.must(b.Type(b.ctx, "app=web"))
	b.shows("#shown", "1 × 1 of 4 groups")
	b.until(`location.hash.includes("q=app%%3Dweb")`)
	b.press("Escape")
	b.until(`document.activeElement.id === "grid" && location.hash.includes("q=app%%3Dweb")`)
	b.click(`#filter [type="reset"]`)
	b.shows("#shown", "4 × 4 of 4 groups")
	b.click("#filter-port")
	b.must(b.Type(b.ctx, "99999"))
	b.until(`document.getElementById("filter-port").matches(":invalid") && !location.hash.includes("port")`)
	b.click("#filter-ns")
	b.must(b.Type(b.ctx, "nowhere"))
	b.shows("#matrix-note", "Nothing matches the filter")
}

// All of it can be done without a mouse.
func TestKeyboard(t *testing.T) {
	_, h := shop(t).serve("")
	b := look(t, h, "#matrix")
	b.shows(".legend", "TCP 5432")
	b.eval(`document.getElementById("grid").focus()`, nil)
	b.press("ArrowDown", "ArrowDown", "ArrowRight", "End", "Home", "ArrowRight", "ArrowRight")
	b.until(`document.getElementById(document.getElementById("grid").getAttribute("aria-activedescendant")).getAttribute("aria-label").startsWith("shop/db to shop/db")`)
	b.press("ArrowUp", "ArrowUp", "Enter")
	b.shows("#panel h2", "outside/intruder → shop/db")
	b.until(`document.getElementById("panel").contains(document.activeElement)`)
	b.press("Escape")
	b.until(`document.activeElement.id === "grid"`)
	b.must(b.Go(b.ctx, h.URL+"/#graph"))
	b.until(`document.querySelectorAll(".node").length === 4`)
	b.eval(`document.querySelector('.node[tabindex="0"]').focus()`, nil)
	b.press("ArrowRight", "Enter")
	b.until(`!document.getElementById("panel").hidden && document.querySelector("#panel .link")`)
	b.eval(`document.querySelector("#panel .link").focus()`, nil)
	b.press("Enter")
	b.shows("#panel h2", "→")
	var lost []string
	b.eval(`[...document.querySelectorAll("button, a, input, .node")].filter((e) => e.getClientRects().length && e.tabIndex < 0 && !e.matches(".node")).map((e) => e.outerHTML)`, &lost)
	if len(lost) > 0 {
		t.Errorf("not reached by Tab: %v", lost)
	}
}

// What there is to press has a name, and text can be read on what is behind it, in light and in dark.
func TestCanBeRead(t *testing.T) {
	w := shop(t)
	w.deny(5, 4, 5432)
	_, h := w.serve("")
	b := look(t, h, "")
	for _, scheme := range []string{"light", "dark"} {
		b.must(b.Scheme(b.ctx, scheme))
		for _, view := range []string{"overview", "matrix?from=outside/intruder&to=shop/db", "graph", "policies?policy=shop/db", "drops"} {
			b.must(b.Go(b.ctx, h.URL+"/#"+view))
			b.until(`document.getElementById("main").getAttribute("aria-busy") === "false" && (!location.hash.includes("from=") || document.querySelector("#panel .way"))`)
			var wrong []string
			b.eval(contrast, &wrong)
			for _, w := range wrong {
				t.Errorf("%s, %s: %s", scheme, view, w)
			}
		}
	}
	b.until(`matchMedia("(prefers-color-scheme: dark)").matches`)
	var dark, light string
	b.eval(`getComputedStyle(document.body).backgroundColor`, &dark)
	b.click("#theme") // auto → light
	b.eval(`getComputedStyle(document.body).backgroundColor`, &light)
	if dark == light {
		t.Errorf("the switch does not change %s", dark)
	}
}

// contrast lists the texts with less than 4.5 : 1 (WCAG 2 AA), and controls without a name.
const contrast = `(() => {
	const context = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
	const known = new Map();
	const rgba = (c) => known.get(c) ?? known.set(c, paint(c)).get(c);
	const paint = (c) => { context.clearRect(0, 0, 1, 1); context.fillStyle = c; context.fillRect(0, 0, 1, 1); return [...context.getImageData(0, 0, 1, 1).data]; };
	const bright = (c) => { const [r, g, b] = c.map((v) => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
	const behind = (e) => { for (; e; e = e.parentElement) { const c = rgba(getComputedStyle(e).backgroundColor); if (c[3] === 255) return c; } return [255, 255, 255]; };
	const wrong = [];
	for (const e of document.querySelectorAll("body *")) {
		const style = getComputedStyle(e);
		const text = [...e.childNodes].filter((n) => n.nodeType === 3).map((n) => n.data.trim()).join("");
		if (!text || !e.getClientRects().length || e.closest("svg, .unseen, :disabled, .cell.none, option, noscript")) continue;
		const a = bright(rgba(style.color)), b = bright(behind(e));
		const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
		if (ratio < 4.5) wrong.push(ratio.toFixed(2) + ": " + text.slice(0, 40));
	}
	for (const e of document.querySelectorAll("button, a, input, textarea, [role=button], [role=gridcell]"))
		if (!(e.getAttribute("aria-label") || e.innerText?.trim() || e.labels?.length)) wrong.push("no name: " + e.outerHTML.slice(0, 80));
	return wrong;
})()`

// Nothing is written by what-if, and what was typed stays although the policy changes meanwhile.
func TestEditor(t *testing.T) {
	w := shop(t)
	_, h := w.serve("")
	b := look(t, h, "#policies")
	b.shows(".list", "shop/db")
	b.shows(".list", "away on 1 of 3 nodes")
	b.click(`.list a[href*="shop%2Fdb"]`)
	b.until(`document.querySelector("textarea")?.value.includes("5432")`)
	b.eval(`(() => { const a = document.querySelector("textarea"); a.focus(); a.value = a.value.replace("app: api", "app: web"); a.dispatchEvent(new Event("input")); })()`, nil)
	b.press("Control+Enter")
	b.shows(".whatif .headline", "1 way would be denied, 1 allowed")
	b.shows(".whatif tbody", "shop/api")
	w.apply(resolve.Batch{Policies: []*policy.Policy{{Namespace: "shop", Name: "new", AppliedTo: is("app", "web"), IsolatesIngress: true}}})
	b.shows(".list", "shop/new")
	b.until(`document.querySelector("textarea").value.includes("app: web")`)
	b.eval(`(() => { const a = document.querySelector("textarea"); a.value = "nonsense: ["; a.dispatchEvent(new Event("input")); })()`, nil)
	b.click(".editor button.main")
	b.shows(".whatif .denied", "manifest")
	b.Forget() // the browser tells of the refusal
	before := len(b.Requests())
	b.must(b.Eval(b.ctx, `new Promise((done) => setTimeout(done, 1000))`, nil))
	if n := len(b.Requests()) - before; n > 10 {
		t.Errorf("%d requests in a second in which nothing happened, while a node is behind", n)
	}
	if n := w.engine.Counts().Policies; n != 4 {
		t.Errorf("there are %d policies now", n)
	}
}

// A dry run is not taken for a policy in force.
func TestDryRunsAreMarked(t *testing.T) {
	w := shop(t)
	w.apply(resolve.Batch{Policies: []*policy.Policy{{Namespace: "shop", Name: "trial", Audit: true, AppliedTo: is("app", "web"), IsolatesEgress: true}}})
	_, h := w.serve("")
	b := look(t, h, "#policies?policy=shop/trial")
	b.shows(".policy", "A dry run: it denies nothing, and netctl audit shop/trial tells what it would have denied. Once enforced, it isolates 1 pod")
	b.shows(`.list tr[data-id="shop/trial"] th`, "dry run")
	b.until(`!document.querySelector('.list tr[data-id="shop/db"]').innerText.includes("dry run")`)
}

// While netmaster is away the page says so and keeps what it has; then it goes on by itself.
func TestAway(t *testing.T) {
	w := shop(t)
	_, h := w.serve("")
	b := look(t, h, "#matrix")
	b.shows(".legend", "TCP 5432")
	w.setAway(true)
	b.shows("#away", "What is shown is of revision")
	b.shows("#health", "netmaster does not answer")
	b.shows(".legend", "TCP 5432")
	b.eval(`location.hash = "#matrix?from=outside/intruder&to=shop/db"`, nil)
	b.shows("#panel", "There is no explanation")
	w.setAway(false)
	b.until(`document.getElementById("away").hidden`)
	b.shows("#panel", "isolated by shop/db")
	b.Forget()
}

// Who has no token is asked for it; one in the address is taken out of it.
func TestLogin(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	_, h := shop(t).serve(file)
	token, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	b := look(t, h, "")
	b.shows("#health", "a token is needed")
	b.click("#token")
	b.must(b.Type(b.ctx, "not it"))
	b.press("Enter")
	b.shows(".login", "this is not the token")
	b.eval(`document.querySelector("#token").value = ""`, nil)
	b.click("#token")
	b.must(b.Type(b.ctx, strings.TrimSpace(string(token))))
	b.press("Enter")
	b.shows("#health", "degraded")
	b.eval(`sessionStorage.clear()`, nil)
	b.must(b.Go(b.ctx, "about:blank"))
	b.must(b.Go(b.ctx, h.URL+"/#token="+strings.TrimSpace(string(token))))
	b.shows("#health", "degraded")
	b.until(`location.hash === "#overview"`)
	b.Forget()
}

// Where there is too much for one picture, the page asks for a namespace and shows that.
func TestTooMany(t *testing.T) {
	w := shop(t)
	w.refuse = func(q *inspect.Question) error {
		if q.Kind == inspect.AskMatrix && len(q.Matrix.Namespaces) == 0 || q.Kind == inspect.AskPolicies && q.Namespace == "" && q.ID == "" {
			return status.Error(codes.ResourceExhausted, "there are too many")
		}
		return nil
	}
	_, h := w.serve("")
	b := look(t, h, "#matrix")
	b.shows("#matrix-note", "there are too many. Type a namespace above.")
	b.click("#filter-ns")
	b.must(b.Type(b.ctx, "shop"))
	b.shows("#shown", "3 × 3 of 3 groups")
	b.click(`#views a[href^="#policies"]`)
	b.shows(".list", "shop/db")
	b.Forget()
}

// Addresses outside are ends like others.
func TestOutside(t *testing.T) {
	w := shop(t)
	w.apply(resolve.Batch{Policies: []*policy.Policy{{Namespace: "shop", Name: "office", AppliedTo: is("app", "api"), IsolatesIngress: true, Ingress: []policy.PolicyRule{
		{Peers: []policy.Peer{{Block: &policy.IPBlock{CIDR: netip.MustParsePrefix("192.0.2.0/24")}}}, AnyPort: true}}}}})
	_, h := w.serve("")
	b := look(t, h, "#matrix?outside=1")
	b.click(`[aria-label="192.0.2.0/24 to shop/api: everything"]`)
	b.shows("#panel h2", "192.0.2.0 → shop/api")
	b.shows("#panel", "allowed by shop/office ingress[0]")
}

// What is denied comes up by itself, with the reason, and leads to the explanation; held, the list stays as it is.
func TestDrops(t *testing.T) {
	w := shop(t)
	_, h := w.serve("")
	b := look(t, h, "#drops")
	b.shows(".drops", "Nothing was denied")
	w.deny(5, 4, 5432)
	b.shows(".drops tbody", "outside/intruder")
	b.shows(".drops tbody", "isolated by shop/db")
	b.shows(".drops tbody", "it would pass with")
	b.shows(".drops", "node1: 1 packet more were denied than it looked at")
	b.click(`.drops [aria-pressed]`)
	w.deny(2, 4, 22)
	b.until(`document.querySelector(".drops [aria-pressed=true]")`)
	b.must(b.Eval(b.ctx, `new Promise((done) => setTimeout(done, 3000))`, nil))
	b.until(`document.querySelectorAll(".drops tbody tr").length === 1`)
	b.click(`.drops [aria-pressed]`)
	b.shows(".drops tbody", "22/TCP")
	b.click(".drops tbody tr:last-child button")
	b.shows("#panel h2", "outside/intruder → shop/db:5432/tcp")
	b.shows("#panel", "isolated by shop/db")
	b.click("#filter-q")
	b.must(b.Type(b.ctx, "from:web 22/tcp"))
	b.until(`document.querySelectorAll(".drops tbody tr").length === 1 && document.querySelector(".drops tbody").innerText.includes("shop/web")`)
}

// big is a thousand pods, of which policies tell each from each.
func big(t *testing.T) *world {
	w := newWorld(t)
	batch := resolve.Batch{Namespaces: []policy.Namespace{}}
	for n := range 20 {
		ns := fmt.Sprintf("team-%02d", n)
		batch.Namespaces = append(batch.Namespaces, policy.Namespace{Name: ns})
		for i := range 50 {
			app := fmt.Sprintf("app-%02d", i)
			batch.Endpoints = append(batch.Endpoints, pod(ns, app, 100+50*n+i, "app", app))
			batch.Policies = append(batch.Policies, &policy.Policy{Namespace: ns, Name: app, AppliedTo: is("app", app), IsolatesIngress: true, Ingress: []policy.PolicyRule{
				{Peers: []policy.Peer{{Pods: ptr(is("app", fmt.Sprintf("app-%02d", (i+1)%50)))}}, Ports: []policy.PolicyPort{{Protocol: policy.TCP, First: uint16(8000 + i), Last: uint16(8000 + i)}}}}})
		}
	}
	w.apply(batch)
	return w
}

// A thousand pods that no two are equal scroll as four do.
func TestAThousand(t *testing.T) {
	w := big(t)
	_, h := w.serve("")
	b := look(t, h, "#matrix")
	b.shows("#shown", "1000 × 1000 of 1000 groups")
	var cells int
	if b.eval(`document.querySelectorAll(".cell").length`, &cells); cells < 200 || cells > 6000 {
		t.Errorf("%d cells are in the document", cells)
	}
	var slowest float64
	b.eval(`(async () => { const g = document.getElementById("grid"); let worst = 0;
		for (let i = 1; i <= 30; i++) { const began = performance.now(); g.scrollTop = i * 700; g.scrollLeft = i * 500; await new Promise((r) => requestAnimationFrame(() => requestAnimationFrame(r))); worst = Math.max(worst, performance.now() - began); }
		return worst; })()`, &slowest)
	t.Logf("the slowest of 30 scrolls took %.0f ms", slowest)
	b.until(`document.querySelector(".row-head") && [...document.querySelectorAll(".row-head")].at(-1).textContent.startsWith("team-1")`)
	b.must(b.Go(b.ctx, h.URL+"/#graph"))
	b.until(`document.querySelectorAll(".node").length === 20`)
	b.click(".node")
	b.until(`location.hash.includes("ns=team-00") && document.querySelectorAll(".node").length === 50`)
}
