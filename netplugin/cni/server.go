// Package cni is the socket that flowkeep-cni asks, and what it says there: JSON over HTTP on a unix socket, a path a CNI
// command (CNI specification 1.1.0).
package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/flowkeep/flowkeep/netplugin/endpoints"
)

// Request is what flowkeep-cni forwards.
type Request struct {
	Namespace   string   `json:"namespace"`
	Name        string   `json:"name"`
	UID         string   `json:"uid"`
	ContainerID string   `json:"containerID"`
	IfName      string   `json:"ifName"`
	NetNS       string   `json:"netns"`
	Valid       []string `json:"valid,omitempty"` // GC: attachments to keep, container/ifname
}

// Response is the outcome; Error is empty on success.
type Response struct {
	Error    string              `json:"error,omitempty"`
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

// Config is what a server needs. Timeout bounds an ADD.
type Config struct {
	Socket  string
	Timeout time.Duration
	Manager Manager
	Logger  *slog.Logger
	Observe func(command string, took time.Duration, err error)
}

// maxRequest bounds a request's body, in bytes.
const maxRequest = 1 << 20

// Serve answers until ctx ends. Requests under way are then finished.
func Serve(ctx context.Context, cfg Config) error {
	if err := os.Remove(cfg.Socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove the old CNI socket: %w", err)
	}
	l, err := net.Listen("unix", cfg.Socket)
	if err != nil {
		return fmt.Errorf("listen on the CNI socket: %w", err)
	}
	if err := os.Chmod(cfg.Socket, 0o600); err != nil {
		return err
	}
	s := &server{cfg}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /ADD", s.handle("ADD", s.add))
	mux.HandleFunc("POST /DEL", s.handle("DEL", func(ctx context.Context, r *Request) (Response, error) {
		return Response{}, cfg.Manager.Del(ctx, r.ContainerID, r.IfName)
	}))
	mux.HandleFunc("POST /CHECK", s.handle("CHECK", func(ctx context.Context, r *Request) (Response, error) {
		return Response{}, cfg.Manager.Check(ctx, r.ContainerID, r.IfName)
	}))
	mux.HandleFunc("POST /GC", s.handle("GC", func(ctx context.Context, r *Request) (Response, error) {
		return Response{}, cfg.Manager.GC(ctx, r.Valid)
	}))
	mux.HandleFunc("POST /STATUS", s.handle("STATUS", func(context.Context, *Request) (Response, error) {
		return Response{}, cfg.Manager.Ready()
	}))
	h := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	stop := context.AfterFunc(ctx, func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		_ = h.Shutdown(end)
	})
	defer stop()
	if err := h.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

type server struct{ cfg Config }

func (s *server) handle(command string, f func(context.Context, *Request) (Response, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		ctx, cancel := context.WithTimeout(r.Context(), s.cfg.Timeout)
		defer cancel()
		var req Request
		var resp Response
		err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxRequest)).Decode(&req)
		if err != nil {
			err = fmt.Errorf("read the request: %w", err)
		} else {
			resp, err = f(ctx, &req)
		}
		if err != nil {
			resp.Error, resp.NotReady = err.Error(), errors.Is(err, endpoints.ErrNotReady)
			s.cfg.Logger.Warn("CNI request failed", "command", command, "pod", req.Namespace+"/"+req.Name, "container", req.ContainerID, "error", err)
		}
		if s.cfg.Observe != nil {
			s.cfg.Observe(command, time.Since(began), err)
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(resp)
	}
}

func (s *server) add(ctx context.Context, r *Request) (Response, error) {
	if r.ContainerID == "" || r.IfName == "" || r.NetNS == "" || r.Name == "" || r.Namespace == "" {
		return Response{}, errors.New("the request names no container, interface, network namespace or pod")
	}
	res, err := s.cfg.Manager.Add(ctx, endpoints.Request{Namespace: r.Namespace, Name: r.Name, UID: r.UID, ContainerID: r.ContainerID, IfName: r.IfName, NetNS: r.NetNS})
	if err != nil {
		return Response{}, err
	}
	out := Response{Endpoint: &res.Endpoint, MTU: res.Network.MTU}
	for _, g := range res.Network.Gateways {
		out.Gateways = append(out.Gateways, g.String())
	}
	return out, nil
}
