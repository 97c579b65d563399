package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netmaster/webui"
	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const webLong = `Web serves the web UI on a loopback address of this machine until it is interrupted, prints its URL
and opens it in a browser. The web UI queries netmaster through the API server, as the user of the kubeconfig: the
ClusterRole flowkeep-view permits all of its queries, and a view that the user may not see shows the API server's error.

The URL holds a token of this run, without which other users of this machine get no data. A browser that netctl starts
has the URL among its arguments, which they may be able to list: use --no-browser there, and open the URL yourself.`

const webExample = `  netctl web
  netctl web --no-browser --address 127.0.0.1:9442
  netctl web --context production --as jane`

// web is the command's options, and how it opens a URL.
type web struct {
	*options
	address   string
	noBrowser bool
	browse    func(url string) error
}

func webCommand(o *options) *cobra.Command {
	w := &web{options: o, browse: browse}
	cmd := &cobra.Command{
		Use:     "web",
		Short:   "Open the web UI in a browser, as you",
		Long:    webLong,
		Args:    exactly(),
		Example: webExample,
		RunE:    func(cmd *cobra.Command, _ []string) error { return w.run(cmd) },
	}
	f := cmd.Flags()
	f.StringVar(&w.address, "address", "127.0.0.1:0", "loopback address to listen on; port 0: a free one")
	f.BoolVar(&w.noBrowser, "no-browser", false, "print the URL only")
	_ = cmd.RegisterFlagCompletionFunc("address", cobra.NoFileCompletions)
	return cmd
}

func (w *web) run(cmd *cobra.Command) error {
	if err := checkLoopback(w.address); err != nil {
		return err
	}
	netmaster, err := w.open()
	if err != nil {
		return err
	}
	defer netmaster.Close()
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	dir, err := os.MkdirTemp("", "netctl-web-")
	if err != nil {
		return fmt.Errorf("make the token of the web UI: %w", err)
	}
	defer os.RemoveAll(dir)
	page, err := webui.Listen(webui.Config{
		Address:   w.address,
		TokenFile: filepath.Join(dir, "token"),
		Inspector: &userInspector{way: netmaster, options: w.options},
		Logger:    slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		return err
	}
	token, err := os.ReadFile(page.TokenFile())
	if err != nil {
		return fmt.Errorf("read the token of the web UI: %w", err)
	}
	url := page.URL() + "#token=" + strings.TrimSpace(string(token))
	fmt.Fprintln(cmd.OutOrStdout(), url)
	w.announce(cmd.ErrOrStderr(), netmaster.Server(), url)
	return page.Run(ctx)
}

// announce opens the browser, and prints what the user can do.
func (w *web) announce(out io.Writer, server, url string) {
	if !w.noBrowser {
		if err := w.browse(url); err != nil {
			fmt.Fprintf(out, "no browser was opened (%v): open the URL yourself\n", err)
		}
	}
	fmt.Fprintf(out, "the web UI queries netmaster through %s; ^C ends it\n", server)
}

// checkLoopback accepts addresses that other machines do not reach.
func checkLoopback(address string) error {
	host, _, err := net.SplitHostPort(address)
	if err == nil && host != "localhost" {
		var a netip.Addr
		if a, err = netip.ParseAddr(host); err == nil && !a.IsLoopback() {
			err = errors.New("other machines reach it, and would query netmaster as you")
		}
	}
	if err != nil {
		return usageError{fmt.Errorf("--address %q: %w; use a loopback address such as 127.0.0.1:9442", address, err)}
	}
	return nil
}

// userInspector answers the web UI with netmaster's answers to the user of the kubeconfig.
type userInspector struct {
	way
	*options
}

// Answer returns errors of the API server as netmaster's own: by codes of gRPC.
func (i *userInspector) Answer(ctx context.Context, q *inspect.Question) (*inspect.Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, i.timeout)
	defer cancel()
	a, err := i.Ask(ctx, q)
	if err != nil && isUnreachable(err) {
		return nil, status.Error(codes.Unavailable, message(err))
	}
	return a, err
}

// browse opens a URL in the user's browser.
func browse(url string) error {
	program := []string{"xdg-open"}
	switch runtime.GOOS {
	case "darwin":
		program = []string{"open"}
	case "windows":
		program = []string{"rundll32", "url.dll,FileProtocolHandler"}
	default: // without a display xdg-open starts a browser for terminals
		if os.Getenv("DISPLAY") == "" && os.Getenv("WAYLAND_DISPLAY") == "" {
			return errors.New("there is no display")
		}
	}
	cmd := exec.Command(program[0], append(program[1:], url)...)
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() { _ = cmd.Wait() }() // no zombie is left; the user sees what the browser does
	return nil
}
