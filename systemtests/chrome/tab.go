package chrome

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/flowkeep/flowkeep/internal/testkit/slow"
)

// maxWait is the time limit of each method of a tab.
var maxWait = slow.Stretch(time.Minute)

// Tab is a tab of a Browser. Its methods fail after an uncaught exception of a page's script.
type Tab struct {
	tab   context.Context // chromedp's
	close context.CancelFunc
	ctx   context.Context // that of tab, until fail
	fail  context.CancelCauseFunc

	mu         sync.Mutex
	errors     []string
	requests   []string
	interrupts int // requests that failed with networkChanged
}

// Close closes the tab and deletes its storage.
func (t *Tab) Close() { t.close() }

// do runs actions within maxWait.
func (t *Tab) do(operation string, steps ...chromedp.Action[chromedp.Void]) error {
	ctx, cancel := context.WithTimeout(t.ctx, maxWait)
	defer cancel()
	return t.wrap(operation, chromedp.Do(ctx, steps...))
}

// wrap adds the operation to an error, and the exception of a script.
func (t *Tab) wrap(operation string, err error) error {
	if err == nil {
		return nil
	}
	if cause := context.Cause(t.ctx); cause != nil {
		err = cause
	}
	return fmt.Errorf("%s: %w", operation, err)
}

// Go opens an address and waits until it is loaded. It repeats what a change of network interfaces interrupts.
func (t *Tab) Go(url string) error {
	step := chromedp.Navigate(url)
	for {
		before := t.interrupted()
		err := t.do("open "+url, step)
		if t.interrupted() == before && !isNetworkChanged(err) {
			return err
		}
		if t.ctx.Err() != nil {
			return t.wrap("open "+url, t.ctx.Err())
		}
		if err == nil {
			step = chromedp.Reload() // Navigate to an address that differs in its fragment loads nothing
		}
	}
}

func isNetworkChanged(err error) bool {
	load, ok := errors.AsType[*chromedp.LoadError](err)
	return ok && load.ErrorText == networkChanged
}

func (t *Tab) interrupted() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.interrupts
}

// Eval returns the value of a JavaScript expression, or of its promise.
func Eval[T any](t *Tab, expression string) (T, error) {
	ctx, cancel := context.WithTimeout(t.ctx, maxWait)
	defer cancel()
	value, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	return value, t.wrap(expression, err)
}

// Run evaluates a JavaScript expression and its promise.
func (t *Tab) Run(expression string) error {
	_, err := Eval[chromedp.Void](t, expression)
	return err
}

// Until waits until a JavaScript expression is true, over loads of pages. An error has the text of the page.
func (t *Tab) Until(expression string) error {
	ctx, cancel := context.WithTimeout(t.ctx, maxWait)
	defer cancel()
	// Not chromedp.Poll: it makes code of text, which the web UI's content security policy forbids.
	wait := chromedp.Evaluate[bool](fmt.Sprintf(`new Promise((done) => {
		const look = () => {
			let is = false;
			try { is = %s; } catch { /* what it names is not there yet */ }
			if (is) done(true); else requestAnimationFrame(look);
		};
		look();
	})`, expression), chromedp.EvalAwaitPromise)
	for {
		_, err := chromedp.Run(ctx, wait)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return errors.Join(t.wrap("wait until "+expression, err), t.shown())
		}
		if !isNavigation(err) {
			return t.wrap("wait until "+expression, err)
		}
	}
}

// isNavigation reports whether an expression was interrupted by the load of another page.
func isNavigation(err error) bool {
	return strings.Contains(err.Error(), "navigated") || strings.Contains(err.Error(), "context was destroyed") ||
		strings.Contains(err.Error(), "Cannot find context")
}

// shown returns the page's text as an error.
func (t *Tab) shown() error {
	const maxText = 3000
	ctx, cancel := context.WithTimeout(t.tab, slow.Stretch(5*time.Second))
	defer cancel()
	text, err := chromedp.Run(ctx, chromedp.Evaluate[string](`location.href + "\n" + document.body.innerText`))
	if err != nil {
		return fmt.Errorf("read the page's text: %w", err)
	}
	return fmt.Errorf("the page shows:\n%.*s", maxText, text)
}

// Click waits for an element and clicks its centre.
func (t *Tab) Click(selector string) error {
	if err := t.Until(fmt.Sprintf("document.querySelector(%s)", quote(selector))); err != nil {
		return err
	}
	// Not chromedp.Click: the web UI replaces elements, which may happen between a query for a node and its use.
	at, err := Eval[struct{ X, Y float64 }](t, fmt.Sprintf(`(() => {
		const e = document.querySelector(%s);
		e.scrollIntoView({block: "nearest", inline: "nearest"});
		const r = e.getBoundingClientRect();
		return {X: r.x + r.width / 2, Y: r.y + r.height / 2};
	})()`, quote(selector)))
	if err != nil {
		return err
	}
	return t.do("click "+selector, chromedp.MouseClickXY(at.X, at.Y))
}

// quote returns text as a JavaScript string.
func quote(text string) string {
	b, _ := json.Marshal(text) // strings always encode
	return string(b)
}

// Press presses keys: characters, and those that package kb names.
func (t *Tab) Press(keys string, options ...chromedp.KeyOption) error {
	return t.do("press keys", chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		for _, key := range keys {
			for _, event := range strokes(key, options) {
				if _, err := cdp.Call(ctx, target, input.DispatchKeyEvent, *event); err != nil {
					return err
				}
			}
		}
		return nil
	}))
}

// strokes returns the events of a key, with its text in the first. chromedp.KeyEvent sends the text in an event of its
// own, which a page cannot prevent.
func strokes(key rune, options []chromedp.KeyOption) []*input.DispatchKeyEventParams {
	events := kb.Encode(key)
	down, up := events[0], events[len(events)-1]
	for _, option := range options {
		option(down)
		option(up)
	}
	if hasText := len(events) > 2; hasText && down.Modifiers&^int64(chromedp.ModifierShift) == 0 {
		down.Text, down.UnmodifiedText = events[1].Text, events[1].UnmodifiedText
	}
	return []*input.DispatchKeyEventParams{down, up}
}

// Type inserts text where the focus is, in one event.
func (t *Tab) Type(text string) error {
	return t.do("type "+text, chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, input.InsertText, input.InsertTextParams{Text: text})
		return err
	}))
}

// Scheme sets the preferred colour scheme, light or dark.
func (t *Tab) Scheme(scheme string) error {
	return t.do("set the colour scheme", chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
		})
		return err
	}))
}

// Screenshot returns the visible part of the page as PNG.
func (t *Tab) Screenshot() ([]byte, error) {
	ctx, cancel := context.WithTimeout(t.ctx, maxWait)
	defer cancel()
	text, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
	return text, t.wrap("take a screenshot", err)
}
