package webui

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
)

// policyHeaders forbid foreign scripts, styles, frames and requests, and (by trusted types) that scripts convert
// text to markup or code.
var policyHeaders = map[string]string{
	"Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; " +
		"connect-src 'self'; " +
		"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; " +
		"trusted-types 'none'",
	"X-Content-Type-Options":       "nosniff",
	"X-Frame-Options":              "DENY",
	"Referrer-Policy":              "no-referrer",
	"Cross-Origin-Opener-Policy":   "same-origin",
	"Cross-Origin-Resource-Policy": "same-origin",
	"Permissions-Policy":           "camera=(), geolocation=(), microphone=()",
}

// guard authorises requests. Safe for concurrent use.
type guard struct {
	loopback  bool
	tokenFile string // empty: no token required
	log       *slog.Logger

	mu      sync.Mutex
	problem string // of the token file, last logged
}

func (g *guard) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name, value := range policyHeaders {
			w.Header().Set(name, value)
		}
		if g.loopback && !isLoopback(r.Host) {
			fail(w, http.StatusMisdirectedRequest,
				"this page is served to this machine only: open it as localhost, or by kubectl port-forward")
			return
		}
		if strings.HasPrefix(r.URL.Path, "/api/") {
			if code, why := g.refuses(r); why != "" {
				fail(w, code, why)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// isLoopback reports whether a request's Host names this machine. Other names may be DNS rebinding by a foreign site.
func isLoopback(hostport string) bool {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = strings.Trim(hostport, "[]")
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.Unmap().IsLoopback()
}

// refuses returns why a request for data is rejected; empty if it is accepted.
func (g *guard) refuses(r *http.Request) (code int, why string) {
	scheme := "http://"
	if r.TLS != nil {
		scheme = "https://"
	}
	if origin := r.Header.Get("Origin"); origin != "" && origin != scheme+r.Host {
		return http.StatusForbidden, "cross-origin requests are rejected"
	}
	if site := r.Header.Get("Sec-Fetch-Site"); site != "" && site != "same-origin" && site != "none" {
		return http.StatusForbidden, "cross-origin requests are rejected"
	}
	if g.tokenFile == "" {
		return 0, ""
	}
	given, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok {
		return http.StatusUnauthorized, "a token is needed: it is in the file that netmaster names in its log"
	}
	want, err := readToken(g.tokenFile)
	g.note(err)
	if err != nil {
		return http.StatusInternalServerError, "netmaster cannot read its token: see its log"
	}
	if !sameToken(given, want) {
		return http.StatusUnauthorized, "this is not the token"
	}
	return 0, ""
}

// note logs a changed problem of the token file.
func (g *guard) note(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if text != "" && text != g.problem {
		g.log.Error("the web UI has no valid token", "error", err)
	}
	g.problem = text
}

// sameToken compares in constant time.
func sameToken(a, b string) bool {
	x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
	return subtle.ConstantTimeCompare(x[:], y[:]) == 1
}

const (
	minToken = 16
	maxToken = 4096
)

// readToken reads the token file each time, so that a new token is effective at once.
func readToken(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", fmt.Errorf("read the web UI's token: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxToken))
	if err != nil {
		return "", fmt.Errorf("read the web UI's token: %w", err)
	}
	token := strings.TrimSpace(string(b))
	if len(token) < minToken {
		return "", fmt.Errorf(
			"the page's token in %s has %d characters: give it %d at least, or remove the file and netmaster makes one",
			file, len(token), minToken)
	}
	return token, nil
}

// ensureToken creates a token if there is none.
func ensureToken(file string) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		_, err := readToken(file)
		return err
	}
	if err != nil {
		return fmt.Errorf("create the web UI's token: %w", err)
	}
	_, err = fmt.Fprintln(f, rand.Text())
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("create the web UI's token: %w", err)
	}
	return nil
}
