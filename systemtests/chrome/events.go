package chrome

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// networkChanged is Chromium's error for requests during a change of network interfaces, such as those of pods on a
// machine with sandboxes.
const networkChanged = "net::ERR_NETWORK_CHANGED"

// event records requests, and errors and warnings of the console. chromedp calls it in the order of the events.
func (t *Tab) event(ev any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch ev := ev.(type) {
	case *network.EventRequestWillBeSent:
		t.requests = append(t.requests, ev.Request.URL)
	case *runtime.EventExceptionThrown:
		text := (&chromedp.ExceptionError{ExceptionDetails: ev.ExceptionDetails}).Error()
		t.errors = append(t.errors, text)
		t.fail(errors.New(text))
	case *runtime.EventConsoleAPICalled:
		if ev.Type == runtime.ConsoleAPICalledTypeError || ev.Type == runtime.ConsoleAPICalledTypeWarning {
			t.errors = append(t.errors, fmt.Sprint(ev.Type, ": ", arguments(ev.Args)))
		}
	case *log.EventEntryAdded:
		switch {
		case strings.Contains(ev.Entry.Text, networkChanged):
			t.interrupts++
		case ev.Entry.Level == log.EntryLevelError:
			t.errors = append(t.errors, ev.Entry.Text+" "+ev.Entry.URL)
		}
	}
}

// arguments returns those of a call of the console as text.
func arguments(list []*runtime.RemoteObject) string {
	var text []string
	for _, a := range list {
		if len(a.Value) > 0 {
			text = append(text, string(a.Value))
		} else {
			text = append(text, a.Description)
		}
	}
	return strings.Join(text, " ")
}

// Problems returns the errors and warnings of the console, such as uncaught exceptions, failed requests and violations
// of the content security policy, and the requests to another origin. It leaves out errors that contain one of expected.
func (t *Tab) Problems(origin string, expected ...string) (list []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, text := range t.errors {
		if !slices.ContainsFunc(expected, func(e string) bool { return strings.Contains(text, e) }) {
			list = append(list, "console: "+text)
		}
	}
	for _, url := range t.requests {
		if !strings.HasPrefix(url, origin+"/") && !strings.HasPrefix(url, "about:") {
			list = append(list, "request to another origin: "+url)
		}
	}
	return list
}
