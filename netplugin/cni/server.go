// Package cni serves the requests of flowkeep-cni: JSON over HTTP on a unix socket, with one path for each CNI command
// (CNI specification 1.1.0).
package cni

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/utils"
	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netplugin/endpoints"
)

// Request is what flowkeep-cni forwards.
type Request struct {
	Namespace   string `json:"namespace"`
	Name        string `json:"name"`
	UID         string `json:"uid"`
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifName"`
	NetNS       string `json:"netns"`
	// Bandwidth is of the annotations kubernetes.io/ingress-bandwidth and egress-bandwidth.
	Bandwidth endpoints.Bandwidth `json:"bandwidth,omitzero"`
	// HostPorts are the pod's, where the CNI configuration names portmap's backend.
	HostPorts []endpoints.PortMapping `json:"hostPorts,omitempty"`
	// Valid is GC's: attachments to keep, container/ifname; null for none is refused.
	Valid []string `json:"valid"`
}

// Response is the outcome; Error is empty on success.
type Response struct {
	Error    string              `json:"error,omitempty"`
	Code     uint                `json:"code,omitempty"` // of Error, as the CNI specification numbers them
	NotReady bool                `json:"notReady,omitempty"`
	Endpoint *endpoints.Endpoint `json:"endpoint,omitempty"`
	Gateways []string            `json:"gateways,omitempty"`
	MTU      int                 `json:"mtu,omitempty"`
}

// Manager is what the server needs of endpoints.Manager.
type Manager interface {
	Add(context.Context, endpoints.Request) (*endpoints.Result, error)
	Del(ctx context.Context, container, ifName string) error
	Check(ctx context.Context, container, ifName string) error
	GC(ctx context.Context, valid []string) error
	Ready() error
}

// Config is what a server needs. Timeout bounds a request, Arrival how long one may take to arrive (0: 5 s), and Grace
// how long requests under way may go on when the server ends (0: 5 s).
type Config struct {
	Socket  string
	Timeout time.Duration
	Arrival time.Duration
	Grace   time.Duration
	Manager Manager
	Logger  *slog.Logger
	Observe func(command string, took time.Duration, err error)
	// Contested returns the problem of contested objects, for netctl doctor node; may be nil.
	Contested func() []inspect.NetworkProblem
	// Listening is called once the socket is there; may be nil.
	Listening func()
}

const (
	maxRequest     = 1 << 20 // bytes of a request's body
	defaultArrival = 5 * time.Second
	defaultGrace   = 5 * time.Second
	// undoing bounds the end of requests that were cut short: they take back what they made.
	undoing = 15 * time.Second
)

// Serve answers until ctx ends, and returns when no request is under way any more. Those that go on beyond the grace
// are cut short, and undo what they began.
func Serve(ctx context.Context, cfg Config) error {
	l, err := listen(cfg.Socket)
	if err != nil {
		return err
	}
	if cfg.Listening != nil {
		cfg.Listening()
	}
	return serveOn(ctx, l, cfg)
}

func serveOn(ctx context.Context, l net.Listener, cfg Config) error {
	cfg.Arrival, cfg.Grace = cmp.Or(cfg.Arrival, defaultArrival), cmp.Or(cfg.Grace, defaultGrace)
	requests, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	h := &http.Server{Handler: (&server{cfg}).routes(), ReadHeaderTimeout: cfg.Arrival,
		BaseContext: func(net.Listener) context.Context { return requests },
		ErrorLog:    slog.NewLogLogger(cfg.Logger.Handler(), slog.LevelError)}
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		if shutdown(h, cfg.Grace) != nil {
			cut()
			_ = shutdown(h, undoing)
		}
	})
	err := h.Serve(l)
	if !errors.Is(err, http.ErrServerClosed) {
		stop()
		return fmt.Errorf("serve the CNI socket: %w", err)
	}
	<-ended
	return nil
}

func shutdown(h *http.Server, within time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	return h.Shutdown(ctx)
}

// listen replaces the socket that an earlier process left, and nothing else. The socket stays when the listener closes:
// by then it may be that of the process that comes after.
func listen(path string) (net.Listener, error) {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("look for an old CNI socket: %w", err)
	case info.Mode().Type() != os.ModeSocket:
		return nil, fmt.Errorf("listen on the CNI socket: %s exists and is no socket; remove it, or use another path", path)
	default:
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("remove the old CNI socket: %w", err)
		}
	}
	l, err := (&net.ListenConfig{Control: keepOthersOut}).Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen on the CNI socket: %w", err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	return l, nil
}

// keepOthersOut sets the socket's mode before it has its path, so that it is never open to other users.
func keepOthersOut(_, _ string, c syscall.RawConn) (err error) {
	controlled := c.Control(func(fd uintptr) { err = syscall.Fchmod(int(fd), 0o600) })
	return errors.Join(controlled, err)
}

type server struct{ cfg Config }

func (s *server) routes() http.Handler {
	m := s.cfg.Manager
	mux := http.NewServeMux()
	mux.HandleFunc("POST /ADD", s.handle("ADD", s.add))
	mux.HandleFunc("POST /DEL", s.handle("DEL", func(ctx context.Context, r *Request) (Response, error) {
		if err := named(r); err != nil {
			return Response{}, err
		}
		return Response{}, m.Del(ctx, r.ContainerID, r.IfName)
	}))
	mux.HandleFunc("POST /CHECK", s.handle("CHECK", func(ctx context.Context, r *Request) (Response, error) {
		if err := named(r); err != nil {
			return Response{}, err
		}
		return Response{}, m.Check(ctx, r.ContainerID, r.IfName)
	}))
	mux.HandleFunc("POST /GC", s.handle("GC", func(ctx context.Context, r *Request) (Response, error) {
		if r.Valid == nil { // a list that was lost is not an empty one: all pods would lose their network
			return Response{}, types.NewError(types.ErrInvalidNetworkConfig, "the request lists no valid attachments",
				"")
		}
		return Response{}, m.GC(ctx, r.Valid)
	}))
	mux.HandleFunc("POST /STATUS", s.handle("STATUS", func(context.Context, *Request) (Response, error) {
		return Response{}, m.Ready()
	}))
	if s.cfg.Contested != nil {
		mux.HandleFunc("GET "+inspect.ContestedPath, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(s.cfg.Contested())
		})
	}
	return mux
}

func (s *server) handle(command string, f func(context.Context, *Request) (Response, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		ctx, cancel := context.WithTimeout(r.Context(), s.cfg.Timeout)
		defer cancel()
		var resp Response
		req, err := s.read(w, r)
		if err == nil {
			resp, err = within(ctx, func() (Response, error) { return f(ctx, req) })
		}
		if err != nil {
			resp = Response{Error: err.Error(), Code: codeOf(err), NotReady: errors.Is(err, endpoints.ErrNotReady)}
			s.cfg.Logger.Warn("CNI request failed", "command", command, "pod", req.Namespace+"/"+req.Name, "container",
				req.ContainerID, "error", err)
		}
		if s.cfg.Observe != nil {
			s.cfg.Observe(command, time.Since(began), err)
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(resp)
	}
}

// within answers for a command that goes on after its end and the time to undo it: it waits for a disk that hangs, as
// a rule.
func within(ctx context.Context, command func() (Response, error)) (Response, error) {
	type outcome struct {
		resp Response
		err  error
	}
	done := make(chan outcome, 1)
	go func() {
		resp, err := command()
		done <- outcome{resp, err}
	}()
	late := make(chan struct{})
	defer context.AfterFunc(ctx, func() { time.AfterFunc(undoing, func() { close(late) }) })()
	select {
	case o := <-done:
		return o.resp, o.err
	case <-late:
		return Response{}, fmt.Errorf("the command has not ended %s after its time: does the node's disk hang?",
			undoing)
	}
}

// read waits for the whole request, and not for ever. When it is there the deadline goes: it would cut long requests
// short.
func (s *server) read(w http.ResponseWriter, r *http.Request) (*Request, error) {
	deadline := http.NewResponseController(w)
	_ = deadline.SetReadDeadline(time.Now().Add(s.cfg.Arrival))
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRequest))
	req := new(Request)
	if err == nil {
		_ = deadline.SetReadDeadline(time.Time{})
		err = json.Unmarshal(body, req)
	}
	if err != nil {
		return req, types.NewError(types.ErrDecodingFailure, "read the request: "+err.Error(), "")
	}
	return req, nil
}

// codeChanged is this plugin's own (the specification leaves 100 and above to plugins): CHECK has found the wiring
// changed.
const codeChanged = 100

// codeOf returns the CNI error code of an error: ErrTryAgainLater if a retry may succeed.
func codeOf(err error) uint {
	var known *types.Error
	switch {
	case errors.As(err, &known):
		return known.Code
	case errors.Is(err, endpoints.ErrUnknown):
		return types.ErrUnknownContainer
	case errors.Is(err, endpoints.ErrNetNS):
		return types.ErrInvalidNetNS
	case errors.Is(err, endpoints.ErrSecondInterface):
		return types.ErrInvalidNetworkConfig
	case errors.Is(err, endpoints.ErrTaken):
		return types.ErrInvalidEnvironmentVariables
	case errors.Is(err, endpoints.ErrChanged):
		return codeChanged
	case errors.Is(err, endpoints.ErrSwitch):
		return types.ErrLimitedConnectivity
	}
	return types.ErrTryAgainLater
}

func named(r *Request) error {
	if r.ContainerID == "" || r.IfName == "" {
		return types.NewError(types.ErrInvalidEnvironmentVariables, "the request names no container or interface", "")
	}
	return nil
}

func (s *server) add(ctx context.Context, r *Request) (Response, error) {
	if r.ContainerID == "" || r.IfName == "" || r.NetNS == "" || r.Name == "" || r.Namespace == "" {
		return Response{}, types.NewError(types.ErrInvalidEnvironmentVariables,
			"the request names no container, interface, network namespace or pod", "")
	}
	for _, err := range []*types.Error{utils.ValidateContainerID(r.ContainerID),
		utils.ValidateInterfaceName(r.IfName)} {
		if err != nil {
			return Response{}, err
		}
	}
	if err := forgetDeleted(s.cfg.Socket, r.ContainerID, r.IfName); err != nil {
		return Response{}, err
	}
	res, err := s.cfg.Manager.Add(ctx, endpoints.Request{
		Namespace:   r.Namespace,
		Name:        r.Name,
		UID:         r.UID,
		ContainerID: r.ContainerID,
		IfName:      r.IfName,
		NetNS:       r.NetNS,
		Bandwidth:   r.Bandwidth,
		HostPorts:   r.HostPorts,
	})
	if err != nil {
		return Response{}, err
	}
	out := Response{Endpoint: &res.Endpoint, MTU: res.Network.MTU}
	for _, g := range res.Network.Gateways {
		out.Gateways = append(out.Gateways, g.String())
	}
	return out, nil
}
