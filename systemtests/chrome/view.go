package chrome

import (
	"fmt"
	"net/url"
	"testing"

	"github.com/chromedp/chromedp"
)

// View is a tab of a test. Its methods end the test on errors.
type View struct {
	testing.TB
	tab      *Tab
	origin   string
	expected []string
}

// Look opens an address in a tab of 1280 by 800 pixels. When the test ends, it fails on the tab's Problems. The test is
// skipped if b is nil.
func Look(t testing.TB, b *Browser, address string) *View {
	t.Helper()
	if b == nil {
		t.Skip(ErrNotInstalled)
	}
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	tab, err := b.Open(1280, 800)
	if err != nil {
		t.Fatal(err)
	}
	v := &View{TB: t, tab: tab, origin: u.Scheme + "://" + u.Host}
	t.Cleanup(func() {
		for _, p := range tab.Problems(v.origin, v.expected...) {
			t.Error(p)
		}
		tab.Close()
	})
	v.Go(address)
	return v
}

// Expect makes console errors with a text no failure of the test.
func (v *View) Expect(text string) { v.expected = append(v.expected, text) }

func (v *View) must(err error) {
	v.Helper()
	if err != nil {
		v.Fatal(err)
	}
}

// Go opens an address and waits until it is loaded.
func (v *View) Go(address string) {
	v.Helper()
	v.must(v.tab.Go(address))
}

// Until waits until a JavaScript expression is true. It has the verbs and arguments of fmt.Sprintf.
func (v *View) Until(format string, args ...any) {
	v.Helper()
	v.must(v.tab.Until(fmt.Sprintf(format, args...)))
}

// Shows waits until an element shows a text.
func (v *View) Shows(selector, text string) {
	v.Helper()
	v.Until(`[...document.querySelectorAll(%s)].some((e) => e.innerText.includes(%s))`, quote(selector), quote(text))
}

// Run evaluates a JavaScript expression and its promise.
func (v *View) Run(expression string) {
	v.Helper()
	v.must(v.tab.Run(expression))
}

// Value returns the value of a JavaScript expression, or of its promise.
func Value[T any](v *View, expression string) T {
	v.Helper()
	value, err := Eval[T](v.tab, expression)
	v.must(err)
	return value
}

// Click waits for an element and clicks its centre.
func (v *View) Click(selector string) {
	v.Helper()
	v.must(v.tab.Click(selector))
}

// Press presses keys: characters, and those that package kb names.
func (v *View) Press(keys string, options ...chromedp.KeyOption) {
	v.Helper()
	v.must(v.tab.Press(keys, options...))
}

// Type inserts text where the focus is.
func (v *View) Type(text string) {
	v.Helper()
	v.must(v.tab.Type(text))
}

// Scheme sets the preferred colour scheme, light or dark.
func (v *View) Scheme(scheme string) {
	v.Helper()
	v.must(v.tab.Scheme(scheme))
}
