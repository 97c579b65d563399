// Package chrome drives a headless Chromium with chromedp, for tests and pictures of the web UI.
package chrome

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

// ErrNotInstalled is the error of Start on a machine without Chromium.
var ErrNotInstalled = errors.New("Chromium is not installed: apt-get install chromium")

// Browser is a running Chromium. It is safe for concurrent use.
type Browser struct {
	ctx  context.Context // chromedp's
	stop context.CancelFunc
}

// Start starts a Chromium in a network namespace, a file as ip-netns(8) makes them, or in that of this process if netns
// is empty. The Chromium ends with ctx.
func Start(ctx context.Context, netns string) (*Browser, error) {
	path, err := find()
	if err != nil {
		return nil, err
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(path),
		chromedp.NoSandbox, // root cannot have it, and the only pages are our own
		chromedp.Flag("disable-gpu", true),
		chromedp.Flag("disable-component-update", true),
		chromedp.ModifyCmdFunc(func(cmd *exec.Cmd) { prepare(cmd, netns) }),
	)
	ctx, stopAll := chromedp.NewExecAllocator(ctx, options...)
	ctx, stopBrowser := chromedp.NewContext(ctx)
	b := &Browser{ctx: ctx, stop: func() { stopBrowser(); stopAll() }}
	if err := chromedp.Do(ctx); err != nil {
		b.stop()
		return nil, fmt.Errorf("start Chromium: %w", err)
	}
	return b, nil
}

// Close ends all processes of the Chromium and removes its profile.
func (b *Browser) Close() { b.stop() }

func find() (string, error) {
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", ErrNotInstalled
}

// prepare makes Chromium run in a network namespace, keep its files in its profile, and end with this process.
// DevTools' pipes are file descriptors 3 and 4, which nsenter leaves open.
func prepare(cmd *exec.Cmd, netns string) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	for _, argument := range cmd.Args {
		if profile, ok := strings.CutPrefix(argument, "--user-data-dir="); ok {
			cmd.Env = append(cmd.Env, "HOME="+profile)
		}
	}
	if netns == "" {
		return
	}
	cmd.Args = append([]string{"nsenter", "--net=" + netns, "--", cmd.Path}, cmd.Args[1:]...)
	cmd.Path, cmd.Err = exec.LookPath("nsenter")
}

// Open opens a tab of a size in pixels, with storage and cache of its own.
func (b *Browser) Open(width, height int64) (*Tab, error) {
	t := &Tab{}
	ctx, closeTab := chromedp.NewContext(b.ctx, chromedp.WithNewBrowserContext(), chromedp.WithListener(t.event))
	t.tab, t.close = ctx, closeTab
	t.ctx, t.fail = context.WithCancelCause(ctx)
	focused := chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, emulation.SetFocusEmulationEnabled,
			emulation.SetFocusEmulationEnabledParams{Enabled: true})
		return err
	})
	if err := chromedp.Do(ctx, focused, chromedp.EmulateViewport(width, height)); err != nil {
		closeTab()
		return nil, fmt.Errorf("open a tab: %w", err)
	}
	return t, nil
}
