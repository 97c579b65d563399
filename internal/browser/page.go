package browser

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// Page is a tab. Safe for concurrent use.
type Page struct {
	browser *Browser
	session string
	own     string // its browser context

	mu         sync.Mutex
	complaints []string
	requests   []string
	changes    int // requests that Chromium gave up because a network interface came or went
}

// networkChanged is what Chromium gives requests up with when an interface comes or goes, as those of pods do on a machine with
// sandboxes. It says nothing of the page.
const networkChanged = "net::ERR_NETWORK_CHANGED"

func (p *Page) call(ctx context.Context, method string, params, out any) error {
	return p.browser.call(ctx, p.session, method, params, out)
}

// Close closes the tab, and forgets what it stored.
func (p *Page) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_ = p.browser.call(ctx, "", "Target.disposeBrowserContext", map[string]any{"browserContextId": p.own}, nil) // it ends with the browser at the latest
	p.browser.mu.Lock()
	defer p.browser.mu.Unlock()
	delete(p.browser.pages, p.session)
}

// event keeps what went wrong, and what was asked for.
func (p *Page) event(method string, params json.RawMessage) {
	var e struct {
		Type  string `json:"type"`
		Entry struct {
			Level, Text, URL string
		} `json:"entry"`
		Args []struct {
			Value       any
			Description string
		} `json:"args"`
		ExceptionDetails struct {
			Text      string
			Exception struct{ Description string }
		} `json:"exceptionDetails"`
		Request struct{ URL string } `json:"request"`
	}
	if json.Unmarshal(params, &e) != nil {
		return // not of the events that count
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case method == "Network.requestWillBeSent":
		p.requests = append(p.requests, e.Request.URL)
	case method == "Runtime.exceptionThrown":
		p.complaints = append(p.complaints, e.ExceptionDetails.Text+" "+e.ExceptionDetails.Exception.Description)
	case method == "Runtime.consoleAPICalled" && (e.Type == "error" || e.Type == "warning"):
		p.complaints = append(p.complaints, fmt.Sprint(e.Type, ": ", e.Args))
	case method == "Log.entryAdded" && strings.Contains(e.Entry.Text, networkChanged):
		p.changes++
	case method == "Log.entryAdded" && e.Entry.Level == "error":
		p.complaints = append(p.complaints, e.Entry.Text+" "+e.Entry.URL)
	}
}

// Complaints are the errors that the console shows: exceptions, refused requests, violations of the content security policy.
func (p *Page) Complaints() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.complaints)
}

// Forget forgets them, where they are expected.
func (p *Page) Forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.complaints = nil
}

// Requests are the addresses of all that was asked for.
func (p *Page) Requests() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.requests)
}

// Size sets the window's, in pixels.
func (p *Page) Size(ctx context.Context, width, height int) error {
	return p.call(ctx, "Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false}, nil)
}

// Scheme makes the system prefer colours: light or dark.
func (p *Page) Scheme(ctx context.Context, scheme string) error {
	feature := map[string]string{"name": "prefers-color-scheme", "value": scheme}
	return p.call(ctx, "Emulation.setEmulatedMedia", map[string]any{"features": []any{feature}}, nil)
}

// Go opens an address and waits until its scripts have run once. What an interface that came or went kept from loading is loaded
// again.
func (p *Page) Go(ctx context.Context, url string) error {
	if err := p.load(ctx, "Page.navigate", map[string]any{"url": url}); err != nil {
		return err
	}
	for p.changed() {
		if err := p.Eval(ctx, "window.leaving = true", nil); err != nil {
			return err
		}
		if err := p.load(ctx, "Page.reload", nil); err != nil {
			return err
		}
	}
	return nil
}

func (p *Page) load(ctx context.Context, method string, params any) error {
	p.changed()
	var out struct {
		ErrorText string `json:"errorText"`
	}
	if err := p.call(ctx, method, params, &out); err != nil {
		return err
	}
	if out.ErrorText != "" && out.ErrorText != networkChanged {
		return fmt.Errorf("open %v: %s", params, out.ErrorText)
	}
	return p.Until(ctx, `document.readyState === "complete" && !window.leaving`)
}

// changed tells whether anything was kept from loading since it was asked last.
func (p *Page) changed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.changes
	p.changes = 0
	return n > 0
}

// Eval gives the value of an expression, of a promise what comes of it; out may be nil.
func (p *Page) Eval(ctx context.Context, expression string, out any) error {
	var answer struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails *struct {
			Text      string
			Exception struct{ Description string }
		}
	}
	err := p.call(ctx, "Runtime.evaluate", map[string]any{"expression": expression, "awaitPromise": true, "returnByValue": true, "userGesture": true}, &answer)
	if err != nil {
		return err
	}
	if x := answer.ExceptionDetails; x != nil {
		return fmt.Errorf("%s: %s %s", expression, x.Text, x.Exception.Description)
	}
	if out == nil || len(answer.Result.Value) == 0 {
		return nil
	}
	return json.Unmarshal(answer.Result.Value, out)
}

// Until waits for an expression to be true; its error has what the page shows instead.
func (p *Page) Until(ctx context.Context, expression string) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		var ok bool
		if last = p.Eval(ctx, "Boolean("+expression+")", &ok); last == nil && ok {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("it never was so: %s: %w", expression, ctx.Err()), last, p.shown())
		}
	}
}

func (p *Page) shown() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	var text string
	if err := p.Eval(ctx, `location.href + "\n" + document.body.innerText`, &text); err != nil {
		return err
	}
	const most = 3000
	return fmt.Errorf("the page shows:\n%.*s\nand complains: %q", most, text, p.Complaints())
}

// Text is what an element shows; empty if there is none.
func (p *Page) Text(ctx context.Context, selector string) (text string, err error) {
	err = p.Eval(ctx, fmt.Sprintf(`document.querySelector(%s)?.innerText ?? ""`, quote(selector)), &text)
	return text, err
}

func quote(text string) string {
	b, _ := json.Marshal(text) // strings always encode
	return string(b)
}

// Click presses the mouse in the middle of an element.
func (p *Page) Click(ctx context.Context, selector string) error {
	var at struct{ X, Y float64 }
	err := p.Eval(ctx, fmt.Sprintf(`(() => { const e = document.querySelector(%s); if (!e) throw new Error("there is no such element");
		e.scrollIntoView({block: "nearest", inline: "nearest"}); const r = e.getBoundingClientRect(); return {X: r.x + r.width / 2, Y: r.y + r.height / 2}; })()`, quote(selector)), &at)
	if err != nil {
		return fmt.Errorf("click %s: %w", selector, err)
	}
	for _, kind := range []string{"mousePressed", "mouseReleased"} {
		if err := p.call(ctx, "Input.dispatchMouseEvent", map[string]any{"type": kind, "x": at.X, "y": at.Y, "button": "left", "clickCount": 1}, nil); err != nil {
			return err
		}
	}
	return nil
}

// keys are codes of those keys that are no letters.
var keys = map[string]int{"Enter": 13, "Escape": 27, "Tab": 9, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Home": 36, "End": 35, "PageUp": 33, "PageDown": 34}

// Press presses a key by its name in KeyboardEvent.key; "Shift+Tab" and "Control+Enter" with another one held.
func (p *Page) Press(ctx context.Context, key string) error {
	modifiers := 0
	for name, bit := range map[string]int{"Control+": 2, "Shift+": 8} {
		if rest, ok := strings.CutPrefix(key, name); ok {
			key, modifiers = rest, modifiers|bit
		}
	}
	press := map[string]any{"type": "rawKeyDown", "key": key, "code": key, "windowsVirtualKeyCode": keys[key], "modifiers": modifiers}
	if len(key) == 1 {
		press["type"], press["text"] = "keyDown", key
	} else if key == "Enter" && modifiers == 0 {
		press["type"], press["text"] = "keyDown", "\r"
	}
	if err := p.call(ctx, "Input.dispatchKeyEvent", press, nil); err != nil {
		return err
	}
	return p.call(ctx, "Input.dispatchKeyEvent", map[string]any{"type": "keyUp", "key": key, "code": key, "windowsVirtualKeyCode": keys[key], "modifiers": modifiers}, nil)
}

// Type puts text where the focus is.
func (p *Page) Type(ctx context.Context, text string) error {
	return p.call(ctx, "Input.insertText", map[string]any{"text": text}, nil)
}

// Picture is what the window shows, as PNG.
func (p *Page) Picture(ctx context.Context) ([]byte, error) {
	var out struct {
		Data string `json:"data"`
	}
	if err := p.call(ctx, "Page.captureScreenshot", map[string]any{"format": "png"}, &out); err != nil {
		return nil, err
	}
	return base64.StdEncoding.DecodeString(out.Data)
}
