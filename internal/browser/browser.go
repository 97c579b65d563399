// Package browser drives a headless Chromium, for tests of the page and for its pictures: over DevTools' own pipe, so that no port is
// opened and no library is needed.
package browser

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// Find gives the path of a Chromium.
func Find() (path string, ok bool) {
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, true
		}
	}
	return "", false
}

// Options say which Chromium, and how.
type Options struct {
	Path string
	// Prefix is a command that runs it, such as nsenter with its arguments.
	Prefix []string
	// Dir is its profile's directory; it must be the caller's to remove.
	Dir string
	// Arguments are added to those that are needed.
	Arguments []string
}

// Browser is a running Chromium. Safe for concurrent use.
type Browser struct {
	cmd   *exec.Cmd
	write *os.File
	ended chan struct{} // closed when it answers no more

	mu      sync.Mutex
	next    int
	waiting map[int]chan reply
	pages   map[string]*Page // by session
}

type message struct {
	ID        int             `json:"id,omitempty"`
	Method    string          `json:"method,omitempty"`
	Params    any             `json:"params,omitempty"`
	SessionID string          `json:"sessionId,omitempty"`
	Result    json.RawMessage `json:"result,omitempty"`
	Error     *struct {
		Message string `json:"message"`
	} `json:"error,omitempty"`
}

type reply struct {
	result json.RawMessage
	err    error
}

var errEnded = errors.New("Chromium has ended")

// Start starts one. It runs without its sandbox: root cannot have one, and it is shown nothing but our own page.
func Start(ctx context.Context, o Options) (*Browser, error) {
	args := append(append([]string{}, o.Prefix...), o.Path, "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions", "--mute-audio", "--hide-scrollbars", "--force-color-profile=srgb",
		"--user-data-dir="+o.Dir)
	args = append(append(args, o.Arguments...), "about:blank")
	toRead, toWrite, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	fromRead, fromWrite, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, toRead.Close(), toWrite.Close())
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.ExtraFiles = []*os.File{toRead, fromWrite}
	cmd.Env = append(os.Environ(), "HOME="+o.Dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	err = errors.Join(cmd.Start(), toRead.Close(), fromWrite.Close())
	if err != nil {
		return nil, fmt.Errorf("start Chromium: %w", errors.Join(err, toWrite.Close(), fromRead.Close()))
	}
	b := &Browser{cmd: cmd, write: toWrite, ended: make(chan struct{}), waiting: map[int]chan reply{}, pages: map[string]*Page{}}
	go b.read(fromRead)
	return b, nil
}

// Close ends it and all of its processes.
func (b *Browser) Close() {
	_ = b.write.Close() // it ends by itself when nobody can talk to it
	select {
	case <-b.ended:
	case <-time.After(2 * time.Second):
	}
	_ = syscall.Kill(-b.cmd.Process.Pid, syscall.SIGKILL) // what is left of its group
	_ = b.cmd.Wait()                                      // it was killed, or ended as it was told
}

func (b *Browser) read(from *os.File) {
	defer close(b.ended)
	defer from.Close()
	r := bufio.NewReaderSize(from, 1<<16)
	for {
		text, err := r.ReadBytes(0)
		if err != nil {
			return
		}
		var m struct {
			message
			Params json.RawMessage `json:"params"`
		}
		if json.Unmarshal(text[:len(text)-1], &m) != nil {
			continue // it never sends anything else than JSON
		}
		b.take(&m.message, m.Params)
	}
}

func (b *Browser) take(m *message, params json.RawMessage) {
	b.mu.Lock()
	waiter, page := b.waiting[m.ID], b.pages[m.SessionID]
	delete(b.waiting, m.ID)
	b.mu.Unlock()
	switch {
	case waiter != nil && m.Error != nil:
		waiter <- reply{err: errors.New(m.Error.Message)}
	case waiter != nil:
		waiter <- reply{result: m.Result}
	case page != nil:
		page.event(m.Method, params)
	}
}

// call sends one command and waits for what comes of it.
func (b *Browser) call(ctx context.Context, session, method string, params, out any) error {
	answer := make(chan reply, 1)
	b.mu.Lock()
	b.next++
	id := b.next
	b.waiting[id] = answer
	text, err := json.Marshal(message{ID: id, Method: method, Params: params, SessionID: session})
	if err == nil {
		_, err = b.write.Write(append(text, 0))
	}
	b.mu.Unlock()
	if err != nil {
		return fmt.Errorf("%s: %w", method, err)
	}
	select {
	case r := <-answer:
		if r.err != nil || out == nil {
			return wrap(method, r.err)
		}
		return wrap(method, json.Unmarshal(r.result, out))
	case <-b.ended:
		return wrap(method, errEnded)
	case <-ctx.Done():
		b.mu.Lock()
		delete(b.waiting, id)
		b.mu.Unlock()
		return wrap(method, ctx.Err())
	}
}

func wrap(method string, err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}
	return fmt.Errorf("%s: %w", method, err)
}

// Open makes a tab of this size in pixels, which shares nothing with others: neither storage nor cache.
func (b *Browser) Open(ctx context.Context, width, height int) (*Page, error) {
	var own struct {
		ID string `json:"browserContextId"`
	}
	if err := b.call(ctx, "", "Target.createBrowserContext", map[string]any{"disposeOnDetach": true}, &own); err != nil {
		return nil, err
	}
	var target struct {
		TargetID string `json:"targetId"`
	}
	if err := b.call(ctx, "", "Target.createTarget", map[string]any{"url": "about:blank", "browserContextId": own.ID}, &target); err != nil {
		return nil, err
	}
	var attached struct {
		SessionID string `json:"sessionId"`
	}
	if err := b.call(ctx, "", "Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached); err != nil {
		return nil, err
	}
	p := &Page{browser: b, session: attached.SessionID, own: own.ID}
	b.mu.Lock()
	b.pages[p.session] = p
	b.mu.Unlock()
	for _, domain := range []string{"Page", "Runtime", "Log", "Network"} {
		if err := p.call(ctx, domain+".enable", nil, nil); err != nil {
			return nil, err
		}
	}
	if err := p.call(ctx, "Emulation.setFocusEmulationEnabled", map[string]any{"enabled": true}, nil); err != nil { // each tab has it, whichever is in front
		return nil, err
	}
	return p, p.Size(ctx, width, height)
}
