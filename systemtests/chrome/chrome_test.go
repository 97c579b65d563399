package chrome

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/flowkeep/flowkeep/internal/testkit/netns"
)

const form = `<!doctype html><title>form</title><link rel="icon" href="data:,">
<form onsubmit="event.preventDefault(); document.querySelector('output').innerText += '[' + field.value + ']'">
<input id="field">
<button type="button" onclick="document.querySelector('output').innerText += '[clicked]'">Click</button>
</form><output></output>
<script>
addEventListener('keydown', (e) => {
	if (e.key === 'Enter' && e.ctrlKey) document.querySelector('output').innerText += '[control]';
	if (e.key === '/' && document.activeElement !== field) { e.preventDefault(); field.focus(); }
});
</script>`

// serve serves pages by path, with a content security policy that forbids to make code of text.
func serve(t *testing.T, pages map[string]string) string {
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, ok := pages[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Security-Policy", "script-src 'unsafe-inline'; require-trusted-types-for 'script'")
		_, _ = w.Write([]byte(text)) // the browser may have gone
	}))
	t.Cleanup(h.Close)
	return h.URL
}

func start(t *testing.T, netns string) *Browser {
	b, err := Start(context.Background(), netns)
	if errors.Is(err, ErrNotInstalled) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

func TestViews(t *testing.T) {
	b := start(t, "")
	t.Run("input", func(t *testing.T) { testInput(t, b) })
	t.Run("problems", func(t *testing.T) { testProblems(t, b) })
	t.Run("exception", func(t *testing.T) { testException(t, b) })
	t.Run("storage", func(t *testing.T) { testStorage(t, b) })
}

func testInput(t *testing.T, b *Browser) {
	t.Parallel()
	v := Look(t, b, serve(t, map[string]string{"/": form})+"/")
	v.Press("/")
	v.Type("a/b ü")
	v.Press("c" + kb.Enter)
	v.Shows("output", "[a/b üc]")
	v.Press(kb.Enter, chromedp.KeyModifiers(chromedp.ModifierCtrl))
	v.Shows("output", "[control]")
	v.Click("button")
	v.Shows("output", "[clicked]")
	v.Scheme("dark")
	v.Until(`matchMedia("(prefers-color-scheme: %s)").matches`, "dark")
	if got := Value[[]string](v, `Promise.resolve(["x"])`); !slices.Equal(got, []string{"x"}) {
		t.Errorf("a promise of [x] has the value %q", got)
	}
}

func testProblems(t *testing.T, b *Browser) {
	t.Parallel()
	other := serve(t, map[string]string{"/": form})
	own := serve(t, map[string]string{"/": `<!doctype html><script>
		console.error("broken", 1); console.warn("odd"); console.log("fine");
		fetch("/missing").then(() => fetch("` + other + `/", {mode: "no-cors"})).then(() => { window.done = true; });
		try { eval("1"); } catch { /* forbidden by the content security policy */ }</script>`})
	tab, err := b.Open(400, 300)
	if err != nil {
		t.Fatal(err)
	}
	defer tab.Close()
	if err := errors.Join(tab.Go(own+"/"), tab.Until("window.done")); err != nil {
		t.Fatal(err)
	}
	problems := strings.Join(tab.Problems(own), "\n")
	wanted := []string{`error: "broken" 1`, `warning: "odd"`, "/missing", "TrustedScript", other + "/"}
	for _, want := range wanted {
		if !strings.Contains(problems, want) {
			t.Errorf("%q is not among the problems:\n%s", want, problems)
		}
	}
	if strings.Contains(problems, "fine") {
		t.Errorf("console.log is a problem:\n%s", problems)
	}
	if rest := strings.Join(tab.Problems(own, "/missing"), "\n"); strings.Contains(rest, "/missing") {
		t.Errorf("an expected error is a problem:\n%s", rest)
	}
}

func testException(t *testing.T, b *Browser) {
	t.Parallel()
	const page = `<!doctype html><script>setTimeout(() => { throw new Error("thrown"); })</script>`
	own := serve(t, map[string]string{"/": page})
	tab, err := b.Open(400, 300)
	if err != nil {
		t.Fatal(err)
	}
	defer tab.Close()
	err = errors.Join(tab.Go(own+"/"), tab.Until("window.never"))
	if err == nil || !strings.Contains(err.Error(), "thrown") {
		t.Errorf("a wait in a page with an uncaught exception: %v", err)
	}
}

func testStorage(t *testing.T, b *Browser) {
	t.Parallel()
	address := serve(t, map[string]string{"/": form}) + "/"
	v := Look(t, b, address)
	v.Run(`localStorage.setItem("key", "value")`)
	if other := Look(t, b, address); Value[bool](other, `localStorage.getItem("key") !== null`) {
		t.Error("two tabs share their storage")
	}
}

// A Chromium in another network namespace does not reach this one's loopback addresses.
func TestNetworkNamespace(t *testing.T) {
	tab, err := start(t, netns.NewNamed(t, "chrome").Path()).Open(400, 300)
	if err != nil {
		t.Fatal(err)
	}
	defer tab.Close()
	load, ok := errors.AsType[*chromedp.LoadError](tab.Go(serve(t, map[string]string{"/": form}) + "/"))
	if !ok {
		t.Fatal("it reaches a server in this network namespace")
	}
	t.Log(load)
}
