// Package process is what Flowkeep's long-running programs do alike: structured logs, /metrics, /healthz, /readyz, and
// a context that ends with SIGINT or SIGTERM.
package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"os/signal"
	"runtime/debug"
	"sort"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Version is set at link time; a program built without reads it from the build information.
var Version = ""

// BuildVersion returns Version, or the version that the Go toolchain recorded, or "devel".
func BuildVersion() string {
	if Version != "" {
		return Version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
}

// NewLogger writes text or JSON lines of the given level (debug, info, warn, error) and above.
func NewLogger(w io.Writer, level, format string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("log level %q: use debug, info, warn or error", level)
	}
	opts := &slog.HandlerOptions{Level: l}
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(w, opts)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, opts)), nil
	}
	return nil, fmt.Errorf("log format %q: use text or json", format)
}

// SignalContext ends with the first SIGINT or SIGTERM; a second one ends the process at once.
func SignalContext() (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

// Health holds what /healthz and /readyz report. The zero value is ready for use; safe for concurrent use.
type Health struct {
	mu       sync.Mutex
	notReady map[string]string
	sick     map[string]string
	changed  chan struct{} // closed with the next change; nil without waiters
}

// SetReady says that part is ready, or, with a reason, that it is not.
func (h *Health) SetReady(part, reason string) { h.set(&h.notReady, part, reason) }

// SetHealthy says that part works, or, with a reason, that the process should be restarted.
func (h *Health) SetHealthy(part, reason string) { h.set(&h.sick, part, reason) }

func (h *Health) set(m *map[string]string, part, reason string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if *m == nil {
		*m = map[string]string{}
	}
	if reason == "" {
		delete(*m, part)
	} else {
		(*m)[part] = reason
	}
	if h.changed != nil {
		close(h.changed)
		h.changed = nil
	}
}

// Changes returns a channel that is closed at the next report about a part, even an unchanged one.
func (h *Health) Changes() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.changed == nil {
		h.changed = make(chan struct{})
	}
	return h.changed
}

// Parts returns why parts of the process are not ready, by part.
func (h *Health) Parts() map[string]string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return maps.Clone(h.notReady)
}

// NotReady returns the reason why the process is not ready, or "".
func (h *Health) NotReady() string { return h.text(&h.notReady) }

func (h *Health) text(m *map[string]string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var lines []string
	for part, reason := range *m {
		lines = append(lines, part+": "+reason)
	}
	sort.Strings(lines)
	return strings.Join(lines, "; ")
}

func (h *Health) handler(m *map[string]string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if text := h.text(m); text != "" {
			http.Error(w, text, http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
}

// NewRegistry returns a registry with the Go and process collectors and the program's build information.
func NewRegistry(program string) *prometheus.Registry {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	DeclareMetrics(reg, program)
	return reg
}

// DeclareMetrics registers the metrics that each program has about itself.
func DeclareMetrics(reg prometheus.Registerer, program string) {
	build := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "flowkeep_build_info", Help: "Always 1; labels tell the program and its version.",
	}, []string{"program", "version"})
	build.WithLabelValues(program, BuildVersion()).Set(1)
	reg.MustRegister(build)
}

// ServeHTTP serves /metrics, /healthz and /readyz on addr until ctx ends. It returns when the server has stopped.
func ServeHTTP(ctx context.Context, addr string, reg *prometheus.Registry, health *Health) error {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
	if err != nil {
		return fmt.Errorf("listen for metrics and health on %s: %w (choose another address with --http-listen)", addr,
			err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	mux.Handle("GET /healthz", health.handler(&health.sick))
	mux.Handle("GET /readyz", health.handler(&health.notReady))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	stop := context.AfterFunc(ctx, func() {
		shut, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = server.Shutdown(shut)
	})
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve metrics and health: %w", err)
	}
	return nil
}
